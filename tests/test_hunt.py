"""The random hunt: a slice of it, that it draws every key, and that it catches what is planted."""

import doctest
import json
import time
import tomllib
from itertools import count, islice

import pytest
from msgspec.inspect import BoolType
from tests.hunt.draw import Drawn
from tests.hunt.judge import Fault

from tests.hunt import __main__ as hunt
from tests.hunt import draw, judge, shrink, under_mpi
from tests.training import sabotaged
from zerosim.commands import run as command
from zerosim.scenario import CollectiveScenario, Scenario
from zerosim.show import table
from zerosim.stages import STAGES

SEED = 50_040
SEED_UNDER_MPI = 60_000
CLAIMED = {
    "check.same_weights", "check.volumes", "check.messages", "check.largest_messages",
    "check.between_bytes", "check.kept_bytes", "check.collectives", "check.collective_bytes",
    "check.activations", "check.beyond_peak", "check.beyond_peak_laid_out", "check.test_accuracy", "check.test_loss",
    "expect.same_results", "expect.ranks_agree", "expect.same_bytes_sent", "expect.same_messages",
}
"""Keys that are claimed of an outcome once it is there."""
SMALL = Drawn(0, {
    "world": {"ranks": 2}, "model": {"hidden": [3]},
    "train": {"steps": 2, "micro_batch": 1, "micro_batches": 2}, "check": {"reference": True},
}, flags=(
    "--progress", "none", "--json", "out.json", "--weights", "weights.safetensors", "--trace", "trace.json",
))
COLLECTIVES = Drawn(0, {
    "kind": "collective", "program": [{"calls": ["ring.all_reduce"]}, {"calls": ["mine.py:round_all_reduce"]}],
}, flags=("--progress", "none", "--json", "-"))


@pytest.mark.parametrize("first", range(SEED, SEED + 40, 2))
def test_a_slice_of_the_hunt(first, tmp_path):
    drawn = [each for each in map(draw.draw, range(first, first + 2)) if short(each)]
    assert [(each.number, fault) for each in drawn if (fault := judge.judge(each, tmp_path))] == []


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_slice_of_the_hunt_under_mpi(ranks, tmp_path):
    drawn = (draw.draw(number, mpi=True) for number in count(SEED_UNDER_MPI))
    fitting = islice((each for each in drawn if each.document["world"]["ranks"] == ranks and short(each)), 3)
    batch = [(each, tmp_path / str(each.number)) for each in fitting]
    found = list(under_mpi.judge_under_mpi(batch, ranks))
    assert len(found) == 3
    assert [(each.number, fault) for each, fault in found if fault] == []


def short(drawn):
    """Whether a scenario trains so little that the suite has time for it; `make fuzz` has time for all."""
    train = drawn.document.get("train", {})
    return train.get("steps", 20) * train.get("micro_batches", 4) <= 40


# What is drawn.


OF_PLANS = ("cluster.", "figures.", "check.fits", "check.mfu")
"""What `zerosim plan` reads, and a run does not."""


OF_PIPELINES = tuple(f"{section}.{key}" for section in ("parallel", "variant") for key in (
    "pipeline_ranks", "schedule", "model_chunks", "pipeline_layers"))
"""Keys that `tests/stages/test_pipeline.py` tries, and the hunt draws not yet."""
OF_VOCABULARIES = ("parallel.vocabulary_parallel", "variant.vocabulary_parallel")
"""The vocabulary of a drawn text is what it is, and seldom a multiple of the ranks."""


def said(document, of, prefix=""):
    """Each key that a document says, with its value if there is a choice."""
    for name, value in document.items():
        kind = draw.keys_of(of)[name]
        section = draw.section_of(kind)
        if section is not None:
            for each in value if isinstance(value, list) else [value]:
                yield from said(each, section, f"{name}.")
        else:
            yield f"{prefix}{name}"
            if draw.choices(kind) or isinstance(kind, BoolType):
                yield f"{prefix}{name} = {value}"


