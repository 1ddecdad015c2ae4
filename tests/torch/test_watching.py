"""What is seen of a script: volumes, calls, spans, the page; these tests run where PyTorch is installed."""

import json
import re
from itertools import pairwise

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun
from zerosim.cli import main

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")


@pytest.mark.mpi
def test_the_ledger_counts_what_mpi_is_given():
    outcome = mpirun(3, ["-m", "tests.torch.counted"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("counted") == 3


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What a run of FSDP2 on 2 ranks writes."""
    folder = tmp_path_factory.mktemp("torch")
    files = {"json": folder / "outcome.json", "report": folder / "page.html", "trace": folder / "trace.json"}
    flags = [word for flag, path in files.items() for word in (f"--{flag}", str(path))]
    outcome = mpirun(2, ["-m", "zerosim", "torch", *flags, "tests/torch/training.py", "fsdp2"], timeout=SECONDS_TO_END)
    assert outcome.returncode == 0, outcome.stderr
    return files


@pytest.mark.mpi
def test_fsdp2_sends_what_stage_iii_sends_and_its_lines_are_named(written):
    (row,) = json.loads(written["json"].read_text())["rows"]
    steps, parameters = 5, 4 * 17226
    losses = 5 * 4  # the script reduces its loss after each step: 4 bytes
    sent = [rank["sent_bytes"] for rank in row["traffic"]]
    assert sent == [steps * 3 * parameters // 2 + losses] * 2
    assert row["volume"] == 3 + 4 / (parameters // 2)
    calls = [call["collective"] for call in row["calls"][0]]
    assert sorted(calls) == ["all_gather"] * 6 + ["all_reduce"] + ["reduce_scatter"] * 3
    assert all("training.py:" in call["by"] for call in row["calls"][0])
    assert "_fsdp_collectives.py" in row["calls"][0][-1]["by"]
    gathers = [call for call in row["calls"][0] if call["collective"] == "all_gather"]
    assert [call["by"].rpartition(" for ")[2] for call in gathers] == ["0", "2", "4", "4", "2", "0"]
    assert {call["tensors"] for call in gathers} == {"float32 [8320]", "float32 [8256]", "float32 [650]"}
    assert sum(call["waited_ns"] for calls in row["calls"] for call in calls) > 0  # whichever rank came first
    memory = row["memory"][0]
    assert memory["resting_bytes"]["parameters"] == parameters // 2
    alive = [at["parameters"] + at["optimizer"] + at["activations"] for at in memory["curve"]]
    assert sum(memory["resting_bytes"].values()) < max(alive) <= memory["peak_bytes"]["total"]
    assert [at["ns"] for at in memory["curve"]] == sorted(at["ns"] for at in memory["curve"])
    assert len(row["losses"]) == 5


@pytest.mark.mpi
def test_a_run_of_pytorch_stands_beside_one_of_zerosim(written, tmp_path, capsys):
    own, both = tmp_path / "own.json", tmp_path / "both.html"
    flags = ["--set", "train.steps=2", "--set", "world.ranks=2", "--progress", "none", "--json", str(own)]
    assert main(["run", "scenarios/zero3.toml", *flags]) == 0
    assert main(["report", str(own), str(written["json"]), "--html", str(both)]) == 0
    assert "calls of collectives" in both.read_text()
    page = written["report"].read_text()
    assert "calls of collectives" in page
    assert "SHA-256 of the weights" not in page
    assert 'class="verdict"' in page


@pytest.mark.mpi
def test_the_trace_has_the_parts_of_a_step(written):
    events = json.loads(written["trace"].read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"forward", "backward", "update"} <= names
    spans = sorted((event["pid"], event["tid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X")
    for (pid, tid, begin, took), (other_pid, other_tid, other, _) in pairwise(spans):
        assert (pid, tid) != (other_pid, other_tid) or begin + took <= other + 1e-3


@pytest.mark.mpi
def test_the_bench_sets_stages_and_trainers_beside_gloo_and_all_reduce_beside_the_ring():
    outcome = mpirun(2, ["-W", "ignore", "-m", "tests.torch.bench", "1"])
    assert outcome.returncode == 0, outcome.stderr
    others = [re.search(r"against (.*?)  ", line)[1] for line in outcome.stdout.strip().splitlines()[1:]]
    trainers = ["DDP", "ZeroRedundancyOptimizer", "ZeroRedundancyOptimizer", "FSDP2"]
    assert others[:16] == [f"{trainer} over gloo" for trainer in trainers] * 4
    beside = ["gloo", "gloo", "gloo", "the ring", "gloo", "the ring", *["an unchecked one"] * 4, "the ring"]
    assert others[16:] == beside
