"""Pages in a real browser: nothing is asked for or complained of; keys, wheel, pointer and slider do their work."""

import re

import pytest

from tests.pages import Seen, added_otherwise, hostile, outcome
from tests.show.films import astray_all_reduce, rebuilt
from zerosim.proofs.schedule import scheduled
from zerosim.proofs.subject import named_subject, subject
from zerosim.show.drawing import shown_schedule
from zerosim.show.page import page as page_of
from zerosim.show.recorded import recorded_stage, shown, shown_steps
from zerosim.stages import STAGES


@pytest.fixture(scope="module")
def pages():
    """The HTML of each kind of page."""
    four, ring = outcome(), scheduled(named_subject("ring.all_reduce"), 4)
    with pytest.MonkeyPatch.context() as planted:
        diverging = added_otherwise(planted, stages=("zero1", "zero2"), ranks=4, micro_batches=8)
    return {"run": page_of(four), "diverging": page_of(diverging),
            "hostile": page_of(hostile()), "ring": shown_schedule(ring).page().html,
            "barrier": shown_schedule(scheduled(named_subject("dissemination.barrier"), 3)).page().html,
            "red": shown_schedule(scheduled(subject(astray_all_reduce), 4)).page().html,
            "step": shown_steps([recorded_stage("zero3", 4)]).page().html,
            "stages": shown_steps([recorded_stage(name, 4) for name in STAGES]).page().html,
            "pipelines": shown("gpipe,1f1b", 4).page().html}


def luminance(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_the_checker_notices_what_is_wrong(opens):
    page = opens("<body style='width:3000px'><img src='http://127.0.0.1:9/a.png'><script>console.warn('x'); nothing()"
                 "</script>", complains=True)
    seen = " ".join(page.problems)
    assert all(words in seen for words in ("warning: x", "nothing is not defined", "http://127.0.0.1:9/a.png"))
    assert page.evaluate("document.documentElement.scrollWidth") > 1280


@pytest.mark.parametrize("name", [
    "run", "diverging", "hostile", "ring", "barrier", "red", "step", "stages", "pipelines"])
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


@pytest.mark.parametrize("name", ["run", "diverging"])
def test_paper_shows_whole_tables_and_pictures(opens, pages, name):
    page = opens(pages[name], 718)  # A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate("""[...document.querySelectorAll('.wide, .wide table, .picture svg, pre')].filter((place) =>
        place.checkVisibility() && place.getBoundingClientRect().right > 718).length""") == 0


def test_the_numbers_open_below_a_picture(opens, pages):
    page = opens(pages["run"])
    assert page.locator("details:has(table)").count() == page.locator(".picture").count()
    page.locator("details summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] tbody tr").count() == 12


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


def words(page):
    return page.locator(".event").inner_text()


def looks(page, panel):
    """The looks of the filled cells of a panel, as the page shows them."""
    return page.evaluate("""(number) => [...document.querySelectorAll('.panel')[number].querySelectorAll('.cell')]
        .map((cell) => cell.className).filter((look) => !look.includes('empty'))""", panel)


def test_keys_slider_buttons_and_play_step_through_a_collective(opens, pages):
    page = opens(pages["ring"])
    for key, due in (("ArrowRight", "round 1 of 6"), ("PageDown", "round 2 of 6"), ("ArrowLeft", "round 1 of 6"),
                     ("End", "round 6 of 6"), ("ArrowRight", "round 6 of 6"), ("Home", "start")):
        page.keyboard.press(key)
        assert words(page) == due
    page.locator("[data-by='1']").click()
    assert words(page) == "round 1 of 6"
    page.locator("input[type=range]").fill("4")
    assert (words(page), page.locator("output").inner_text()) == ("round 4 of 6", "4 / 6")
    page.locator("select").select_option("4")
    page.locator("body").click(position={"x": 5, "y": 5})
    page.keyboard.press(" ")
    page.locator(".event", has_text="round 6 of 6").wait_for()
    page.wait_for_timeout(500)
    assert page.locator("[data-play]").inner_text() == "▶"


def test_a_swipe_steps(opens, pages):
    page = opens(pages["ring"], 400)
    touch = page.context.new_cdp_session(page)
    for start, end, due in ((300, 100, "round 1 of 6"), (300, 100, "round 2 of 6"), (100, 300, "round 1 of 6")):
        for what, places in (("Start", [start]), ("Move", range(start, end, (end - start) // 8)), ("End", [])):
            for x in places or [None]:
                touch.send("Input.dispatchTouchEvent", {
                    "type": f"touch{what}", "touchPoints": [] if x is None else [{"x": x, "y": 400}]})
        page.locator(".event", has_text=due).wait_for()


def test_messages_travel_and_are_added_when_they_arrive(opens, pages):
    page = opens(pages["ring"])
    page.keyboard.press("ArrowRight")
    assert page.locator(".token").count() == page.locator(".arcs path").count() == 4
    assert page.locator(".panel .cell.new").count() == 0
    page.locator(".token").first.wait_for(state="detached")
    assert page.locator(".panel .cell.new").count() == 4
    page.emulate_media(reduced_motion="reduce")
    page.keyboard.press("ArrowRight")
    assert (page.locator(".token").count(), page.locator(".panel .cell.new").count()) == (0, 4)


def test_every_step_shows_the_cells_of_its_frame(opens, pages):
    """Forward and backward, and by jumps; a page that forgets to empty a cell fails."""
    page, (data,) = opens(pages["stages"], 1920), Seen(pages["stages"]).films
    frames = [[*rebuilt(panel)] for panel in data["panels"]]
    for number in (0, 5, 23, 24, 25, 24, len(data["steps"]) - 1, 40, 1):
        page.locator("input[type=range]").fill(str(number))
        for panel, place in enumerate(data["steps"][number]["at"]):
            filled = looks(page, panel)
            assert len(filled) == len(frames[panel][place]), (number, panel)
            assert sum("new" in look for look in filled) == sum(
                "new" in content[3] for content in frames[panel][place].values())


def test_a_wrong_sum_is_red_in_its_round(opens, pages):
    page = opens(pages["red"])
    for number, red in ((1, 0), (2, 1), (3, 2)):
        page.locator("input[type=range]").fill(str(number))
        assert page.locator(".panel .cell.wrong").count() == red
    assert page.locator(".ticks u").count() == 5
    assert "why: in round 2 rank 2 sends chunk 1" in page.locator("header").inner_text()


@pytest.mark.parametrize("name", ["ring", "step", "stages", "pipelines"])
def test_a_film_fits_a_projector_and_can_be_read_from_the_last_row(opens, pages, name):
    """On 1920 × 1080 pixels all of it is seen at once, and what matters is at least 24 px high."""
    page = opens(pages[name], 1920)
    page.set_viewport_size({"width": 1920, "height": 1080})
    page.locator("input[type=range]").fill("6")
    assert page.locator(".film").bounding_box()["y"] + page.locator(".film").bounding_box()["height"] <= 1080
    sizes = page.evaluate("""[...document.querySelectorAll('.event, .rank, .unit, .name, .bar b, h3:not(.alone *)')]
        .map((place) => parseFloat(getComputedStyle(place).fontSize))""")
    assert min(sizes) >= 24


def test_a_film_is_printed_as_a_strip_of_its_events(opens, pages):
    page = opens(pages["step"], 718)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    captions = page.locator(".strip figcaption").all_inner_texts()
    assert captions[2:4] == ["4. all-gather weights of layers.0, round 3 of 3", "5. forward layers.0"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.locator(".film .keys").is_hidden()
