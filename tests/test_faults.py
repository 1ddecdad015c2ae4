"""Faults on purpose: each scenario in scenarios/faults ends as it says, with the words of its diagnosis."""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.kills import ranks_once_there
from tests.mpi.launch import OPEN_MPI_AS_ROOT_ON_FEW_CORES, ROOT, end, mpirun
from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.commands.supervise import fewer
from zerosim.observe.faults import flip, flipped
from zerosim.scenario import load
from zerosim.scenario.data import load_dataset
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally, run_on
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.processes import FROZEN, GONE, state_of

FAULTS = Path(__file__).parents[1] / "scenarios" / "faults"
LOST = "in the reduce_scatter of layers.1, step 2 of Stage III: message 42 from rank 1 was lost: message 43 arrived"
TWICE = ("in the all_gather of layers.0, step 2 of Stage III: message 28 from rank 1 was expected; "
         "message 27 arrived again")
CHANGED = "in the reduce_scatter of layers.1, step 3 of Stage III: message 65 from rank 1 came with checksum 0x"
WAITING = "rank 0 waits for a message from rank 2; rank 1 is stopped; rank 2 waits for a message from rank 1"
DIED = "rank 0 waits for a message from rank 2; rank 2 waits for a message from rank 1"
ENDS = {
    "kill": (3, f"no rank can go on in the reduce_scatter of layers.1, step 3 of Stage III: rank 1 was killed; {DIED}"),
    "stop": (3, f"no rank can go on in the all_gather of layers.0, step 3 of Stage III: {WAITING}"),
    "delay": (0, "PASSED: Stage III on 3 ranks: every bit equal to one process"),
    "slow": (0, "PASSED: Stage III on 3 ranks: every bit equal to one process"),
    "drop": (3, f"rank 2 {LOST}"), "duplicate": (3, f"rank 2 {TWICE}"), "flip": (3, f"rank 2 {CHANGED}"),
    "flip_shard": (1, "Stage III: after step 3, rank 1 holds layers.0.weight[5, 30] = -0.0582126"),
}


def said_by(capsys):
    out, err = capsys.readouterr()
    return " ".join((out + err).split())


def test_every_fault_has_its_scenario():
    assert {path.stem for path in FAULTS.glob("*.toml")} == set(ENDS)
    listed = (FAULTS.parent / "README.md").read_text()
    assert [name for name in ENDS if f"(faults/{name}.toml)" not in listed] == []
    assert all(load(path).caption for path in FAULTS.glob("*.toml"))


@pytest.mark.parametrize("name", ENDS)
def test_a_fault_ends_as_it_says(name, capsys):
    code, words = ENDS[name]
    assert main(["run", str(FAULTS / f"{name}.toml"), "--progress", "none"]) == code
    assert words in said_by(capsys)


def run(name, *overrides, restarts=0, traced=range(0)):
    scenario = load(FAULTS / f"{name}.toml", overrides)
    experiment = prepare(scenario, load_dataset(scenario))
    return run_on(LocalWorld(scenario.world.ranks), replace(experiment, traced=traced, restarts=restarts), Silent())


def ending(outcome):
    (row,) = outcome.trained
    return [loss.tobytes() for loss in row.measured.losses], row.measured.weights_sha256, row.measured.optimizer_sha256


@pytest.fixture(scope="module")
def undisturbed():
    return ending(run("delay", restarts=1))


@pytest.mark.parametrize("name", ["delay", "slow"])
def test_who_is_late_changes_no_bit_and_others_are_seen_to_wait(name, undisturbed):
    outcome = run(name, traced=range(4, 5))
    assert ending(outcome) == undisturbed
    least_ns = 1e9 * (0.25 if name == "delay" else 0.005)
    steps = outcome.trained[0].measured.trace.steps
    waited = [span for step in steps for span in step.spans if span.waited_ns >= least_ns]
    assert {(span.rank, span.peer) for span in waited} >= {(2, 1)}
    assert name == "slow" or 1 not in {span.rank for span in waited}


@pytest.mark.parametrize(("name", "code", "words"), [
    ("drop", 3, "sent 347 × float32 to rank 2, which receives it into 57 × float32 in the reduce_scatter of layers.1"),
    ("duplicate", 3, "sent 347 × float32 to rank 2, which receives it into 57 × float32 in the all_gather of layers.1"),
    ("flip", 1, "Stage III: after step 3, rank 0 holds layers.1.weight[0, 0] ="),
])
def test_without_checksums_lengths_and_the_verdict_tell(name, code, words, capsys):
    assert main(["run", str(FAULTS / f"{name}.toml"), "--progress", "none", "--set", "check.checksums=false"]) == code
    assert words in said_by(capsys)


