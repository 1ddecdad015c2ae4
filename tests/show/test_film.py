"""Films say what was recorded: cells and messages, where a program goes wrong, and stages at the same computation."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import zerosim as zs
from tests.pages import HOSTILE, Seen
from tests.show.films import astray_all_reduce, rebuilt
from zerosim.collectives import ring
from zerosim.core.comm import left, right
from zerosim.core.errors import UsageError
from zerosim.core.terms import leaves
from zerosim.extend import stage
from zerosim.proofs.schedule import scheduled
from zerosim.proofs.subject import subject
from zerosim.proofs.symbolic_step import contents_of
from zerosim.show.drawing import shown_schedule
from zerosim.show.film import COLOURS, film, of_passes, of_schedule, together
from zerosim.show.recorded import panel_of, recorded_passes, recorded_stage, shown_steps, stage_in
from zerosim.stages import STAGES, zero2
from zerosim.stages.schedules import SCHEDULES
from zerosim.verdict.pipelines import BRACKETS, bubble_due, held_due, pass_lines


@pytest.fixture(scope="module")
def panels():
    return [panel_of(recorded_stage(name, 3)) for name in STAGES]


def test_a_page_has_what_the_code_of_a_stage_held_on_symbols():
    """Every cell of every frame: its ranks, its chunk, and that it is empty where nothing is held."""
    for name in STAGES:
        step = recorded_stage(name, 3)
        contents = contents_of(step.config)
        (data,) = json.loads(json.dumps(film([panel_of(step)])))["panels"]
        for moment, cells in zip(contents.moments, rebuilt(data), strict=True):
            held = {(rank, cell): content for rank, of in enumerate(moment.ranks)
                    for cell, content in enumerate(of.cells) if content is not None}
            assert {*held} == {*cells}
            for (rank, cell), content in held.items():
                text, tone, parts, looks = cells[rank, cell]
                assert tone == COLOURS[cell % 3]
                assert "wrong" not in looks
                if contents.rows[cell // 3][0] == "gradients":
                    ranks = [leaf.rank for leaf in leaves(content) if leaf.rank >= 0]
                    assert parts == ranks
                    assert text == ("Σ" if len(ranks) == 3 else "+".join(map(str, ranks)))
                else:
                    assert (parts or None, "′" in text) == (None, getattr(content, "updates", 0) == 2)


def test_stages_beside_each_other_are_at_the_same_computation(panels):
    """Every frame of every stage is new once, in order; a reduce-scatter is one motion of all four."""
    steps = [*together(panels)]
    for number, panel in enumerate(panels):
        assert [step["at"][number] for step in steps if step["new"][number]] == [*range(len(panel.frames))]
    by_words = {}
    for step in steps:
        moved = [panel.frames[place] for panel, place, is_new in zip(panels, step["at"], step["new"], strict=True)
                 if is_new]
        assert len({frame.passes for frame in moved}) == 1
        by_words.setdefault(moved[0].words, []).append(step["new"])
    assert by_words["backward layers.1"] == [[True] * 4]
    assert by_words["reduce-scatter gradients of layers.1, round 2 of 2"] == [[True] * 4]
    assert by_words["all-gather gradients of layers.1, round 1 of 2"] == [[True, False, False, False]]
    gathers = [[False, False, False, True]] * 2 + [[False, True, True, False]]
    assert by_words["all-gather weights of layers.1, round 1 of 2"] == gathers


def test_an_all_reduce_is_the_same_motion_in_two_parts(panels):
    """The chunks that DDP all-gathers as gradients take the ways of Stage I's weights."""
    ways = [[(source, left % 3, to, into % 3) for frame in panel.frames if frame.words.startswith(words)
             for source, left, to, into, _, _ in frame.moves]
            for panel, words in ((panels[0], "all-gather gradients of layers.0"),
                                 (panels[1], "all-gather weights of layers.0"))]
    assert ways[0] == ways[1]
    assert len(ways[0]) == 6


def test_bars_of_all_stages_have_one_scale(panels):
    data = film(panels)
    longest = max(sum(length for _, length in bars[0][2])
                  for panel in panels for frame in panel.frames for bars in frame.bars)
    assert data["longest"]["memory, kB"] == longest
    assert [panel.frames[-1].bars[0][1][1] for panel in panels] == ["35.1", "35.1", "35.1", "52.6"]


def twice_all_reduce(comm, chunks):
    ring.reduce_scatter(comm, chunks)
    comm.exchange(chunks[0], to=right(comm), into=chunks[0], source=left(comm), reduce=np.add)


def short_reduce_scatter(comm, chunks):
    comm.exchange(chunks[(comm.rank - 1) % 3], to=right(comm), into=chunks[(comm.rank - 2) % 3], source=left(comm),
                  reduce=np.add)


def storing_reduce_scatter(comm, chunks):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step - 1) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm))


@pytest.mark.parametrize(("program", "size", "first", "cells"), [
    (storing_reduce_scatter, 3, 1, [(0, 1, "2"), (1, 2, "0"), (2, 0, "1")]),
    (astray_all_reduce, 4, 2, [(3, 0, "2[1]+3")]), (twice_all_reduce, 2, 2, [(0, 0, "1+1+0")]),
    (short_reduce_scatter, 3, 1, [(0, 0, "0"), (1, 1, "1"), (2, 2, "2")])])
