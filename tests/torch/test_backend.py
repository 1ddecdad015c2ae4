"""The backend of torch.distributed under real MPI; these tests run where PyTorch is installed."""

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")


def zerosim_torch(ranks, *arguments):
    return mpirun(ranks, ["-m", "zerosim", "torch", *arguments], timeout=SECONDS_TO_END)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_gives_what_pytorch_promises(ranks):
    outcome = mpirun(ranks, ["-W", "ignore", "-m", "tests.torch.collectives"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("passed 19") == ranks


@pytest.mark.mpi
def test_an_unchanged_script_trains_to_the_same_losses_by_ddp_and_fsdp2():
    one, other = (zerosim_torch(4, "tests/torch/training.py", way) for way in ("ddp", "fsdp2"))
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    assert one.stdout.count("step") == 5
    assert one.stdout == other.stdout


@pytest.mark.mpi
def test_other_peoples_scripts_run_unchanged():
    outcome = zerosim_torch(2, "tests/torch/others.py")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "all four ran\n"


@pytest.mark.mpi
@pytest.mark.parametrize(("way", "code", "said"), [
    ("raises", 3, "ValueError: planted on rank 1"),
    ("dies", 9, "no rank can go on: rank 1 has died"),
    ("brings_less", 3, "both sides must name the same length"),
    ("brings_less_beside", 3, "both sides must name the same length"),
    ("calls_another", 3, "both sides must name the same length"),
    ("stays_away", 3, "rank 1 computes"),
    ("exits", 5, ""),
])
def test_a_rank_that_fails_ends_all(way, code, said):
    outcome = zerosim_torch(3, "tests/torch/failing.py", way)
    assert outcome.returncode == code, outcome.stderr
    assert said in outcome.stderr
    assert outcome.stderr.count("zerosim: ") == bool(said)


@pytest.mark.mpi
@pytest.mark.parametrize(("fault", "code", "said"), [
    ("kind=kill,rank=1,step=3", 9, "no rank can go on: rank 1 has died in step 3"),
    ("kind=drop,rank=1,step=2,collective=reduce_scatter", 3, "both sides must name the same length"),
    ("kind=delay,rank=1,step=9,seconds=1", 1, "zerosim: a fault did not strike"),
])
def test_faults_befall_a_script(fault, code, said):
    outcome = zerosim_torch(2, "--fault", fault, "tests/torch/training.py", "fsdp2")
    assert outcome.returncode == code, outcome.stderr
    assert said in outcome.stderr


def test_a_script_that_is_not_there_is_one_line():
    outcome = zerosim_torch(1, "nowhere.py")
    assert outcome.returncode == 2
    assert outcome.stderr == "zerosim: there is no script 'nowhere.py'; give a Python file, and flags before it\n"


@pytest.mark.mpi
def test_pytorchs_own_tests_pass():
    outcome = mpirun(4, ["-W", "ignore", "-m", "tests.torch.pytorchs_own"])
    assert outcome.returncode == 0, outcome.stderr
    last = outcome.stdout.splitlines()[-1]
    assert last.endswith(" 0 failed"), outcome.stdout
    assert int(last.split()[0]) >= 70
