"""The documentation's site, opened from its files: search answers, and nothing comes from elsewhere."""

from tests.browser.conftest import missing
from tests.conftest import ROOT

SITE = ROOT / "build/site"


def found(chromium, site, query):
    """The titles that search finds, and what the page asked for, from where it is opened as a file."""
    page = chromium.new_context(offline=True, viewport={"width": 1280, "height": 800}).new_page()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "docs/use.html").as_uri())
    page.set_default_timeout(15_000)
    try:
        page.locator("input[data-md-component=search-query]").first.click()
        page.keyboard.type(query)
        page.wait_for_selector(".md-search-result__item")
    except Exception:  # Playwright's error class is not imported: the suite collects without it
        return [], asked, errors
    return page.locator(".md-search-result__item h1, .md-search-result__item h2").all_inner_texts(), asked, errors


def test_search_answers_from_files(chromium):
    if not (SITE / "docs/use.html").exists():
        missing("there is no site: run make docs")
    titles, asked, errors = found(chromium, SITE, "reduce-scatter")
    assert errors == []
    assert len(titles) > 3
    assert all(url.startswith(("file:", "data:", "about:")) for url in asked)


def test_search_without_the_worker_is_seen_to_answer_nothing(chromium, tmp_path):
    if not (SITE / "docs/use.html").exists():
        missing("there is no site: run make docs")
    for each in SITE.rglob("*"):
        place = tmp_path / each.relative_to(SITE)
        if each.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif each.name != "iframe-worker.js":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(each)
    assert found(chromium, tmp_path, "reduce-scatter")[0] == []
