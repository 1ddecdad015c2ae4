"""Pages in the system's Chromium, driven by Playwright; without them the tests here are skipped.

CONTRIBUTING has the environment and the command.
"""

import os
import shutil

import pytest

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
WHERE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing(what):
    if os.environ.get("BROWSER") == "required":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed")
    if WHERE is None:
        missing("there is no Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=WHERE, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opens(chromium, tmp_path):
    """Opens a page of HTML with its pictures drawn; the test fails if it asks for anything, complains or alerts."""
    problems = []

    def opened(html, width=1280, scheme="light", complains=False):
        page = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
        page.problems = [] if complains else problems
        page.on("console", lambda message: page.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (page.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.is_navigation_request() or page.problems.append(request.url))
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        page.goto(path.as_uri())
        if page.locator("[data-picture]").count():
            page.wait_for_function("document.querySelectorAll('[data-picture]:not([data-drawn])').length === 0")
        return page

    yield opened
    assert problems == []
