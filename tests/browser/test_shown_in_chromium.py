"""The pages of `zerosim show --html` in a real browser: a remote steps, and no text is small on a projector."""

import pytest

from zerosim.commands.cli import main

SHOWN = {"ring": "ring.all_reduce --ranks 4", "many": "ring.all_reduce --ranks 16", "stage": "zero3 --ranks 4"}
PLACES = {"ring": ["start", *(f"round {number} of 6" for number in range(1, 7))], "stage": [
    "1 of 20: all-gather layers.0", "2 of 20: forward layers.0", "3 of 20: all-gather layers.1"]}
TEXT_SIZES = """() => {
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const at = walker.currentNode.parentElement, box = at.getBoundingClientRect();
        if (!walker.currentNode.textContent.trim() || !box.height || at.closest("title, script, style")) continue;
        const scale = at instanceof SVGElement ? box.height / at.getBBox().height : at.currentCSSZoom;
        found.push([parseFloat(getComputedStyle(at).fontSize) * scale, walker.currentNode.textContent.trim()]);
    }
    return found;
}"""
PROJECTED_PIXELS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pages that `zerosim show --html` writes."""
    made = tmp_path_factory.mktemp("shown")
    for name, words in SHOWN.items():
        assert main(["show", *words.split(), "--html", str(made / f"{name}.html")]) == 0
    return made


@pytest.fixture
def opens(opens_file, folder):
    """Opens one of these pages."""
    return lambda name: opens_file(folder / f"{name}.html")


def smaller(page, pixels):
    """The text that is seen in less than so many pixels of height."""
    sizes = page.evaluate(TEXT_SIZES)
    assert len(sizes) > 20
    return [(size, words) for size, words in sizes if size < pixels - 0.01]


@pytest.mark.parametrize("focus", ["page", "slider", "play"])
@pytest.mark.parametrize(("name", "part", "slider"), [("ring", "schedule", "round"), ("stage", "step", "event")])
def test_page_keys_step_one_at_a_time_wherever_the_focus_is(opens, name, part, slider, focus):
    page = opens(name)
    heading = page.locator(f"#{part}-heading")
    if focus != "page":
        page.locator(f"#{part}-{slider if focus == 'slider' else focus}").focus()
    places = PLACES[name]
    for wanted in places[1:]:
        page.keyboard.press("PageDown")
        assert heading.inner_text() == wanted
    for wanted in [*places[-2::-1], places[0]]:
        page.keyboard.press("PageUp")
        assert heading.inner_text() == wanted
    assert page.evaluate("window.scrollY") == 0


@pytest.mark.parametrize("name", SHOWN)
def test_no_text_is_small_on_a_projector(opens, name):
    page = opens(name)
    assert smaller(page, PROJECTED_PIXELS) != []
    page.keyboard.press("p")
    page.keyboard.press("PageDown")
    assert smaller(page, PROJECTED_PIXELS) == []
    if name == "many":
        page.keyboard.press("d")
        assert smaller(page, PROJECTED_PIXELS) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.keyboard.press("p")
    assert smaller(page, PROJECTED_PIXELS) != []


def test_an_address_opens_a_page_for_a_projector(opens, folder):
    page = opens("ring")
    page.goto((folder / "ring.html").as_uri() + "#projector")
    page.reload()
    assert smaller(page, PROJECTED_PIXELS) == []


def hidden(page):
    """The parts to look at that are not wholly within the window: the drawing, and the words of the round or event."""
    return page.evaluate("""() => [...document.querySelectorAll("#step-drawing svg, #schedule-drawing svg, output")]
        .map((at) => [at.tagName, at.getBoundingClientRect()])
        .filter(([, box]) => !box.height || box.top < 0 || box.bottom > innerHeight || box.right > innerWidth)
        .map(([name]) => name)""")


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("size", [(1280, 800), (1920, 940)])
def test_a_projector_shows_the_drawing_without_scrolling(opens, folder, name, size):
    page = opens(name)
    page.set_viewport_size({"width": 1280, "height": 400})
    assert hidden(page) != []
    page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
    page.goto((folder / f"{name}.html").as_uri() + "#projector")
    page.reload()
    for _ in range(4):
        assert hidden(page) == []
        page.keyboard.press("PageDown")
    page.keyboard.press("p")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("p")
    assert hidden(page) == []


def test_the_measure_of_text_sees_what_a_style_makes_small(opens):
    page = opens("ring")
    page.keyboard.press("p")
    for selector, style in [("h1", "font-size: 11px"), ("#schedule-drawing text.name", "font-size: 8px"),
                            ("#schedule-drawing svg", "width: 50px")]:
        page.evaluate("([selector, style]) => document.querySelector(selector).setAttribute('style', style)",
                      [selector, style])
        assert smaller(page, PROJECTED_PIXELS) != []
        page.evaluate("(selector) => document.querySelector(selector).removeAttribute('style')", selector)
        assert smaller(page, PROJECTED_PIXELS) == []


@pytest.mark.parametrize("name", SHOWN)
def test_a_telephone_shows_the_whole_drawing(opens, name):
    page = opens(name)
    drawing = "step" if name == "stage" else "schedule"
    for width in (1280, 400, 900):
        page.set_viewport_size({"width": width, "height": 800})
        page.keyboard.press("PageDown")
        found, room = page.evaluate(
            "(name) => { const at = document.getElementById(name); return [at.scrollWidth, at.clientWidth]; }",
            f"{drawing}-drawing")
        assert found <= room <= width
        assert smaller(page, 7) == []
