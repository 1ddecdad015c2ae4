"""Benchmarks measure what they say, on a model so small that nobody waits."""

import json
import re
import tomllib
from io import StringIO

import pytest
from rich.console import Console

from tests.mpi.launch import mpirun
from tests.pages import refused
from zerosim.collectives.table import ALGORITHMS
from zerosim.commands.benches import samples
from zerosim.commands.benches.collectives import (
    COLLECTIVES,
    OWN,
    fit,
    measured_toml,
    show_collectives,
    time_collectives,
    users_collective,
)
from zerosim.commands.benches.samples import on_rank_0, sample
from zerosim.commands.benches.steps import RANKS, show_steps, time_steps, workload
from zerosim.commands.cli import parse
from zerosim.core.errors import UsageError
from zerosim.proofs.subject import named_subject
from zerosim.scenario import ModelKeys
from zerosim.stages import STAGES
from zerosim.worlds.local import spawn

MLP = workload(ModelKeys(hidden=(4,)), "digits", 4)
TRANSFORMER = workload(ModelKeys(kind="transformer", layers=1, width=4, heads=2, sequence=5), "text", 4)
LIBRARY = dict.fromkeys(COLLECTIVES, lambda x, out: None)
"""Stands for a library's collectives."""


def shown(show, *given):
    console = Console(file=StringIO(), width=120)
    show(console, *given)
    return console.file.getvalue()


@pytest.mark.parametrize(("scenario", "words"), [
    (MLP, "64-4-10 MLP, AdamW, batch 4"), (TRANSFORMER, "transformer of 1 block")])
def test_every_stage_is_timed(scenario, words):
    rows, nothing = spawn(lambda comm: on_rank_0(comm, time_steps, 3, scenario), ranks=2)
    assert nothing is None
    assert [row["stage"] for row in rows] == list(STAGES)
    for row in rows:
        low, high = row["ratio_range"]
        assert 0 < low <= row["ratio"] <= high
    printed = shown(show_steps, rows, scenario)
    assert all(title in printed for title in [words, *(stage.title for stage in STAGES.values())])


def test_every_algorithm_of_a_collective_is_timed_at_every_size(monkeypatch):
    monkeypatch.setattr(samples, "TURN_SECONDS", 0)     # a call makes a turn
    sizes, of_whole_chunks = (256, 1024), (252, 1020)
    rows, *others = spawn(lambda comm: on_rank_0(comm, time_collectives, LIBRARY, 2, sizes), ranks=3)
    assert others == [None, None]
    assert {(row["collective"], row["algorithm"]) for row in rows if row["algorithm"] != OWN} == {
        (each.collective, each.name) for each in ALGORITHMS.values()
        if each.collective in COLLECTIVES and each.serves(3) and not each.per_host}
    for row in rows:
        assert row["bytes"] in of_whole_chunks
        assert 0 < row["bus_bandwidth"] <= row["bytes"] / row["seconds"] * 4 / 3 + 1
    chosen = {(row["collective"], row["bytes"]): row["algorithm"] for row in rows if row["chosen"]}
    assert len(chosen) == len(COLLECTIVES) * len(sizes)
    said = shown(show_collectives, rows, "a library", fit(rows))
    assert all(f"{collective} on 3 ranks" in said for collective in COLLECTIVES)
    assert tomllib.loads(measured_toml(fit(rows)))["cluster"]["inside"]["latency_us"] > 0


RING = """
from zerosim.collectives import ring

def my_all_gather(comm, chunks):
    ring.all_gather(comm, chunks)

def my_all_to_all(comm, outgoing, incoming):
    pass

def wrong_all_gather(comm, chunks):
    pass
"""


def test_a_function_of_ones_own_is_timed_beside_the_algorithms_of_its_collective(tmp_path):
    (tmp_path / "mine.py").write_text(RING)
    users = named_subject(f"{tmp_path}/mine.py:my_all_gather")
    rows, *_ = spawn(lambda comm: on_rank_0(comm, time_collectives, LIBRARY, 1, (256,), users), ranks=2)
    shipped = {row.name for row in ALGORITHMS.values() if row.collective == "all_gather" and not row.per_host}
    assert {row["algorithm"] for row in rows} == {OWN, *shipped, "my_all_gather"}
    said = shown(show_collectives, rows, "a library", None)
    assert "my_all_gather" in said
    assert "Fitted" not in said


@pytest.mark.parametrize(("words", "wrong"), [
    (["collectives", "mine.py:my_all_to_all"], "my_all_to_all is an all_to_all; times are taken of all_reduce, "),
    (["collectives", "mine.py:wrong_all_gather"], "wrong_all_gather is not proved on 2 ranks: rank 0, chunk 1: g1 is"),
    (["collectives", "mine.py:my_all_gather", "--toml", "x.toml"], "--toml needs the times of all collectives"),
])
def test_what_cannot_be_timed_is_refused(words, wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RING)
    with pytest.raises(UsageError, match=re.escape(wrong)):
        users_collective(parse(["bench", *words]), 2)
    assert "they are for bench collectives" in refused(capsys, "bench", "step", *words[1:])


def test_a_ratio_is_taken_within_its_round():
    step = {"step_seconds": [3.0, 8.0], "alone_seconds": [4.0, 8.0]}
    assert sample({"stage": "ddp"}, step, shared_by=RANKS)["ratio_range"] == [1.5, 2.0]


@pytest.mark.mpi
def test_the_command_measures_on_real_processes(tmp_path):
    out = tmp_path / "out.json"
    small = ("import sys; from zerosim.commands.benches.steps import WORKLOADS, workload; "
             "from zerosim.commands.cli import main; from zerosim.scenario import ModelKeys; "
             "keys = ModelKeys(kind='transformer', layers=1, width=4, heads=2, sequence=5); "
             "WORKLOADS['transformer'] = workload(keys, 'text', 4); sys.exit(main())")
    done = mpirun(2, ["-c", small, "bench", "step", "--model", "transformer", "--rounds", "1", "--json", str(out)])
    assert done.returncode == 0, done.stderr
    assert [row["stage"] for row in json.loads(out.read_text())["stages"]] == list(STAGES)
