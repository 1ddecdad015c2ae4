"""Answers from outside: an MPI library's own collectives."""

import doctest
from itertools import combinations

import numpy as np
import pytest

from tests.mpi import outside
from tests.mpi.launch import mpiexec, mpirun


@pytest.fixture
def force_mpich(monkeypatch):
    if "HYDRA" not in mpiexec(["--version"]).stdout:
        pytest.skip("forces algorithms of MPICH, and this is another library")

    def force(all_reduce, reduce_scatter):
        for collective, algorithm in (("ALLREDUCE", all_reduce), ("REDUCE_SCATTER_BLOCK", reduce_scatter)):
            monkeypatch.setenv(f"MPIR_CVAR_{collective}_INTRA_ALGORITHM", algorithm)
            monkeypatch.setenv(f"MPIR_CVAR_{collective}_DEVICE_COLLECTIVE", "0")

    return force


def answers(ranks, **algorithms):
    return mpirun(ranks, ["-m", "tests.mpi.outside", *map("=".join, algorithms.items())])


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (2, 4, 5, 7, 8))])
@pytest.mark.parametrize("algorithms", [
    {"all_reduce": "ring", "reduce_scatter": "pairwise"},
    {"all_reduce": "recursive_doubling", "reduce_scatter": "recursive_halving"},
    {"all_reduce": "reduce_scatter_allgather", "reduce_scatter": "recursive_doubling"},
], ids=lambda algorithms: " and ".join(algorithms.values()))
def test_mpich_leaves_the_bytes_of_ours(force_mpich, algorithms, ranks):
    force_mpich(**algorithms)
    outcome = answers(ranks, **algorithms)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith(f"{ranks} ranks of MPICH")


@pytest.mark.mpi
@pytest.mark.parametrize("claimed", [{"all_reduce": "ring"}, {"reduce_scatter": "pairwise"}], ids=str)
def test_another_algorithm_than_the_claimed_one_is_caught(force_mpich, claimed):
    force_mpich("recursive_doubling", "recursive_halving")
    outcome = answers(4, **claimed)
    assert outcome.returncode != 0
    assert "elements differ from MPI's" in outcome.stderr


SAME_BY_DESIGN = {"recursive_doubling", "reduce_scatter_allgather"}


@pytest.mark.parametrize("dtype", outside.DTYPES)
@pytest.mark.parametrize("size", [4, 5, 7, 8])
@pytest.mark.parametrize("collective", outside.FORCED)
def test_the_vectors_tell_orders_apart(collective, size, dtype):
    """So that equal bytes say which algorithm was at work."""
    brought = outside.vectors(size, 1000 * size, dtype)
    sums = {name: outside.summed(forced, brought) for name, forced in outside.FORCED[collective].items()}
    for (one, ours), (other, theirs) in combinations(sums.items(), 2):
        if {one, other} <= SAME_BY_DESIGN:
            assert ours.tobytes() == theirs.tobytes()
        else:
            assert np.mean(ours != theirs) > 0.1, (one, other)


@pytest.mark.mpi
def test_disagreement_with_mpi_is_caught():
    """`tests.mpi.conform` compares every kind of collective with the library's own."""
    broadcasts_nothing = "import zerosim as zs; zs.broadcast = lambda comm, x, root: x; "
    without_others = "from tests import conformance; conformance.CHECKS = (); "
    outcome = mpirun(2, ["-c", broadcasts_nothing + without_others + "import tests.mpi.conform"])
    assert outcome.returncode != 0
    assert "in check_the_librarys_own_collectives" in outcome.stderr


def test_examples_in_docstrings_run():
    failed, attempted = doctest.testmod(outside)
    assert attempted > 0
    assert failed == 0
