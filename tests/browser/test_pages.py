"""Pages in a real browser: nothing is asked for or complained of; keys, wheel, pointer and slider do their work."""

import re

import pytest

from tests.pages import added_otherwise, hostile, outcome, page_of
from zerosim.proofs.schedule import scheduled
from zerosim.proofs.subject import named_subject
from zerosim.show.drawing import schedule_page
from zerosim.show.recorded import recorded_stage
from zerosim.show.step import shown_step

DOMAINS = "timed.map((view) => view.scale('x').domain().join())"
"""The stretch of time that each picture of a step shows."""


@pytest.fixture(scope="module")
def pages():
    """The HTML of each kind of page."""
    four, ring = outcome(), scheduled(named_subject("ring.all_reduce"), 4)
    with pytest.MonkeyPatch.context() as planted:
        diverging = added_otherwise(planted, stages=("zero1", "zero2"), ranks=4, micro_batches=8)
    return {"run": page_of(four), "two": page_of(four, four), "diverging": page_of(diverging),
            "hostile": page_of(hostile(), hostile()), "ring": schedule_page(ring),
            "step": shown_step(recorded_stage("zero3", 4)).page().html}


def luminance(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def stretch(page):
    """The one stretch of time that all pictures of a step show."""
    (found,) = set(page.evaluate(DOMAINS))
    return [float(end) for end in found.split(",")]


def test_the_checker_notices_what_is_wrong(opens):
    page = opens("<body style='width:3000px'><img src='http://127.0.0.1:9/a.png'><script>console.warn('x'); nothing()"
                 "</script>", complains=True)
    seen = " ".join(page.problems)
    assert all(words in seen for words in ("warning: x", "nothing is not defined", "http://127.0.0.1:9/a.png"))
    assert page.evaluate("document.documentElement.scrollWidth") > 1280


@pytest.mark.parametrize("name", ["run", "two", "diverging", "hostile", "ring", "step"])
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (400, "dark"), (1280, "light"), (1280, "dark")])
def test_every_page_fits_and_can_be_read(opens, pages, name, width, scheme):
    page = opens(pages[name], width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper, ink = page.evaluate("(({backgroundColor, color}) => [backgroundColor, color])"
                               "(getComputedStyle(document.body))")
    bright, dark = (paper, ink) if scheme == "light" else (ink, paper)
    assert luminance(bright) > 200
    assert luminance(dark) < 60
    assert set(page.evaluate("""[...document.querySelectorAll('.picture .role-axis text')]
        .map((text) => getComputedStyle(text).fill)""")) <= {ink}
    marks = page.evaluate("""[...document.querySelectorAll('.picture')]
        .map((place) => place.querySelectorAll('.role-mark path, .role-mark text').length)""")
    assert [count for count in marks if count < 1] == []


@pytest.mark.parametrize("name", ["run", "two", "diverging"])
def test_paper_shows_whole_tables_and_pictures(opens, pages, name):
    page = opens(pages[name], 718)  # A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate("""[...document.querySelectorAll('.wide, .wide table, .picture svg, pre')].filter((place) =>
        place.checkVisibility() && place.getBoundingClientRect().right > 718).length""") == 0


def test_the_numbers_open_below_a_picture(opens, pages):
    page = opens(pages["run"])
    assert page.locator("details").count() == page.locator(".picture").count()
    page.locator("details summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] tbody tr").count() == 12


def test_keys_wheel_and_dragging_change_all_pictures_of_a_step(opens, pages):
    page = opens(pages["run"])
    whole = stretch(page)
    page.locator("#step .picture").first.focus()
    for key, due in (("+", [0.25, 0.75]), ("ArrowRight", [0.375, 0.875]), ("ArrowLeft", [0.25, 0.75]), ("-", [0, 1]),
                     ("+", [0.25, 0.75]), ("0", [0, 1])):
        page.keyboard.press(key)
        page.wait_for_timeout(100)
        assert stretch(page) == pytest.approx([end * whole[1] for end in due])
    box = page.locator("#step .picture").first.bounding_box()
    page.mouse.move(box["x"] + 600, box["y"] + 90)
    scrolled = page.evaluate("scrollY")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_timeout(300)
    begin, end = stretch(page)
    assert 0 < begin < end < whole[1]
    assert page.evaluate("scrollY") == scrolled
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 90, steps=4)
    page.mouse.up()
    page.wait_for_timeout(200)
    assert stretch(page)[0] > begin
    page.mouse.wheel(0, 200)
    page.wait_for_function("(before) => scrollY > before", arg=scrolled)


def test_pointing_at_a_message_tells_about_it_and_shows_its_other_end(opens, pages):
    page = opens(pages["run"])
    picture = page.locator("#step .picture").first
    picture.scroll_into_view_if_needed()
    box = max((mark.bounding_box() for mark in picture.locator("path[aria-label*='rank 0 sends']").all()),
              key=lambda box: box["width"])
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert re.search(r"lane\s+rank 0 sends\s.*bytes\s+\d+\s+peer\s+1", " ".join(tip.inner_text().split()))
    assert picture.locator("path[stroke='#d0006f']").count() == 2


def test_slider_and_keys_step_through_a_collective(opens, pages):
    page = opens(pages["ring"])
    headings = page.locator(".picture .role-axis text", has_text=re.compile("start|round"))
    for key, due in (("ArrowRight", ["start", "round 1"]), ("PageDown", ["round 1", "round 2"]),
                     ("ArrowLeft", ["start", "round 1"]), ("End", ["round 5", "round 6"]), ("Home", ["start"])):
        page.keyboard.press(key)
        page.wait_for_timeout(200)
        assert sorted(headings.all_text_contents()) == sorted(due)
    page.keyboard.press("p")
    assert page.locator("body.projector").count() == 1
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.locator(".picture svg").bounding_box()["height"] <= 600