def sayable(of, prefix=""):
    """All keys of a kind of scenario, and all values where there is a choice."""
    for name, kind in draw.keys_of(of).items():
        section = draw.section_of(kind)
        if section is not None:
            yield from sayable(section, f"{name}.")
            continue
        yield f"{prefix}{name}"
        if f"{prefix}{name}" not in CLAIMED:
            values = (True, False) if isinstance(kind, BoolType) else draw.choices(kind)
            yield from (f"{prefix}{name} = {value}" for value in values)


@pytest.mark.parametrize(("kind", "schema"), [("collective", CollectiveScenario), ("training", Scenario)])
def test_every_key_and_choice_is_drawn(kind, schema):
    documents = [draw.draw(number, mpi=mpi).document for number in range(500) for mpi in (False, True)]
    found = {key for each in documents if each.get("kind", "training") == kind for key in said(each, schema)}
    sought = {key for key in sayable(schema) if not key.startswith(OF_PLANS + OF_VOCABULARIES + OF_PIPELINES)}
    assert sought - found - CLAIMED == set()


def test_a_key_of_which_nothing_is_known_is_an_error(monkeypatch):
    monkeypatch.delitem(draw.VALUES, (draw.Train, "seed"))
    with pytest.raises(LookupError, match=r"Train.seed is never drawn"):
        [draw.draw(number) for number in range(20)]


def test_scenarios_are_written_as_they_are_drawn_and_drawn_alike_again():
    for number in range(100):
        drawn = draw.draw(number)
        assert tomllib.loads(draw.toml(drawn.document)) == drawn.document == draw.draw(number).document


@pytest.mark.parametrize("module", [draw, judge, shrink])
def test_examples_run(module):
    assert doctest.testmod(module).failed == 0


# What is caught.


def planted(fault):
    def plant(*arguments, **keywords):
        raise fault

    return plant


def test_what_is_sound_is_no_fault(tmp_path):
    assert judge.judge(SMALL, tmp_path) is judge.judge(COLLECTIVES, tmp_path) is None


def test_an_exception_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "show_conclusion", planted(IndexError("index 7 is out of range")))
    assert judge.judge(SMALL, tmp_path).kind == "exit 3: IndexError: index n is out of range"


def test_a_stage_that_forgets_to_publish_is_caught(tmp_path, monkeypatch):
    def step(replica, batch):
        replica.publishing.publish = lambda *arguments: None
        return honest(replica, batch)

    honest = STAGES["zero1"].step
    monkeypatch.setitem(STAGES, "zero1", sabotaged(STAGES, "zero1", step=step))
    assert judge.judge(SMALL, tmp_path).kind.startswith("failed: bits differ")


def changed(name, module, change):
    """A plant: what `module.name` returns is changed."""
    honest = getattr(module, name)

    def plant(*arguments, **keywords):
        found = honest(*arguments, **keywords)
        change(found)
        return found

    return plant


@pytest.mark.parametrize(("change", "kind"), [
    (lambda found: found["rows"][0].pop("ignored"), "documented rows: ['ignored']"),
    (lambda found: found.update(more=1), "documented : ['more']"),
    (lambda found: found["rows"][0]["traffic"][0].pop("rank"), "documented traffic: ['rank']"),
    (lambda found: found["rows"].pop(), "rows"),
    (lambda found: found["rows"][0]["losses"].pop(), "steps"),
    (lambda found: found["rows"][2]["traffic"].pop(), "ranks"),
    (lambda found: found["rows"][1]["traffic"][0].update(sent_bytes=7), "traffic"),
    (lambda found: found["rows"][3].update(weights_sha256="7" * 64), "weights file"),
    (lambda found: found.update(passed=False), "exit code"),
    (lambda found: found["rows"][0].update(volume=7.0), "claims: failed: sends n P (N−n)/N, not n"),
    (lambda found: found["rows"][1].update(trace=None), "no trace"),
    (lambda found: found["rows"][1]["trace"]["steps"][0]["spans"][0].update(end_ns=10**15), "spans"),
])
def test_a_false_document_is_caught(change, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "document", changed("document", command, change))
    assert judge.judge(SMALL, tmp_path).kind == kind


