"""Benchmarks measure what they say, on a model so small that nobody waits; only a planted pause is a time."""

import json
import re
import tomllib
from io import StringIO

import pytest
from rich.console import Console

from tests.mpi.launch import mpirun
from tests.pages import refused
from zerosim.collectives.table import ALGORITHMS
from zerosim.commands.bench import users_collective
from zerosim.commands.benches.collectives import (
    COLLECTIVES,
    OWN,
    fit,
    measured_switches,
    measured_toml,
    time_collectives,
)
from zerosim.commands.benches.samples import Sample, on_rank_0
from zerosim.commands.benches.tables import show_collectives, show_steps
from zerosim.commands.benches.timings import RANKS, Workload, time_steps
from zerosim.commands.cli import parse
from zerosim.core.errors import UsageError
from zerosim.proofs.subject import named_subject
from zerosim.scenario import ModelKeys
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
def test_every_stage_is_timed_in_every_round(workload, words):
    measured, nothing = spawn(lambda comm: on_rank_0(comm, time_steps, 3, workload), ranks=2)
    assert nothing is None
    assert list(dict.fromkeys(each.names["stage"] for each in measured)) == list(STAGES)
    for each in measured:
        assert {len(rounds) for rounds in each.rounds.values()} == {3}
        if each.ratios:
            low, high = each.document()["ratio_range"]
            assert 0 < low <= each.document()["ratio"] <= high
    printed = shown(show_steps, rows_of(measured), workload)
    assert all(title in printed for title in [words, *(row.title for row in STAGES.values())])


def nothing_done(x, out):
    """Stands for a library's collective."""


def test_every_algorithm_of_a_collective_is_timed_at_every_size():
    sizes, of_whole_chunks = (256, 1024), (252, 1020)
    library = dict.fromkeys(COLLECTIVES, nothing_done)
    found, *others = spawn(lambda comm: on_rank_0(comm, time_collectives, library, 2, sizes), ranks=3)
    assert others == [None, None]
    rows = [row for row in ALGORITHMS.values() if row.collective in COLLECTIVES and row.serves(3) and not row.per_host]
    assert {len(rounds) for each in found for rounds in each.rounds.values()} == {2}
    found = rows_of(found)
    assert {(each["collective"], each["algorithm"]) for each in found if each["algorithm"] != OWN} == {
        (row.collective, row.name) for row in rows}
    for figures in found:
        assert figures["bytes"] in of_whole_chunks
        assert 0 < figures["bus_bandwidth"] <= figures["algorithm_bandwidth"] * 4 / 3 + 1
    chosen = {(each["collective"], each["bytes"]): each["algorithm"] for each in found if each["chosen"]}
    assert len(chosen) == len(COLLECTIVES) * len(sizes)
    said = shown(show_collectives, found, "a library", measured_switches(found), fit(found))
    assert all(f"{collective} on 3 ranks" in said for collective in COLLECTIVES)
    assert "switch_at({\"all_reduce\": " in " ".join(said.split())
    read = tomllib.loads(measured_toml(fit(found), measured_switches(found)))["cluster"]
    assert 1e3 * read["short_gather_kb"] in (0, *of_whole_chunks)
    assert read["inside"]["latency_us"] > 0


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
    library = dict.fromkeys(COLLECTIVES, nothing_done)
    found, *_ = spawn(lambda comm: on_rank_0(comm, time_collectives, library, 1, (256,), users), ranks=2)
    shipped = {row.name for row in ALGORITHMS.values() if row.collective == "all_gather" and not row.per_host}
    assert {each.names["algorithm"] for each in found} == {OWN, *shipped, "my_all_gather"}
    said = shown(show_collectives, rows_of(found), "a library", {}, None)
    assert "my_all_gather" in said
    assert "Fitted" not in said


@pytest.mark.parametrize(("words", "wrong"), [
    (["collectives", "mine.py:my_all_to_all"], "my_all_to_all is an all_to_all; times are taken of all_reduce, "),
    (["collectives", "mine.py:wrong_all_gather"], "wrong_all_gather is not proved on 2 ranks: rank 0, chunk 1: g1 is"),
    (["collectives", "mine.py:my_all_gather", "--toml", "x.toml"], "--toml needs the times of all collectives"),
])
def test_what_cannot_be_timed_is_refused(words, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RING)
    with pytest.raises(UsageError, match=re.escape(wrong)):
        users_collective(parse(["bench", *words]), 2)


def test_a_ratio_is_taken_within_its_round():
    step = {"step_seconds": [3.0, 8.0], "alone_seconds": [4.0, 8.0]}
    assert Sample({"stage": "ddp"}, step, shared_by=RANKS).ratios == [1.5, 2.0]


@pytest.mark.mpi
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_the_command_measures_on_real_processes(model, tmp_path):
    out = tmp_path / "out.json"
    small = (
        "import sys; from tests.plan.test_bench import MLP, TRANSFORMER; "
        "from zerosim.commands.benches.timings import WORKLOADS; "
        "from zerosim.commands.cli import main; WORKLOADS.update(mlp=MLP, transformer=TRANSFORMER); sys.exit(main())")
    done = mpirun(2, ["-c", small, "bench", "step", "--model", model, "--rounds", "1", "--json", str(out)])
    assert done.returncode == 0, done.stderr
    assert [each["stage"] for each in json.loads(out.read_text())["stages"]] == list(STAGES)


def test_the_switch_is_where_the_short_algorithm_first_falls_behind():
    seconds = {"doubling": (1.0, 3.0, 1.0), "ring": (2.0, 2.0, 2.0)}
    found = [{"collective": "all_gather", "algorithm": name, "bytes": 1 << 10 + power, "seconds": each}
             for name, of_sizes in seconds.items() for power, each in enumerate(of_sizes)]
    assert measured_switches(found) == {"all_gather": 1 << 10}


@pytest.mark.parametrize("flags", [["mine.py:f"], ["--toml", "x.toml"]])
def test_flags_of_other_subjects_are_refused(flags, capsys):
    assert "they are for bench collectives" in refused(capsys, "bench", "step", *flags)
