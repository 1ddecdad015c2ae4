"""The page in a real browser: nothing is asked for or complained of; hover, wheel, keys and slider do their work."""

import re
from dataclasses import replace

import pytest
from zerosim.show.page.page import collectives_of, schedule_page, step_page

from tests.pages import HOSTILE, added_otherwise, outcome, page_of
from tests.training import scenario
from zerosim.proofs.subject import named_subject
from zerosim.show.recorded import recorded_stage
from zerosim.show.schedule import scheduled

TIMED, FIRST = ".drawing.timed", "#row-1 .drawing.timed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pages that are looked at."""
    made = tmp_path_factory.mktemp("pages")
    (made / "four.html").write_text(page_of(outcome()), encoding="utf-8")
    with pytest.MonkeyPatch.context() as planted:
        found = added_otherwise(planted, stages=("zero1", "zero2"), ranks=4, micro_batches=8)
        (made / "diverging.html").write_text(page_of(found), encoding="utf-8")
    hostile = outcome(replace(scenario(stages=("zero3",)), title=HOSTILE, caption=HOSTILE))
    hostile["rows"][0]["name"] = HOSTILE
    (made / "hostile.html").write_text(page_of(hostile, hostile), encoding="utf-8")
    (made / "bare.html").write_text(page_of(outcome(traced=False, ranks=2, micro_batches=2)), encoding="utf-8")
    (made / "ring.html").write_text(schedule_page(scheduled(named_subject("ring.all_reduce"), 4)), encoding="utf-8")
    (made / "sixteen.html").write_text(
        schedule_page(scheduled(named_subject("ring.all_reduce"), 16), first=7), encoding="utf-8")
    (made / "step.html").write_text(step_page(recorded_stage("zero3", 4)), encoding="utf-8")
    (made / "bad.html").write_text(
        "<body style='width:3000px'><img src='http://127.0.0.1:9/a.png'><script>console.warn('x'); nothing()</script>")
    return made


@pytest.fixture
def opens(opens_file, folder):
    """Opens one of these pages."""
    return lambda name="four", *how, **more: opens_file(folder / f"{name}.html", *how, **more)


def window(page):
    """The stretch of time that is shown, in milliseconds, by the axis of each picture of time."""
    return page.evaluate("""() => [...drawings.values()].filter((each) => each.place.classList.contains('timed'))
        .map((each) => each.view.scale('x').domain().map((ns) => ns / 1e6))""")


def one_window(page):
    """The same, which all pictures must agree on."""
    first, *others = window(page)
    assert [each for each in others if each != first] == []
    return first


def over(page, selector, share=0.5):
    """Where a mark is, some way along it."""
    box = page.locator(selector).first.bounding_box()
    return box["x"] + box["width"] * share, box["y"] + box["height"] / 2


def luminance(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_the_checker_notices_what_is_wrong(opens):
    page = opens("bad", complains=True)
    said = " ".join(page.problems)
    assert "warning: x" in said
    assert "error: nothing is not defined" in said
    assert "http://127.0.0.1:9/a.png" in said
    assert page.evaluate("document.documentElement.scrollWidth") > 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1280, 2000])
