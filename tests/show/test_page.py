"""The page of a run: everything in order, nothing from elsewhere, and no word of a scenario taken for HTML."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pages import Seen, added_otherwise, hostile, outcome, refused, values
from tests.training import scenario
from zerosim.commands.cli import main
from zerosim.show import pictures, shown
from zerosim.show.document import TURNS
from zerosim.show.page import page as page_of


@pytest.fixture(scope="module")
def four():
    return outcome()


@pytest.fixture(scope="module")
def seen(four):
    return Seen(page_of(four))


def test_its_sections_are_in_the_order_in_which_one_reads_a_run_and_it_loads_nothing(seen, four):
    assert seen.ids == ["table", "step", "traffic", "losses", "origin"]
    assert seen.text.index(four.verdict) < seen.text.index("Results")
    for words in (four.command, four.rows[3].weights_sha256, four.versions["numpy"]):
        assert words in seen.text
    assert (seen.loads, seen.policy[:20]) == ([], "default-src 'none'; ")
    assert Seen('<img src="http://a.example/b.png"><a href="c.html">').loads == ["http://a.example/b.png", "c.html"]


def test_every_picture_has_its_numbers_in_a_table_below_it(four, seen):
    tables = [pictures.numbers(spec) for spec in seen.pictures.values()]
    assert len(tables) == 1 + 2 * 4 + 1 + 1 + 1
    assert seen.tags.count("details") == len(tables) + 1, "and the scenario"
    assert sum(len(table["rows"]) for each in tables for table in each) > 500
    lines = page_of(four).split("<summary>the numbers: memory of a rank between steps, by kind")[1]
    for row in four.rows:
        kept = row.fullest.resting_bytes["gradients"]
        assert f'<tr><th scope="row">{row.name}</th><td class=" ">gradients</td><td class=" ">{kept}</td></tr>' in lines


def test_every_span_and_both_ends_of_every_message_are_in_it(four):
    for row in four.rows:
        spans = values(pictures.timeline(row, pictures.Axis(four.rows)))
        drawn = [each for each in spans if each["activity"] != "wait"]
        assert len(drawn) == sum(span.lane != "collectives" for step in row.traced for span in step.spans)
        ends = {}
        for each in drawn:
            ends.setdefault(each["_message"], []).append(each)
        messages = {number: both for number, both in ends.items() if number >= 0}
        assert len(messages) == sum(rank.messages for rank in row.traffic) // 4
        assert all(one["bytes"] == other["bytes"] and one["unit"] == other["unit"] for one, other in messages.values())
        assert 4 * sum(each["bytes"] for each in values(pictures.partners(row))) == sum(
            rank.sent_bytes for rank in row.traffic)


def test_copies_to_the_host_have_a_lane_of_their_own():
    row = outcome(ranks=1, micro_batches=1, stages=("zero1",), offload_optimizer="host").rows[0]
    lanes = {each["lane"] for each in values(pictures.timeline(row, pictures.Axis([row])))}
    assert lanes & {"rank 0 offloads", "rank 0 computes"}
    assert any(step.moving_ns or step.waiting_for_memory_ns for step in row.traced)


def test_pictures_of_time_end_together_and_show_the_fullest_moment(four):
    along = pictures.Axis(four.rows)
    until = along.until
    for row in four.rows:
        specs = [pictures.timeline(row, along), pictures.memory(row, along)["layer"][0]]
        assert [spec["encoding"]["x"]["scale"]["domain"] for spec in specs] == [[0, until]] * 2
        assert max(each["until"] for each in values(specs[0])) <= until
        totals = {}
        for each in values(specs[1]):
            totals[each["ms"]] = totals.get(each["ms"], 0) + each["bytes"]
        assert max(totals.values()) == row.fullest.peak_bytes["total"]


def test_where_times_mislead_a_page_shows_the_order_of_events_and_no_ratio(four):
    run = replace(four, world={"kind": "mpi", "ranks": 3, "library": "", "shared_cores": 2})
    assert run.times_mislead
    page = Seen(page_of(run)).text
    busy = [replace(row, trace=replace(row.trace, steps=[
        replace(step, computation_ns=step.end_ns - step.begin_ns) for step in row.trace.steps])) for row in four.rows]
    timed = replace(four, rows=busy, world={"kind": "mpi", "ranks": 3, "library": ""})
    assert not timed.times_mislead
    assert ["Hidden: the share" in text for text in (Seen(page_of(timed)).text, page)] == [True, False]
    along = pictures.Axis(run.rows, ordered=True)
    for row in run.rows:
        spans = values(pictures.timeline(row, along))
        assert all(0 <= each["event"] <= each["until"] < along.until for each in spans)


def test_a_diverging_run_points_at_the_first_element(monkeypatch):
    found = added_otherwise(monkeypatch, stages=("zero2",), ranks=4, micro_batches=8)
    first, text = found.rows[0].first_divergence, Seen(page_of(found)).text
    assert f"{found.rows[0].name}: {first.words}" in text
    assert all(f"{side} adds {words}" in text for side, words in first.order_of_addition.items())
    assert "FAILED" in text


def test_words_of_a_scenario_are_never_html():
    run = hostile()
    page = page_of(run)
    seen = Seen(page)
    assert seen.tags.count("script") == Seen(page_of(outcome(scenario(stages=("zero3",))))).tags.count("script") == 2
    assert "img" not in seen.tags
    assert seen.text.count("<script>alert(1)") >= 6
    assert "{{ 7 * 7 }}" in seen.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.split("<script>")[0])
    for name in ("kept", "step-1"):
        assert "<script" not in pictures.svg(pictures.files(run.rows)[name])


def test_of_very_many_ranks_the_first_are_drawn(four, monkeypatch):
    monkeypatch.setattr(pictures, "DRAWN_RANKS", 2)
    assert "Stage III: ranks 0 to 1 are drawn, of 3." in Seen(page_of(four)).text
    assert {each["lane"].split()[1] for each in values(pictures.timeline(four.rows[0], pictures.Axis(four.rows)))} == {
        "0", "1"}


def test_times_of_ranks_that_take_turns_are_said_to_be_none(four):
    assert four.world["kind"] == "local"
    assert TURNS in page_of(four)
    assert TURNS not in page_of(replace(four, world=four.world | {"kind": "mpi"}))


def test_losses_that_are_no_numbers_are_left_out(four):
    odd = [replace(row, losses=[row.losses[0], math.nan, math.inf, -math.inf] if row.name == "Stage I" else row.losses)
           for row in four.rows]
    steps = [each["step"] for each in values(pictures.losses(odd))]
    assert (steps.count(1), steps.count(3)) == (2, 1)


def test_pictures_for_files_have_marks_and_are_the_same_each_time(four):
    of_rows = {f"{what}-{number}" for what in ("step", "memory", "partners") for number in range(1, 5)}
    assert {*pictures.files(four.rows)} == {"kept", "sent", "losses"} | of_rows
    files = pictures.files(four.rows[3:])
    drawn = {name: pictures.svg(spec) for name, spec in files.items()}
    assert [name for name, picture in drawn.items() if len(re.findall("<(?:path|rect)", picture)) < 5] == []
    assert drawn["step-1"] == pictures.svg(files["step-1"])
    assert "Stage III" in drawn["step-1"]


def test_a_run_and_its_outcome_give_the_same_tables_page_and_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from zerosim.stages.zero2 import SHARDED, step as zero2_step\n")
    Path("a.toml").write_text(
        "title = 'A'\n[world]\nranks = 2\n[train]\nsteps = 2\n[[variant]]\nstage = 'mine.py:zero2_step'\n"
        "[[variant]]\nstage = 'zero3'\n[check]\ntest_accuracy = 0.99\n")
    run = ["run", "a.toml", "--set", "train.steps=3", "--progress", "none", "-v"]
    assert main([*run, "--report", "a.html", "--json", "a.json"]) == 1
    ran = capsys.readouterr().out.splitlines()
    assert main(["report", "a.json", "-v"]) == 0
    _, _, *tables = capsys.readouterr().out.splitlines()
    assert tables == ran[ran.index(tables[0]):]
    assert main(["report", "a.json", "--html", "b.html", "--picture", "kept=a.png"]) == 0
    assert Path("a.html").read_bytes() == Path("b.html").read_bytes()
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(shown, "pixels", str.encode)    # the PNG above was drawn
    assert "--pictures: cannot write" in refused(capsys, "report", "a.json", "--pictures", "pictures")
    Path("pictures").mkdir()
    assert main(["report", "a.json", "--pictures", "pictures"]) == 0
    assert Path("pictures/step-1.svg").exists()
    found = json.loads(Path("a.json").read_text())
    assert found["command"] == "zerosim run a.toml --set train.steps=3"
    assert found["rows"][0]["trace"]["steps"][0]["step"] == 3
    assert {*found["rows"][0]["own_stage"]["sharded"]} == {"gradients", "optimizer"}
    capsys.readouterr()
    assert "there is no picture 'step-9'; there are kept, sent, losses" in refused(
        capsys, "report", "a.json", "--picture", "step-9=a.svg")
