"""Faults on purpose: each scenario in scenarios/faults ends as it says, with the words of its diagnosis."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conformance import CHECKS
from tests.mpi.launch import side_by_side
from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.observe.faults import Faults
from zerosim.scenario import load
from zerosim.scenario.data import load_dataset
from zerosim.scenario.fault import Fault
from zerosim.training.experiment import prepare
from zerosim.training.program import Progress
from zerosim.verdict.judged_run import run_locally, run_on
from zerosim.worlds.local import LocalWorld, spawn

FAULTS = Path(__file__).parents[2] / "scenarios" / "faults"
WAITING = "rank 0 waits for a message from rank 2; rank 1 is stopped; rank 2 waits for a message from rank 1"
DIED = "rank 0 waits for a message from rank 2; rank 2 waits for a message from rank 1"
OF_ANOTHER = "sent 347 × float32 to rank 2, which receives it into 57 × float32"
ENDS = {
    "kill": (3, f"no rank can go on in the reduce_scatter of layers.1, step 3 of Stage III: rank 1 was killed; {DIED}"),
    "stop": (3, f"no rank can go on in the all_gather of layers.0, step 3 of Stage III: {WAITING}"),
    "delay": (0, "PASSED: Stage III on 3 ranks: every bit equal to one process"),
    "slow": (0, "PASSED: Stage III on 3 ranks: every bit equal to one process"),
    "drop": (3, f"{OF_ANOTHER} in the reduce_scatter of layers.1"),
    "duplicate": (3, f"{OF_ANOTHER} in the all_gather of layers.1"),
    "flip": (1, "Stage III: after step 3, rank 0 holds layers.1.weight[0, 0] ="),
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


def run(name, *overrides, faulty=True, traced=range(0)):
    scenario = load(FAULTS / f"{name}.toml", overrides)
    experiment = prepare(scenario, load_dataset(scenario))
    return run_on(LocalWorld(scenario.world.ranks), replace(experiment, traced=traced, faulty=faulty), Progress())


def ending(outcome):
    (row,) = outcome.trained
    return [loss.tobytes() for loss in row.measured.losses], row.measured.weights_sha256, row.measured.optimizer_sha256


@pytest.fixture(scope="module")
def undisturbed():
    return ending(run("delay", faulty=False))


@pytest.mark.parametrize("name", ["delay", "slow"])
def test_who_is_late_changes_no_bit_and_others_are_seen_to_wait(name, undisturbed):
    outcome = run(name, traced=range(4, 5))
    assert ending(outcome) == undisturbed
    least_ns = 1e9 * (0.25 if name == "delay" else 0.005)
    steps = outcome.trained[0].measured.trace.steps
    waited = [span for step in steps for span in step.spans if span.waited_ns >= least_ns]
    assert {(span.rank, span.peer) for span in waited} >= {(2, 1)}
    assert name == "slow" or 1 not in {span.rank for span in waited}


def test_a_fault_that_has_no_moment_to_strike_fails_the_run():
    scenario = load(FAULTS / "delay.toml")
    (fault,) = scenario.fault
    never = replace(scenario, fault=(replace(fault, message=99), replace(fault, collective="gather_norms")))
    (row,) = run_locally(prepare(never, load_dataset(never))).failures
    assert row == ("Stage III", "a fault was not injected: delay of rank 1, step 4, message 99 of reduce_scatter; "
                   "delay of rank 1, step 4, message 1 of gather_norms")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_communicator_whose_faults_never_strike_is_as_any_other(check):
    def program(comm):
        check(Faults((Fault("flip", step=9, collective="all_gather"),), None, None).around(comm))

    spawn(program, ranks=3)


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


@pytest.mark.mpi
def test_processes_say_who_died_and_who_waited_for_whom():
    """Side by side, as most of it is waiting for a rank that has stopped."""
    due = {
        "kill": "",
        "stop": r"waited [\d.]+ s for a message from rank \d in the all_gather of layers.0, step 3 of Stage III",
        "drop": r"sent 1388 bytes to rank 2, which receives them into 228 bytes of float32",
    }
    runs = side_by_side({name: [
        "-n", "3", sys.executable, "-m", "zerosim", "run", str(FAULTS / f"{name}.toml"), "--progress", "none",
        "--set", "world.timeout_seconds=2"] for name in due})
    for name, ended in runs.items():
        assert ended.returncode not in (0, 1, 2), name
        assert re.search(due[name], " ".join(ended.stderr.split())), (name, ended.stderr)