def test_every_picture_is_there_and_nothing_is_wider_than_the_window(opens, width, scheme):
    page = opens("four", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    marks = page.evaluate("""() => [...document.querySelectorAll('.drawing')].map((place) => [
        place.querySelectorAll('.role-mark path, .role-mark text, .role-mark line').length,
        place.querySelector('svg').getBoundingClientRect().right - place.getBoundingClientRect().right])""")
    assert len(marks) == 1 + 4 * 2 + 1 + 4 + 1
    assert [count for count, _ in marks if count < 3] == []
    assert [beyond for _, beyond in marks if beyond > 1] == []
    paper, ink, axis = page.evaluate("""() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.body).color, getComputedStyle(document.querySelector('.drawing text')).fill]""")
    bright, dark = (paper, ink) if scheme == "light" else (ink, paper)
    assert luminance(bright) > 200
    assert luminance(dark) < 60
    assert axis == ink


@pytest.mark.parametrize("name", ["diverging", "hostile", "bare", "ring"])
@pytest.mark.parametrize("width", [400, 1280])
def test_other_pages_fit_too(opens, name, width):
    page = opens(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_span_tells_everything_and_a_message_shows_its_other_end(opens):
    page = opens()
    page.locator(FIRST).first.scroll_into_view_if_needed()
    page.mouse.move(*over(page, "#row-1 .spans_marks path"))
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert re.match(r"rank \d, computation\nforward of layers\.\d\n[\d.]+–[\d.]+ ms: [\d.]+ ms$", tip.inner_text())
    assert page.locator("#row-1 .chosen_marks path").count() == 1
    number = page.evaluate("""() => drawings.get(document.querySelector('#row-1 .timed')).spans
        .findIndex((span) => span.kind === 'communication out')""")
    page.evaluate("""(number) => select(drawings.get(document.querySelector('#row-1 .timed')), number)""", number)
    assert re.search(r"communication out\nreduce-scatter of layers\.\d\nto rank 1\n\d+ bytes\n", tip.inner_text())
    assert page.locator("#row-1 .chosen_marks path").count() == 2
    assert page.locator("#row-1 .links_marks line").count() == 1
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")


def test_memory_tells_bytes_at_a_time(opens):
    page = opens()
    place = page.locator("#row-1 .drawing.timed").nth(1)
    place.scroll_into_view_if_needed()
    page.mouse.move(*over(page, "#row-1 .drawing.timed >> nth=1 >> .mark-area path"))
    page.locator("#tip").wait_for(state="visible")
    said = page.locator("#tip").inner_text()
    total = int(re.match(r"at [\d.]+ ms: ([\d,]+) bytes", said)[1].replace(",", ""))
    kinds = re.findall(r"\n(\w+): ([\d,]+)", said)
    assert [kind for kind, _ in kinds] == ["buffers", "activations", "optimizer", "gradients", "weights"]
    assert sum(int(count.replace(",", "")) for _, count in kinds) == total > 0


def test_bars_and_squares_tell_their_numbers(opens):
    page = opens()
    for selector, words in [("#traffic .mark-rect path", "collective: reduce_scatter"),
                            ("#traffic .squares .mark-rect path >> nth=1", "from rank: 0"),
                            ("#losses .mark-symbol path", "loss: ")]:
        page.locator(selector).first.scroll_into_view_if_needed()
        page.mouse.move(*over(page, selector))
        page.locator("#tip").wait_for(state="visible")
        assert words in page.locator("#tip").inner_text()


def test_the_wheel_zooms_all_pictures_of_time_where_one_has_been_chosen(opens):
    page = opens()
    place = page.locator(FIRST).first
    place.scroll_into_view_if_needed()
    whole = one_window(page)
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    before = page.evaluate("window.scrollY")
    page.mouse.wheel(0, -100)
    page.wait_for_function("(before) => window.scrollY !== before", arg=before)
    assert one_window(page) == whole
    place.focus()
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    scrolled = page.evaluate("window.scrollY")
    page.mouse.wheel(0, -300)
    page.wait_for_function("(whole) => shown.end - shown.begin < 0.9e6 * (whole[1] - whole[0])", arg=whole)
    closer = one_window(page)
    assert whole[0] < closer[0] < closer[1] < whole[1]
    assert page.evaluate("window.scrollY") == scrolled
    page.mouse.wheel(0, 3000)
    page.mouse.wheel(0, 3000)
    page.wait_for_function("() => shown.begin === 0 && shown.end === shown.until")
    assert one_window(page) == whole


def test_keys_zoom_move_and_show_the_whole(opens):
    page = opens()
    page.locator(FIRST).first.focus()
    begin, end = one_window(page)
    page.keyboard.press("+")
    quarter = (end - begin) / 4
    assert one_window(page) == pytest.approx([begin + quarter, end - quarter])
    page.keyboard.press("ArrowRight")
    assert one_window(page) == pytest.approx([begin + 1.5 * quarter, end - quarter / 2])
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("-")
    assert one_window(page) == pytest.approx([begin, end])
    page.keyboard.press("+")
    page.keyboard.press("0")
    assert one_window(page) == [begin, end]


def test_keys_walk_from_span_to_span_and_lane_to_lane(opens):
    page = opens()
    place = page.locator(FIRST).first
    place.focus()

    def current():
        return page.evaluate("""() => { const drawing = drawings.get(document.querySelector('#row-1 .timed'));
            return drawing.spans[drawing.current] ?? null; }""")

    page.keyboard.press("n")
    first = current()
    page.keyboard.press("n")
    assert current()["number"] == first["number"] + 1
    page.keyboard.press("p")
    assert current() == first
    page.keyboard.press("ArrowDown")
    assert (current()["rank"], current()["lane"]) == (first["rank"], first["lane"] + 1)
    page.keyboard.press("ArrowUp")
    assert current()["lane"] == first["lane"]
    assert f"rank {first['rank']}, computation" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert current() is None
    assert page.locator("#tip").is_hidden()
    for _ in range(5):
        page.keyboard.press("+")
    for _ in range(40):
        page.keyboard.press("n")
        begin, end = one_window(page)
        assert begin <= current()["begin_ns"] / 1e6 <= current()["end_ns"] / 1e6 <= end


def test_dragging_moves_along(opens):
    page = opens()
    place = page.locator(FIRST).first
    place.focus()
    page.keyboard.press("+")
    begin, end = one_window(page)
    box = place.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 40
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 80, y, steps=4)
    page.mouse.up()
    pixels = page.evaluate("() => drawings.get(document.querySelector('#row-1 .timed')).view.width()")
    moved = one_window(page)
    assert moved == pytest.approx([begin + 80 * (end - begin) / pixels, end + 80 * (end - begin) / pixels])
    page.mouse.move(x, y)
    assert one_window(page) == moved


def test_buttons_zoom_and_rows_can_be_put_away(opens):
    page = opens()
    begin, end = one_window(page)
    page.locator("[data-zoom=in]").click()
    assert one_window(page)[1] - one_window(page)[0] == pytest.approx((end - begin) / 2)
    assert page.locator(".window").inner_text().endswith(" ms")
    page.locator("[data-zoom=all]").click()
    assert one_window(page) == [begin, end]
    page.get_by_label("Stage I", exact=True).uncheck()
    assert page.locator("#row-2").is_hidden()
    page.get_by_label("Stage I", exact=True).check()
    assert page.locator("#row-2 svg").first.is_visible()


def test_every_picture_has_its_numbers_behind_a_click(opens):
    page = opens()
    for number in range(page.locator("details.numbers").count()):
        details = page.locator("details.numbers").nth(number)
        details.locator("summary").click()
        details.locator("table").wait_for(state="visible")
        wanted = page.evaluate("(name) => records(name).length", details.get_attribute("data-of"))
        assert details.locator("tbody tr").count() == wanted > 0
    spans = page.locator("#row-4 details").first
    assert spans.locator("th").all_inner_texts()[:4] == ["rank", "lane", "channel", "what"]
    assert spans.locator("tbody tr").first.locator("td").all_inner_texts()[:2] == ["0", "computation"]


@pytest.mark.parametrize("name", ["four", "ring"])
def test_the_slider_the_keys_and_the_play_button_step_through_a_collective(opens, name):
    page = opens(name)
    drawing, slider, heading = (page.locator(f"#schedule-{part}") for part in ("drawing", "round", "heading"))
    last = int(slider.get_attribute("max"))
    assert heading.inner_text() == "start"
    assert drawing.locator(".arrow").count() == 0
    before = drawing.locator(".cell").all_text_contents()
    slider.evaluate("(slider) => { slider.value = 1; slider.dispatchEvent(new Event('input')); }")
    assert heading.inner_text() == f"round 1 of {last}"
    ranks = drawing.locator("text.name").count()
    assert drawing.locator(".fresh").count() == ranks
    assert drawing.locator(".cell").all_text_contents() != before
    assert page.locator("#schedule-words").inner_text().count("sends chunk") == ranks
    drawing.focus()
    page.keyboard.press("ArrowRight")
    assert heading.inner_text() == f"round 2 of {last}"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert heading.inner_text() == "start"
    for _ in range(last - 1):
        page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    assert page.locator("#schedule-play").inner_text() == "stop"
    page.wait_for_function(f"() => document.getElementById('schedule-round').value === '{last}'")
    assert page.locator("#schedule-play").inner_text() == "play"
    assert all("✓" in words for words in drawing.locator(".cell > text").all_text_contents())


def test_keys_step_from_anywhere_on_a_page_of_one_collective(opens):
    page = opens("ring")
    heading = page.locator("#schedule-heading")
    for key, found in {"ArrowRight": "round 1 of 6", "End": "round 6 of 6", "ArrowLeft": "round 5 of 6",
                       "Home": "start"}.items():
        page.keyboard.press(key)
        assert heading.inner_text() == found
    page.keyboard.press("Control+ArrowRight")
    assert heading.inner_text() == "start"


def test_sixteen_ranks_are_colours_and_tell_details_on_demand(opens):
    page = opens("sixteen", width=1400)
    drawing = page.locator("#schedule-drawing")
    assert page.locator("#schedule-heading").inner_text() == "round 7 of 30"
    assert drawing.locator(".cell").count() == 256
    assert drawing.locator(".cell > text").count() == 0
    assert page.evaluate("document.querySelector('#schedule-drawing svg').getBoundingClientRect().width") < 1400
    borders = drawing.locator(".fresh > rect:first-child")
    colours = borders.evaluate_all("all => all.map((each) => each.getAttribute('stroke'))")
    assert len(set(colours)) == 16
    drawing.locator(".fresh").first.hover()
    assert re.fullmatch(r"rank \d+, chunk \d+: \(+g.*", page.locator("#schedule-detail").inner_text())
    page.keyboard.press("d")
    assert drawing.locator(".cell > text").count() == 256
    page.keyboard.press("d")
    page.keyboard.press("End")
    shares = drawing.locator(".share").evaluate_all("all => all.map((each) => each.width.baseVal.value)")
    assert len(shares) == 256
    assert len(set(shares)) == 1


def test_a_stage_is_stepped_through_by_keys(opens):
    page = opens("step", width=1400)
    drawing, heading, rows = page.locator("#step-drawing"), page.locator("#step-heading"), page.locator("#step-rows tr")
    assert heading.inner_text() == "1 of 20: all-gather layers.0"
    assert drawing.locator(".arrow").count() == 4
    assert rows.count() == 4
    held = rows.first.locator("td").all_inner_texts()
    page.keyboard.press("ArrowRight")
    assert heading.inner_text() == "2 of 20: forward layers.0"
    assert drawing.locator(".arrow").count() == 0
    assert drawing.locator(".now").count() == 4
    assert rows.first.locator("td").all_inner_texts() != held
    page.keyboard.press("End")
    assert heading.inner_text() == "20 of 20: between steps"
    assert drawing.locator(".later").count() == 0
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert heading.inner_text().startswith("1 of 20")
    page.keyboard.press(" ")
    assert page.locator("#step-play").inner_text() == "stop"
    page.wait_for_function("() => document.getElementById('step-event').value !== '0'")
    page.keyboard.press(" ")
    assert page.locator("#step-play").inner_text() == "play"
    drawing.locator(".event text").nth(8).click()
    assert heading.inner_text() == "9 of 20: backward layers.2"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400


def test_another_collective_can_be_chosen(opens):
    page = opens()
    options = page.locator("#schedule-name option").all_inner_texts()
    assert options == [f"{name} on 3 ranks" for name in collectives_of("ring")]
    page.locator("#schedule-name").select_option(index=2)
    assert "ring.all_gather on 3 ranks: 2 rounds" in page.locator("#schedule-words").inner_text()


def test_a_diverging_run_leads_to_the_first_element_that_differs(opens):
    page = opens("diverging")
    page.get_by_role("link", name="Where bits first differ").click()
    page.wait_for_function("() => Math.abs(document.getElementById('divergence').getBoundingClientRect().top) < 700")
    assert "is the first element that differs, after step 1." in page.locator("#divergence .verdict").first.inner_text()
    assert page.locator("#divergence mark").count() > 4
    assert page.locator("#losses .mark-rule.role-mark line").count() == 2


def test_words_of_a_scenario_are_shown_and_not_run(opens):
    page = opens("hostile")
    assert "<script>alert(1)</script>" in page.locator("h1").first.inner_text()
    assert page.title().startswith("</script><script>alert(1)")
    assert "<img src=x" in page.locator("#row-1 h3").inner_text()
    assert page.locator("img").count() == 0


def test_textures_are_there_for_those_who_see_no_colour(opens):
    page = opens()
    used = page.evaluate("""() => [...new Set([...document.querySelectorAll('.textures_marks path')]
        .map((path) => path.getAttribute('fill')))]""")
    assert set(used) == {"url(#texture-backward)", "url(#texture-update)", "url(#texture-reduce)"}
    assert page.evaluate("(used) => used.every((each) => document.querySelector(each.slice(4, -1)))", used)


def test_it_prints(opens):
    page = opens("four", 1280, "dark")
    page.emulate_media(media="print")
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert luminance(paper) == 255
    assert page.locator(".controls").is_hidden()
    assert page.pdf()[:5] == b"%PDF-"
