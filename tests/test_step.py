"""`zerosim show` of a stage's step: its events are those of its text, and what is wrong with a learner's is said."""

import json

import pytest

from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.core.errors import UsageError
from zerosim.extend import stage
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OUT, RankStep, Span, Trace
from zerosim.show.recorded import recorded_stage, step_of
from zerosim.show.step import events_of
from zerosim.stages import STAGES, zero3

FORWARD = ["forward layers.0", "forward layers.1", "forward layers.2", "loss"]


def test_stage_iii_gathers_uses_and_lets_go():
    found = recorded_stage("zero3", 4)
    assert found.verdict == "PASSED: every bit equal to one process"
    words = [event.words for event in found.events]
    assert [each for each in words if each in FORWARD] == FORWARD
    assert words[:3] == ["all-gather layers.0", "forward layers.0", "all-gather layers.1"]
    assert words[-1] == "between steps"
    gathers = [event for event in found.events if event.what == "all_gather"]
    assert len(gathers) == 6
    for event in gathers:
        assert [list(did.sent) for did in event.ranks] == [[1], [2], [3], [0]]
    rest = found.events[-1].ranks[0].held
    weights = {event.words: event.ranks[0].held["parameters"] for event in found.events}
    assert weights["forward layers.0"] > weights["loss"] == rest["parameters"]
    assert found.document()["moments"][0]["ranks"][3]["sent_bytes"] == {"0": gathers[0].ranks[3].sent[0]}


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_kept_between_steps_falls_from_stage_to_stage(stage):
    kept, full = (recorded_stage(each, 2).events[-1].ranks[0].held for each in (stage, "ddp"))
    for kind in ("parameters", "gradients", "optimizer"):
        assert kept[kind] == (full[kind] // 2 if kind in STAGES[stage].sharded else full[kind])


def test_a_step_that_trains_otherwise_fails():
    @stage(sharded=("optimizer", "gradients", "parameters"))
    def skips(replica, batch):
        replica.update = lambda unit, weights: None
        return zero3.step(replica, batch)

    verdict = step_of(skips, 2).verdict
    assert verdict.startswith("FAILED: after step 1, rank 0 holds layers.")


def test_ranks_that_do_different_things_are_not_drawn_as_one():
    def rank(number, what):
        return RankStep(number, 1, 0, 9, [Span(number, COMPUTATION, 1, what, "", 0, 5)], [(0, {})])

    alike = events_of(Trace([], [rank(1, "loss"), rank(0, "loss")]))
    assert [event.what for event in alike] == ["loss", "between steps"]
    with pytest.raises(UsageError, match="ranks did different things"):
        events_of(Trace([], [rank(0, "loss"), rank(1, "update")]))


def test_messages_outside_of_any_collective_are_an_event_of_their_own():
    spans = [Span(0, OUT, 1, "", "", 1, 2, 40, 1), Span(0, COLLECTIVES, 1, "all_gather", "u", 3, 6),
             Span(0, OUT, 1, "all_gather", "u", 4, 5, 8, 1), Span(0, COMPUTATION, 1, "forward", "u", 7, 8)]
    found = events_of(Trace([], [RankStep(0, 1, 0, 9, spans, [(0, {"parameters": 1}), (7, {"parameters": 5})])]))
    assert [(each.words, each.letter, each.ranks[0].sent, each.ranks[0].held) for each in found] == [
        ("messages", "M", {1: 40}, {"parameters": 1}), ("all-gather u", "G", {1: 8}, {"parameters": 1}),
        ("forward u", "F", {}, {"parameters": 5}), ("between steps", "", {}, {"parameters": 5})]


HEAD = 'from zerosim.extend import stage\n@stage(sharded=("optimizer", "gradients"))\n'
SKELETON = HEAD + "def zero2_step(replica, batch):\n    raise NotImplementedError\n"
BROKEN = HEAD + "def zero1_step(replica, batch):\n    return replica.nothing\n"
FILE = HEAD + "def zero2_step(replica, batch): return step(replica, batch)\nfrom zerosim.stages.zero2 import step\n"


def test_the_command_draws_a_stage_and_a_learners_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in {"skeleton": SKELETON, "broken": BROKEN, "mine": FILE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert main(["show", "zero1", "--ranks", "6", "--round", "2", "--json", "a.json", "--html", "a.html"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert max(map(len, out)) <= 100
    assert out[-3].startswith("  2 forward layers.1")
    assert out[-2] == "left out: 2 ranks; --html FILE draws them all"
    assert len(json.loads((tmp_path / "a.json").read_text())["moments"][0]["ranks"]) == 6
    assert "rank 5" in (tmp_path / "a.html").read_text()
    assert main(["show", "mine.py:zero2_step", "--ranks", "2"]) == 0
    assert capsys.readouterr().out.startswith("mine.py:zero2_step: a step on 2 ranks")
    for words, said in {
        "skeleton.py:zero2_step": "zerosim: skeleton.py:zero2_step is not written yet",
        "broken.py:zero1_step": "AttributeError: 'Replica' object has no attribute 'nothing', in line 4",
        "mine.py:zero3_step": "has no function 'zero3_step'",
        "zero1 --round 99": "has events 1 to ",
        "zero1 --root 0": "remove --root",
        "zero1 --svg a.svg": "remove --svg: it is for a collective, not for a stage",
    }.items():
        assert said in refused(capsys, "show", *words.split())
