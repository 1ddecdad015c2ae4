import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import zerosim
from tests.mpi.launch import ROOT, SECONDS_TO_END, mpirun, side_by_side
from tests.sampling import one_in
from zerosim.core.errors import CollectiveError
from zerosim.worlds.launcher import RANK_VARIABLES, SIZE_VARIABLES, launched, launched_rank
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_communicator import MpiCommunicator


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (2, 4, 5, 7, 8))])
def test_mpi_world_conforms(ranks):
    outcome = mpirun(ranks, ["-m", "tests.mpi.conform"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith(f"{ranks} ranks of ")
    assert outcome.stdout.endswith("checks\n")


ENDS = [
    ("one_raises", 3, 3, 1, "ValueError: planted on rank 1"),
    ("one_raises_while_others_compute", 3, 3, 1, "ValueError: planted on rank 1"),
    ("all_raise", 3, 3, 1, "ValueError: planted on rank "),
    ("all_raise", 8, 3, 1, "ValueError: planted on rank "),
    ("all_refuse_the_scenario", 2, 2, 0, ": a.toml:1:1: planted"),
    ("all_wait", 3, 3, 0, "waited 0.5 s for a message from rank "),
    ("lengths_differ", 2, 3, 0, "sent 8388608 bytes to rank "),
    ("one_message_is_left", 3, 3, 0, "zerosim: rank 1 ended without receiving 2 message(s) from rank 0"),
    ("one_leaves_early", 2, 3, 0, "zerosim: rank 0 waits for a message from rank 1, which has finished"),
    ("interrupted", 2, 130, 0, "zerosim: rank 1: interrupted"),
    ("one_never_receives", 2, 3, 0, "rank 0 waited 0.5 s for rank 1 to receive 8388608 bytes"),
]
"""A way to end, its ranks, the exit code, the tracebacks, and what is said."""
WITHOUT_A_WORD = {"one_ends_long_before_the_others": True, "one_is_killed": False}


@cache
def ended(first):
    """How each way ends that `make test` has, or each other way."""
    ways = [*(end[:2] for end in ENDS[first::2]), *((way, 3) for way in WITHOUT_A_WORD if first == 0)]
    return side_by_side({f"{way}-{ranks}": ["-n", str(ranks), sys.executable, "-m", "tests.mpi.fail", way]
                         for way, ranks in ways}, timeout=SECONDS_TO_END)


@pytest.mark.mpi
@pytest.mark.parametrize("end", one_in(2, ENDS), ids=lambda end: f"{end[0]}-{end[1]}")
def test_failing_ranks_end_all(end):
    way, ranks, code, tracebacks, said = end
    outcome = ended(ENDS.index(end) % 2)[f"{way}-{ranks}"]
    assert outcome.returncode == code, outcome.stderr
    assert outcome.stderr.count("Traceback") == tracebacks, outcome.stderr
    assert outcome.stderr.count("zerosim: rank ") == 1, outcome.stderr
    assert outcome.stderr.count(said) == 1, outcome.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("way", WITHOUT_A_WORD)
def test_the_end_of_a_rank_without_a_word(way):
    """Longer than any rank waits for a message, nobody waits for one; a killed rank ends all."""
    assert (ended(0)[f"{way}-3"].returncode == 0) == WITHOUT_A_WORD[way]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "60", True, False])
def test_a_timeout_is_positive_and_finite(seconds):
    with pytest.raises(CollectiveError, match=f"timeout_seconds={seconds!r}"):
        connect(seconds)


@pytest.mark.mpi
def test_what_one_rank_does_wrong_it_alone_is_told():
    outcome = mpirun(2, ["-m", "tests.mpi.misuse"])
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.mpi
@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PALS_SIZE"])
def test_launcher_of_another_mpi_is_named(variable):
    """Without a launcher of its own MPI this process is alone, whatever the environment says."""
    program = "from zerosim.worlds.mpi import connect; connect()"
    outcome = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
                             env=os.environ | {variable: "3"})
    assert outcome.returncode == -signal.SIGKILL
    assert "zerosim: rank 0: the launcher started 3 ranks" in outcome.stderr
    assert str(Path(sys.executable).with_name("mpiexec")) in outcome.stderr


@pytest.mark.parametrize(("environment", "ranks", "rank"), [
    ({}, None, 0), ({"PMI_SIZE": "²"}, None, 0), ({"PMI_RANK": "3"}, None, 0),
    ({"SLURM_STEP_ID": "batch", "SLURM_NTASKS": "8"}, None, 0), ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"}, None, 0),
    ({"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, None, 0),
    ({"PMI_SIZE": "4"}, 4, 0), ({"PMI_SIZE": "4", "PMI_RANK": "3"}, 4, 3), ({"OMPI_COMM_WORLD_SIZE": "2"}, 2, 0),
    ({"PMI_SIZE": "4", "PMI_RANK": "x", "SLURM_PROCID": "2"}, 4, 2),
    ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "8"}, 8, 0),
    ({"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}, 4, 0),
    ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "16"}, 16, 0),
])
def test_the_launcher_says_how_many_ranks_there_are_and_which_this_is(monkeypatch, environment, ranks, rank):
    slurms = filter(lambda name: name.startswith("SLURM_"), os.environ)
    for variable in {*SIZE_VARIABLES, *RANK_VARIABLES, *slurms}:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert (launched(), launched_rank()) == (ranks, rank)


def test_any_communicator_of_mpi4py_can_be_wrapped():
    assert zerosim.MpiCommunicator is MpiCommunicator
    assert "MpiCommunicator" in zerosim.__all__