def test_false_trace_events_are_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "trace_events", changed(
        "trace_events", command, lambda found: found["traceEvents"][-1].update(ts=-1.0)))
    assert judge.judge(SMALL, tmp_path).kind == "trace events"


@pytest.mark.parametrize(("shown", "kind"), [("w" * 81, "columns"), ("cut…", "cut"), ("零" * 41, "columns")])
def test_output_that_is_too_wide_is_caught(shown, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "show_heading", lambda *arguments: print(shown))
    assert judge.judge(SMALL, tmp_path).kind == kind


def test_json_that_is_none_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "write_json", lambda path, found: print(json.dumps({"passed": float("nan")})))
    assert judge.judge(COLLECTIVES, tmp_path).account == "NaN is not JSON"


def test_a_run_that_takes_too_long_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "LIMIT_SECONDS", 0.2)
    monkeypatch.setattr(command, "run_on", lambda *arguments, **keywords: time.sleep(10))
    assert judge.judge(SMALL, tmp_path).kind.endswith("TooLong: still ran after n.n s")


def test_a_scenario_that_is_refused_is_caught(tmp_path):
    wrong = SMALL.saying({"world": {"ranks": 3}})
    assert "micro_batches must be a multiple of world.ranks" in judge.judge(wrong, tmp_path).account


def test_other_bits_under_mpi_are_caught(tmp_path):
    judge.judge(SMALL, tmp_path)
    (tmp_path / "mpi.json").write_text((tmp_path / "out.json").read_text())
    (tmp_path / "mpi_trace.json").write_text((tmp_path / "trace.json").read_text())
    assert under_mpi.compared(SMALL, tmp_path) is None
    other = json.loads((tmp_path / "out.json").read_text())
    other["rows"][2]["weights_sha256"] = "7" * 64
    (tmp_path / "mpi.json").write_text(json.dumps(other))
    assert under_mpi.compared(SMALL, tmp_path).kind == "under MPI: other rows"


def test_a_scenario_that_ends_a_start_leaves_the_others_their_turn(tmp_path, monkeypatch):
    starts = []

    def start(folders, ranks):
        starts.append(len(folders))
        for folder in folders:
            if folder.name == "1":
                return 3, "planted 7"
            judge.one_run(SMALL, folder)
            (folder / "out.json").rename(folder / "mpi.json")
            (folder / "trace.json").rename(folder / "mpi_trace.json")
        return 0, ""

    monkeypatch.setattr(under_mpi, "start", start)
    found = list(under_mpi.judge_under_mpi([(SMALL, tmp_path / str(number)) for number in range(3)], 2))
    assert [fault and fault.kind for _, fault in found] == [None, "under MPI: exit 3: planted n", None]
    assert starts == [3, 1]


# What is shown of it.


def test_a_fault_is_shown_small_with_how_to_have_it_again(tmp_path, monkeypatch, capsys):
    def judged(drawn, folder):
        return Fault("planted", "steps are 2") if drawn.document.get("train", {}).get("steps") == 2 else None

    monkeypatch.setattr(hunt, "judge", judged)
    monkeypatch.setattr(hunt, "PLACE", tmp_path)
    monkeypatch.setattr(hunt, "draw", lambda number: Drawn(number, SMALL.document, flags=SMALL.flags))
    assert hunt.main(["--seed", "8", "--count", "1", "--mpi", "0"]) == 1
    said = capsys.readouterr().out
    assert "FAULT planted\nsteps are 2\n\n[train]\nsteps = 2\n\nflags:" in said
    assert "again: make fuzz SEED=8 COUNT=1 MPI=0" in said
    assert (tmp_path / "fault-8" / "scenario.toml").read_text() == "[train]\nsteps = 2\n"