def test_a_fault_that_has_no_moment_to_strike_fails_the_run():
    scenario = load(FAULTS / "delay.toml")
    (fault,) = scenario.fault
    never = replace(scenario, fault=(replace(fault, message=99), replace(fault, collective="gather_norms")))
    (row,) = run_locally(prepare(never, load_dataset(never))).failures
    assert row == ("Stage III", "a fault was not injected: delay of rank 1, step 4, message 99 of reduce_scatter; "
                   "delay of rank 1, step 4, message 1 of gather_norms")


def test_a_bit_is_counted_from_the_lowest_of_the_first_byte():
    words = np.zeros(2, "<u2")
    flip(words, 17)
    assert words.tolist() == [0, 2]
    assert flipped(words[::-1], 17 + 32).tolist() == [2, 2]
    assert flipped(np.empty(0), 3).tolist() == []


BASE = "world.ranks = 2\n[train]\nmicro_batches = 4\nsteps = 3\n[[fault]]\n"


@pytest.mark.parametrize(("lines", "expected"), [
    ('kind = "explode"', "6:8: fault[0].kind must be kill, stop, delay, slow, drop, duplicate or flip"),
    ("step = 4", "6:8: fault[0].step is 4, but the last step is 3; give an existing step"),
    ('kind = "drop"', "6:8: fault[0].kind drop needs a collective; give one of reduce_scatter, all_gather"),
    ("message = 2", "6:11: fault[0].message counts the messages of a collective; add collective"),
    ('seconds = 1', "6:11: fault[0].seconds is for delay and slow; remove it from a kill"),
    ('kind = "slow"\nbit = 1', "7:7: fault[0].bit is for flip; remove it from a slow"),
    ('collective = "gossip"', "fault[0].collective must be reduce_scatter, all_gather, gather_norms, broadcast, "),
    ("rank = 2", "6:8: fault[0].rank is 2, but the last rank is 1; give an existing rank"),
])
def test_a_fault_that_cannot_be_is_refused(lines, expected, tmp_path, capsys):
    path = tmp_path / "a.toml"
    path.write_text(BASE + lines)
    assert expected in refused(capsys, "run", path)


# Processes.


def command(name, *flags):
    return ["-m", "zerosim", "run", str(FAULTS / f"{name}.toml"), "--progress", "none", *map(str, flags)]




@pytest.mark.mpi
def test_processes_say_who_died_and_who_waited_for_whom():
    """Side by side, as most of it is waiting for a rank that has stopped."""
    due = {
        "kill": "",
        "stop": r"waited [\d.]+ s for a message from rank \d in the all_gather of layers.0, step 3 of Stage III",
        "flip": f"rank 2 {CHANGED}",
    }
    with ThreadPoolExecutor(len(due)) as threads:
        runs = dict(zip(due, threads.map(lambda name: mpirun(3, command(name)), due), strict=True))
    for name, ended in runs.items():
        assert ended.returncode not in (0, 1, 2), name
        assert re.search(due[name], " ".join(ended.stderr.split())), (name, ended.stderr)


@pytest.mark.mpi
def test_a_supervised_run_goes_on_with_fewer_ranks_to_the_same_bits(tmp_path):
    flags = ["--checkpoint", tmp_path / "kept", "--restarts", 2, "--min-ranks", 2, "--json", tmp_path / "out.json"]
    ended = subprocess.run(
        [sys.executable, *command("kill", *flags)], check=False, capture_output=True, text=True, timeout=600, cwd=ROOT,
        env=os.environ | OPEN_MPI_AS_ROOT_ON_FEW_CORES)
    assert ended.returncode == 0, ended.stderr
    assert f"restart 1 of 2 on 2 ranks, after step 2, from {tmp_path / 'kept'}\n" in ended.stderr
    (row,) = json.loads((tmp_path / "out.json").read_text())["stages"]
    last = str(tmp_path / "kept/zero3/step-00000002")
    assert row["resumed"] == {"folder": last, "step": 2, "stage": "zero3", "ranks": 3}
    (whole,) = run("kill", restarts=1).trained
    assert row["weights_sha256"] == whole.measured.weights_sha256
    assert row["optimizer_sha256"] == whole.measured.optimizer_sha256


