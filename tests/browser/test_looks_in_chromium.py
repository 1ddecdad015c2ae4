"""Pages under all looks, by the browser's own figures: contrast in light, dark and print; all controls by keyboard."""

from collections import Counter
from pathlib import Path

import pytest

from zerosim.commands.cli import main

PAGES = {"run": "run compare --set train.steps=2 --set check.test_accuracy=0 --trace-steps 2 --progress none --report",
         "plan": "plan mpt_7b --set model.layers=4 --set check.mfu=[] --set check.fits=[] --report",
         "ring": "show ring.all_reduce --ranks 4 --html", "stage": "show zero3 --ranks 4 --html"}
LOOKS = ["light", "dark", "print", "projector"]
TEXT, MARK = 4.5, 3.0
"""The least contrast of WCAG 2.2 for text (1.4.3), and for marks and the focus (1.4.11)."""

CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
WITHOUT = ".mark-text, .textures_marks, .chosen_marks, .links_marks"
MARKS = (f".drawing:not(.squares *) .role-mark:not({WITHOUT}) > :is(path, line), #step-drawing .event rect, "
         ".arrow, .head, .cell > rect:first-child, .patch, .swatch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pages, written by their commands."""
    made = tmp_path_factory.mktemp("looks")
    for name, words in PAGES.items():
        assert main([*words.split(), str(made / f"{name}.html")]) == 0
    return made


@pytest.fixture
def opens(opens_file, folder):
    def opened(name, look="light", width=1280):
        page = opens_file(folder / f"{name}.html", width, "dark" if look == "dark" else "light")
        page.emulate_media(media="print" if look == "print" else "screen", reduced_motion="reduce")
        if look == "projector":
            page.keyboard.press("p")
        page.set_viewport_size({"width": width, "height": page.evaluate("document.documentElement.scrollHeight")})
        return page
    return opened


def weaker(page, text=False, marks=""):
    """The texts or marks with less contrast to what is behind them than WCAG asks for, each once."""
    found = page.evaluate(CONTRASTS, [text, marks])
    assert len(found) > 10
    least = TEXT if text else MARK
    return Counter((round(ratio, 2), what) for ratio, what in found if ratio < least - 0.005)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_contrast(opens, name, look):
    page = opens(name, look)
    for _ in range(2 if "step" in page.content() else 1):
        assert (weaker(page, text=True), weaker(page, marks=MARKS)) == ({}, {})
        page.keyboard.press("PageDown")


@pytest.mark.parametrize(("selector", "style"), [
    (".caption, .legend", "color: #8a8a8a"), (".legend", "opacity: 0.5"), ("#step-drawing text", "fill: #d9b53b"),
    ("#step-drawing rect", "stroke: none"), (".patch", "border-color: transparent"), (".arrow", "stroke: #e0e0e0")])
def test_weak_contrast_is_seen(opens, selector, style):
    page = opens("stage")
    page.add_style_tag(content=f"{selector} {{ {style} !important }}")
    assert weaker(page, text=True) + weaker(page, marks=MARKS)


CONTROLS = "a[href], button, input, select, summary, [tabindex]"
NO_NAMES = {"", "Vega visualization"}
ROLES = {"link", "button", "slider", "combobox", "option", "checkbox", "DisclosureTriangle", "application", "group",
         "graphics-document"}


def unreached(page):
    """What is wrong for somebody who has a keyboard and hears the page: in the order of the page, each once."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    properties = [(node, {each["name"]: each["value"].get("value") for each in node.get("properties", [])})
                  for node in tree if not node["ignored"]]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node, has in properties
             if has.get("focusable") and node["role"]["value"] != "RootWebArea"}
    wrong = [f"{role} {name!r}" for role, name in named if role not in ROLES or name.strip() in NO_NAMES]
    count = page.evaluate("""(controls) => { let count = 0;
        for (const at of document.querySelectorAll(controls)) if (at.checkVisibility()) at.dataset.control = count++;
        return count; }""", CONTROLS)
    reached = {}
    for _ in range(count + 1):
        page.keyboard.press("Tab")
        number, outline, width = page.evaluate("""() => { const at = document.activeElement, css = getComputedStyle(at);
            return [at.dataset.control, css.outlineStyle, parseFloat(css.outlineWidth)]; }""")
        if number is not None:
            reached[int(number)] = outline != "none" and width >= 2
    assert count > 2
    return [*sorted(wrong), *(f"control {each} is not reached" for each in range(count) if each not in reached),
            *(f"control {each} shows no focus" for each, seen in reached.items() if not seen)]


@pytest.mark.parametrize("name", PAGES)
def test_every_control_has_a_name_and_is_reached_by_the_tab_key_with_a_visible_focus(opens, name):
    found = unreached(opens(name))
    assert not found, found


@pytest.mark.parametrize(("planted", "found"), [
    ("at.tabIndex = -1", "is not reached"), ("at.textContent = ''", "button ''"),
    ("at.style.outline = 'none'", "shows no focus"), ("at.outerHTML = '<p tabindex=0>play</p>'", "paragraph")])
def test_a_control_that_a_keyboard_misses_is_seen(opens, planted, found):
    page = opens("ring")
    page.evaluate(f"() => {{ const at = document.getElementById('schedule-play'); {planted}; }}")
    assert any(found in each for each in unreached(page))
