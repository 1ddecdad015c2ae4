"""Benchmarks measure what they say, on a model so small that nobody waits; only a planted pause is a time."""

import json
import tempfile
import time
import tomllib
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from tests.mpi.launch import mpirun
from tests.pages import refused
from zerosim.checkpoint.saving import Saving
from zerosim.cli import main
from zerosim.collectives.table import ALGORITHMS
from zerosim.commands.benches import spent
from zerosim.commands.benches import timings as bench
from zerosim.commands.benches.checkpoints import remove_before_last, saves, time_checkpoints, writes
from zerosim.commands.benches.cluster import measured_toml
from zerosim.commands.benches.collectives import COLLECTIVES, GLOO, OWN, fit, measured_switches, time_collectives
from zerosim.commands.benches.pictures import bandwidth_picture
from zerosim.commands.benches.samples import Sample, on_rank_0, overhead
from zerosim.commands.benches.spent import time_spent
from zerosim.commands.benches.tables import SUBJECTS, show_collectives, show_samples
from zerosim.commands.benches.timings import RANKS, Workload, time_ledgers, time_steps, time_worlds
from zerosim.instruments.observed import Observed
from zerosim.optim import optimizers
from zerosim.scenario import ModelKeys, Scenario
from zerosim.stages import STAGES
from zerosim.worlds.local import spawn

MLP = Workload(ModelKeys(hidden=(4,)), batch=4, inputs=5, outputs=3)
TRANSFORMER = Workload(ModelKeys(kind="transformer", layers=1, width=4, heads=2), batch=4, inputs=5, outputs=7)


def shown(show, *given):
    console = Console(file=StringIO(), width=120)
    show(console, *given)
    return console.file.getvalue()


def rows_of(samples):
    return [each.document() for each in samples]


@pytest.mark.parametrize(("workload", "words"), [
    (MLP, "5-4-3 MLP, AdamW, batch 4"), (TRANSFORMER, "1-block transformer, width 4, AdamW, 4 sequences of 5 tokens")])
@pytest.mark.parametrize(("what", "measure"), [("step", time_steps), ("ledger", time_ledgers), ("spent", time_spent)])
def test_every_stage_is_timed_in_every_round(what, measure, workload, words):
    measured, nothing = spawn(lambda comm: on_rank_0(comm, measure, 3, workload), ranks=2)
    assert nothing is None
    assert list(dict.fromkeys(each.names["stage"] for each in measured)) == list(STAGES)
    for each in measured:
        assert {len(rounds) for rounds in each.rounds.values()} == {3}
        if each.ratios:
            low, high = each.document()["ratio_range"]
            assert 0 < low <= each.document()["ratio"] <= high
    printed = shown(show_samples, what, rows_of(measured), workload)
    assert all(title in printed for title in [words, *(row.title for row in STAGES.values())])


LIBRARIES = (OWN, GLOO)


def nothing_done(x, out):
    """Stands for a library's collective."""


def test_every_algorithm_of_a_collective_is_timed_at_every_size():
    sizes = (256, 1024)
    libraries = dict.fromkeys(LIBRARIES, dict.fromkeys(COLLECTIVES, nothing_done))
    found, *others = spawn(lambda comm: on_rank_0(comm, time_collectives, libraries, 2, sizes), ranks=3)
    assert others == [None, None]
    rows = [row for row in ALGORITHMS.values() if row.collective in COLLECTIVES and row.serves(3) and not row.per_host]
    assert {len(rounds) for each in found for rounds in each.rounds.values()} == {2}
    found = rows_of(found)
    assert {(each["collective"], each["algorithm"]) for each in found if each["algorithm"] not in LIBRARIES} == {
        (row.collective, row.name) for row in rows}
    for figures in found:
        assert figures["bytes"] in (252, 1020)
        assert 0 < figures["bus_bandwidth"] <= figures["algorithm_bandwidth"] * 4 / 3 + 1
    chosen = {(each["collective"], each["bytes"]): each["algorithm"] for each in found if each["chosen"]}
    assert len(chosen) == len(COLLECTIVES) * len(sizes)
    said = shown(show_collectives, found, "a library", measured_switches(found), fit(found))
    assert all(f"{collective} on 3 ranks" in said for collective in COLLECTIVES)
    assert "switch_at({\"all_reduce\": " in " ".join(said.split())
    lines = bandwidth_picture(found, "a library")["data"]["values"]
    assert len(lines) == len(found)
    assert {"a library", "gloo", "ring"} <= {line["algorithm"] for line in lines}
    read = tomllib.loads(measured_toml(fit(found), measured_switches(found)))["cluster"]
    assert 1e3 * read["short_gather_kb"] in (0, *sizes)
    assert read["inside"]["latency_us"] > 0