@pytest.mark.mpi
def test_a_supervisor_that_is_told_to_end_ends_all(tmp_path):
    scenario = tmp_path / "again.toml"
    again = "[[fault]]\nkind = \"stop\"\nrank = 1\nstep = 1\nafter_restarts = 1\n"
    scenario.write_text((FAULTS / "kill.toml").read_text().replace("step = 3", "step = 1") + again)
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "zerosim", "run", str(scenario), "--checkpoint", str(tmp_path / "kept"),
         "--restarts", "1", "--progress", "none"],
        cwd=ROOT, env=os.environ | OPEN_MPI_AS_ROOT_ON_FEW_CORES, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True)
    try:
        said = ""
        while "restart 1 of 1 on 3 ranks, where it began" not in said:
            line = supervisor.stderr.readline()
            assert line, said
            said += line
        ranks = []
        while not any(map(stopped, ranks)):
            ranks = ranks_once_there(supervisor)
            assert supervisor.poll() is None
            time.sleep(0.2)  # reads of all of /proc, beside ranks that wait
        supervisor.terminate()
        assert "zerosim: interrupted" in supervisor.communicate(timeout=600)[1]
    finally:
        end(supervisor)
    assert supervisor.returncode == 130
    assert [rank for rank in ranks if state_of(str(rank)) not in GONE] == []


def stopped(rank):
    return state_of(str(rank)) in FROZEN


@pytest.mark.parametrize(("flags", "expected"), [
    (["--min-ranks", "2"], "--min-ranks is for restarts; add --restarts N"),
    (["--restarts", "2", "--min-ranks", "4", "--checkpoint", "x"], "--min-ranks 4 is more than the 3 ranks of the "
                                                                   "scenario"),
    (["--restarts", "2"], "--restarts resumes from checkpoints; add --checkpoint DIR"),
    (["--restarts", "2", "--checkpoint", "x", "--json", "-"], "give --json a file"),
    (["--restarts", "2", "--checkpoint", "x", "--set", "train.steps=-1"], "train.steps must be an integer"),
])
def test_a_mistake_in_supervision_is_one_line(flags, expected, capsys):
    assert expected in refused(capsys, "run", FAULTS / "kill.toml", *flags)


@pytest.mark.parametrize(("codes", "restarts", "final"), [
    ([9, 3], 1, 3), ([137, 137, 137], 2, 3), ([9, 0], 5, 0), ([3, 1], 5, 1), ([1], 5, 1), ([2], 5, 2), ([130], 5, 130),
    ([9], 0, 3), ([0], 0, 0),
])
def test_what_breaks_is_begun_again_until_restarts_are_used_up(codes, restarts, final, tmp_path, monkeypatch, capsys):
    started, kept = [], tmp_path / "kept"

    def run_job(command, environment):
        started.append((command[1:3], command[command.index("run") :], environment["ZEROSIM_RESTARTS"]))
        (kept / "zero3" / f"step-{len(started):08d}").mkdir(parents=True)
        (kept / "zero3" / f"step-{len(started):08d}" / "manifest.json").touch()
        return codes[len(started) - 1]

    monkeypatch.setattr("zerosim.commands.supervise.run_job", run_job)
    flags = ["--checkpoint", str(kept), "--restarts", str(restarts), "--min-ranks", "2", "--every", "7", "-v"]
    assert main(["run", str(FAULTS / "kill.toml"), *flags, "--trace-steps", "2..3"]) == final
    assert [number for *_, number in started] == [str(number) for number in range(len(codes))]
    ranks = [3, 2, 2][: len(codes)]
    assert [launch for launch, *_ in started] == [["-n", str(each)] for each in ranks]
    for (_, words, _), each, resumed in zip(started, ranks, [[], *[[f"--resume={kept}"]] * 2], strict=False):
        assert words == [
            "run", str(FAULTS / "kill.toml"), f"--set=world.ranks={each}", f"--checkpoint={kept}", "--every=7",
            "--progress=auto", *resumed, "--trace-steps=2..3", "--verbose"]
    said = capsys.readouterr().err
    assert said.count("the run broke") == len(codes) - 1
    assert ("after step 1" in said) == (len(codes) > 1)


def test_the_next_lower_number_of_ranks_is_one_that_the_scenario_allows():
    def next_of(ranks, **given):
        arguments = argparse.Namespace(
            scenario=str(FAULTS / "kill.toml"), overrides=["train.micro_batches=12"], min_ranks=2, no_python=False,
            **given)
        return fewer(arguments, load(arguments.scenario), ranks)

    assert [next_of(ranks) for ranks in (12, 6, 4, 3, 2)] == [6, 4, 3, 2, 2]