def test_a_wrong_program_is_red_where_it_goes_wrong(program, size, first, cells):
    """In the round of the first sum that no result has, and at the end what is missing."""
    frames = of_schedule(scheduled(subject(program), size)).frames
    assert [frame.wrong for frame in frames].index(True) == first
    red = [(rank, place, cell.text) for rank, of in enumerate(frames[first].cells)
           for place, cell in enumerate(of) if "wrong" in cell.looks]
    assert red[: len(cells)] == cells
    assert frames[-1].wrong
    said = shown_schedule(scheduled(subject(program), size)).page()
    name = "vector" if len(frames[0].cells[0]) == 1 else f"chunk {cells[0][1]}"
    assert [f"wrong: rank {cells[0][0]}, {name}" in step["notes"] for step in Seen(said.html).films[0]["steps"]].index(
        True) == first


def test_several_stages_are_one_result(tmp_path):
    result = zs.show("ddp,zero3", 2)
    assert result.passed
    assert result.document["schema"] == "zerosim.steps/1"
    assert {row["stage"] for row in result.rows()} == {"DDP", "Stage III"}
    assert [line for line in str(result).splitlines() if line.startswith(("DDP:", "Stage III:"))]
    result.page().save(str(tmp_path / "page.html"))
    seen = Seen((tmp_path / "page.html").read_text())
    assert [panel["title"] for panel in seen.films[0]["panels"]] == ["DDP", "Stage III"]
    assert "unsafe-eval" not in seen.policy
    assert seen.loads == []


def scaled(factor):
    @stage(sharded=("optimizer", "gradients"))
    def scales(replica, batch):
        reduce = replica.reduce
        replica.reduce = lambda unit, full: reduce(unit, full * factor if unit.name == "layers.1" else full)
        return zero2.step(replica, batch)

    return scales


def test_a_gradient_that_is_scaled_is_red_once_it_is_kept():
    panel = panel_of(recorded_stage(stage_in(scaled(0.5), None), 2))
    red = [frame for frame in panel.frames if frame.wrong]
    assert (red[0].words, red[-1]) == ("backward layers.0", panel.frames[-1])
    assert {panel.name_of(place) for cells in red[0].cells for place, cell in enumerate(cells)
            if cell and "wrong" in cell.looks} == {"gradients layers.1, chunk 0", "gradients layers.1, chunk 1"}


def test_a_right_step_without_symbols_and_many_ranks_are_printed_only():
    result = zs.show(scaled(1.0), 2)
    assert "reduce-scatter layers.0" in str(result)
    with pytest.raises(UsageError, match=r"only printed: CollectiveError: g\d was multiplied by 1.0: symbols can only"):
        result.page()
    with pytest.raises(UsageError, match="at most 16 ranks are drawn, not 17"):
        zs.show("zero1", 17).page()


@pytest.mark.parametrize("name", [*SCHEDULES])
def test_a_pipeline_is_at_each_time_where_its_lines_are(name):
    """A new cell for each pass of a line; what is kept between is what the formula says; a pass comes from its rank."""
    passes = recorded_passes(name, 3)
    panel = of_passes(name, passes)
    lines = [[line[at : at + 4].strip() or "." for at in range(0, 4 * len(panel.frames), 4)]
             for line in pass_lines(passes)]
    for time, frame in enumerate(panel.frames):
        for rank, cells in enumerate(frame.cells):
            new = [BRACKETS[cell.text].format(place // panel.across) for place, cell in enumerate(cells)
                   if cell and "new" in cell.looks]
            assert new == [word for word in [lines[rank][time]] if word != "."]
        for source, place, to, into, _, carried in frame.moves:
            assert frame.cells[to][into] == carried
            before = panel.frames[time - 1].cells[source][place]
            assert (before and before.text) in (carried.text, {"F": "F", "B": "W"}[carried.text], None)
    assert panel.frames[-1].cells == [[None] * 6 * panel.across] * 3
    kept = [max(int(frame.bars[rank][0][1]) for frame in panel.frames) for rank in range(3)]
    assert kept == [held_due(name, rank, 3, 6, panel.across) for rank in range(3)]
    waited = sum(int(bars[1][1]) for bars in panel.frames[-1].bars)
    assert Fraction(waited, 3 * (len(panel.frames) - 1)) == bubble_due(3, 6, panel.across, name)


def test_several_schedules_are_one_result():
    result = zs.show("gpipe,1f1b", 2)
    assert [panel["title"] for panel in Seen(result.page().html).films[0]["panels"]] == ["gpipe", "1f1b"]
    assert {row["schedule"] for row in result.rows()} == {"gpipe", "1f1b"}
    assert "1f1b: the ranks wait 1/5 of the time" in result.verdict
    assert zs.show("zb_h1", 2).picture().svg.count(">W</text>") >= 8
    with pytest.raises(UsageError, match="shown on 2 to 16 ranks, not on 1"):
        zs.show("1f1b", 1)


def test_hostile_names_are_words():
    seen = Seen(shown_steps([
        replace(recorded_stage("zero1", 2), title=HOSTILE, about=HOSTILE, fault=HOSTILE)]).page().html)
    assert (seen.tags.count("script"), "img" in seen.tags, seen.loads) == (1, False, [])
    assert seen.text.count("<script>alert(1)") >= 4
    assert seen.films[0]["panels"][0]["title"] == HOSTILE