def test_saving_is_timed_beside_a_plain_write(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found, nothing = spawn(lambda comm: on_rank_0(comm, time_checkpoints, 2, MLP), ranks=2)
    assert nothing is None
    assert [each.names["what"] for each in found] == ["not saved", "saved"]
    for each in found:
        assert [len(rounds) for rounds in each.rounds.values()] == [2, 2]
        assert min(each.ratios) > 0
    assert "Stage III, not saved" in shown(show_samples, "checkpoint", rows_of(found), MLP)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_plainly_are_the_bytes_of_a_checkpoint(tmp_path):
    def program(comm):
        trained = bench.plain(comm, "zero3", MLP)
        next(bench.steps(trained))
        saving = Saving(Scenario(), "", 1, 1, {trained[0].config.name: tmp_path / "saved"})
        for each in (writes(comm, trained[1], tmp_path), saves(comm, *trained, saving)):
            next(each)
            next(each)
        saving.removal.finish()
        remove_before_last(tmp_path, comm.rank)

    spawn(program, ranks=2)
    (saved,) = (tmp_path / "saved").iterdir()
    for rank in range(2):
        losses = 4 * (rank == 0)
        arrays = load_file(saved / f"rank-{rank}.safetensors").values()
        assert (tmp_path / f"{rank}-00000001").stat().st_size == sum(each.nbytes for each in arrays) - losses > 0
        assert not (tmp_path / f"{rank}-00000000").exists()


def test_the_ledger_is_there_in_one_step_and_not_in_the_other():
    def program(comm):
        counted, plain = bench.counted(comm, "zero3", MLP), bench.plain(comm, "zero3", MLP)
        for trained in (counted, plain):
            next(bench.steps(trained))
        (traffic,), (ledger,) = counted[1].comm.instruments, counted[1].allocate.instruments
        return traffic.sent_bytes, ledger.total, plain[1].comm is comm, plain[1].allocate

    for sent_bytes, total, bare, allocate in spawn(program, ranks=2):
        assert sent_bytes > 0
        assert total > 0
        assert bare
        assert allocate is bench.allocate


def test_a_traced_step_notes_spans_and_what_that_takes_is_clocked():
    noted = []

    class Noting(bench.Tracer):
        def end(self, step):
            noted.append(super().end(step))
            return noted[-1]

    def program(comm):
        calls = bench.ClockedComm(Noting(comm.rank)), bench.ClockedComm(bench.Ledger())
        seconds, rest = bench.with_and_without(comm, bench.traced_steps(*calls, comm, "zero2", MLP), calls)
        return [each.seconds > 0 for each in calls], seconds > rest

    assert spawn(program, ranks=2) == [([True, True], True), ([True, True], False)]
    assert [len(step.spans) > 10 for step in noted] == [True, True]


def test_a_ratio_is_taken_within_its_round():
    step = {"step_seconds": [3.0, 8.0], "alone_seconds": [4.0, 8.0]}
    assert Sample({"stage": "ddp"}, step, shared_by=RANKS).ratios == [1.5, 2.0]
    assert overhead("ddp", "traced", [3.0, 8.0, 1.0], [2.0, 8.0, 2.0]).document() == {
        "stage": "ddp", "what": "traced", "with_seconds": 3.0, "without_seconds": 2.0,
        "ratio": 1.0, "ratio_range": [0.5, 1.5],
    }


def test_the_worlds_do_what_is_timed():
    durations = time_worlds(ranks=6, proved_ranks=4, examples=5)
    assert [each.names["what"] for each in durations] == [
        "ring all-reduce of shapes on 6 ranks", "proof of the ring all-reduce on 4 ranks",
        "5 examples of a law on up to 8 ranks",
    ]
    assert "on 4 ranks" in shown(show_samples, "worlds", rows_of(durations))


def test_figures_are_written_as_json(monkeypatch, tmp_path):
    nothing = replace(SUBJECTS["worlds"], measure=lambda: [Sample({"what": "nothing"}, {"seconds": [0.5]})])
    monkeypatch.setitem(SUBJECTS, "worlds", nothing)
    monkeypatch.setattr("zerosim.commands.bench.launched", lambda: None)
    assert main(["bench", "worlds", "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "schema": "zerosim.bench/1", "tasks": [{"what": "nothing", "seconds": 0.5}],
    }


WHAT = {"step": [None], "ledger": ["counted", "traced", "calls of the trace", "with checksums"]}


@pytest.mark.mpi
@pytest.mark.parametrize(("what", "model"), [("step", "mlp"), ("step", "transformer"), ("ledger", "mlp")])
def test_the_command_measures_on_real_processes(what, model, tmp_path):
    out = tmp_path / "out.json"
    small = (
        "import sys; from tests.test_bench import MLP, TRANSFORMER; "
        "from zerosim.commands.benches.timings import WORKLOADS; "
        "from zerosim.cli import main; WORKLOADS.update(mlp=MLP, transformer=TRANSFORMER); sys.exit(main())")
    done = mpirun(2, ["-c", small, "bench", what, "--model", model, "--rounds", "1", "--json", str(out)])
    assert done.returncode == 0, done.stderr
    rows = [(each["stage"], each.get("what")) for each in json.loads(out.read_text())["stages"]]
    assert rows == [(stage, each) for stage in STAGES for each in WHAT[what]]


@pytest.mark.mpi
def test_the_local_world_is_not_measured_under_mpirun():
    done = mpirun(2, ["-m", "zerosim", "bench", "worlds"])
    assert done.returncode == 2
    assert "run it without mpirun" in done.stderr


def test_the_switch_is_where_the_short_algorithm_first_falls_behind():
    seconds = {"doubling": (1.0, 3.0, 1.0), "ring": (2.0, 2.0, 2.0)}
    found = [{"collective": "all_gather", "algorithm": name, "bytes": 1 << 10 + power, "seconds": each}
             for name, of_sizes in seconds.items() for power, each in enumerate(of_sizes)]
    assert measured_switches(found) == {"all_gather": 1 << 10}


@pytest.mark.parametrize(("flags", "words"), [
    (["plan", "--runs", "some.csv"], "bench plan compares no runs; --runs is for bench published"),
    (["plan", "--toml", "x.toml"], "bench plan measures no cluster; remove --toml, or use bench cluster or bench "),
    (["step", "--svg", "x.svg"], "bench step draws nothing; --svg is for bench collectives and bench wires"),
    (["published", "--runs", "none.csv"], "none.csv: no file of published runs: No such file"),
])
def test_flags_of_other_subjects_are_refused(flags, words, capsys):
    assert words in refused(capsys, "bench", *flags)


WIDER = Workload(ModelKeys(kind="transformer", layers=1, width=8, heads=2), batch=2, inputs=4, outputs=5)
PAUSE = 0.02


def shares(stage: str) -> dict[str, float]:
    """The seconds of rank 0's second step, by kind."""

    def program(comm):
        steps = spent.watched(comm, stage, WIDER)
        next(steps)
        return next(steps)

    return dict(spawn(program, ranks=2)[0])


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_every_kind_of_work_takes_time_in_every_stage(stage):
    found = shares(stage)
    assert set(found) == set(spent.KINDS)
    assert all(seconds > 0 for seconds in found.values())


def test_a_slow_update_is_seen_as_update(monkeypatch):
    adamw = optimizers.OPTIMIZERS["adamw"]

    def slow(*arguments, **named):
        time.sleep(PAUSE)
        adamw.formula(*arguments, **named)

    monkeypatch.setitem(optimizers.OPTIMIZERS, "adamw", replace(adamw, formula=slow))
    found = shares("zero1")
    assert found["update"] > PAUSE
    assert found["products"] + found["attention"] + found["other operations"] < PAUSE


def test_a_slow_message_is_seen_as_collectives(monkeypatch):
    exchange = Observed.exchange

    def slow(self, *arguments, **named):
        time.sleep(PAUSE)
        exchange(self, *arguments, **named)

    monkeypatch.setattr(Observed, "exchange", slow)
    assert shares("zero3")["collectives"] > PAUSE


def test_operations_are_told_apart():
    clock = spent.Spent()
    clock.perform(None, np.add, np.ones(2), 1.0)
    assert [*clock.seconds] == ["other operations"]
