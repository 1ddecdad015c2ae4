"""PyTorch's trainers bit for bit, and faults that must be seen; these tests run where PyTorch is installed."""

import pytest

from tests.mpi.launch import mpirun

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")

WAYS = 15


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_pytorchs_trainers_have_the_bits_of_one_process(ranks):
    outcome = mpirun(ranks, ["-m", "tests.torch.bits"])
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("same bits as one process") == WAYS - (ranks != 4)


@pytest.mark.mpi
def test_a_planted_fault_is_seen():
    outcome = mpirun(3, ["-m", "tests.torch.bits", "--planted"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("where one process has") == 9
