"""Pages in the system's Chromium.

`make browser` drives it with Playwright, in an environment of its own; without them the tests here are skipped.
"""

import os
import shutil

import pytest

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
WHERE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("BROWSER") == "required"


def missing(what):
    if REQUIRED:
        pytest.fail(what)
    pytest.skip(f"{what}; make browser installs what can be")


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
def opens_file(chromium):
    """Opens a page, and says at the end of the test what is wrong with it."""
    contexts, problems = [], []

    def opened(path, width=1280, scheme="light", complains=False):
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.problems = [] if complains else problems
        page.on("console", lambda message: page.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (page.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.is_navigation_request() or page.problems.append(request.url))
        page.goto(path.as_uri())
        if page.locator(".drawing").count():
            page.wait_for_selector("html[data-drawn=all]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
