"""What MPI libraries' own suites test: operations that do not commute, long mixtures."""

from dataclasses import replace

import numpy as np
import pytest

import zerosim as zs
from tests.collectives import mpi_suites
from tests.mpi.launch import mpirun
from zerosim.collectives import ALGORITHMS, naive
from zerosim.collectives.choosing import named
from zerosim.worlds.local import spawn


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, *(pytest.param(size, marks=pytest.mark.long) for size in (7, 8, 10))])
@pytest.mark.parametrize("check", mpi_suites.CHECKS, ids=lambda check: check.__name__[6:])
def test_local_world(check, size):
    spawn(check, size)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (4, 5, 7, 8, 10))])
def test_mpi_world(ranks):
    outcome = mpirun(ranks, ["-m", "tests.mpi.suites"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith(f"{ranks} ranks of ")


@pytest.fixture
def planted(monkeypatch):
    """Another function or claim in the table of algorithms, of which nothing is remembered before and after."""
    def planted(name, function, **claims):
        monkeypatch.setitem(ALGORITHMS, name, replace(ALGORITHMS[name], function=function, **claims))

    named.cache_clear()
    yield planted
    named.cache_clear()


@pytest.mark.parametrize("size", [2, 5])
def test_swapped_operands_are_caught(planted, size):
    def swapped(comm, chunks, reduce):
        naive.all_reduce(comm, chunks, lambda arrived, mine: reduce(mine, arrived))

    planted("naive.all_reduce", swapped)
    with pytest.raises(AssertionError):
        spawn(mpi_suites.check_operations_that_do_not_commute_keep_the_order_of_ranks, size)


def test_an_order_that_is_none_of_the_ranks_must_be_refused(planted):
    planted("ring.all_reduce", ALGORITHMS["ring.all_reduce"].function, ordered=True)
    with pytest.raises(AssertionError):
        spawn(mpi_suites.check_operations_that_do_not_commute_keep_the_order_of_ranks, 3)


def test_one_wrong_root_is_caught(planted):
    def forgets_the_last_root(comm, vector, root):
        naive.broadcast(comm, vector, min(root, comm.size - 2))

    planted("tree.broadcast", forgets_the_last_root)
    with pytest.raises(AssertionError):
        spawn(mpi_suites.check_mixed_sequence, 4)


def test_a_changed_input_is_caught(monkeypatch):
    def fills_the_input_too(comm, x, root, **keywords):
        x[...] = broadcast(comm, x, root, **keywords)
        return x.copy()

    broadcast = zs.broadcast
    monkeypatch.setattr(zs, "broadcast", fills_the_input_too)
    with pytest.raises(AssertionError):
        spawn(mpi_suites.check_mixed_sequence, 3)


def test_products_of_matrices_do_not_commute():
    first, second = mpi_suites.matrices(0, 3), mpi_suites.matrices(1, 3)
    assert (mpi_suites.multiply(first, second) != mpi_suites.multiply(second, first)).all()
    left_factor = np.array([[1, 2], [3, 4]])
    right_factor = np.array([[5, 6], [7, 8]])
    as_one = [matrix.reshape(4).view(mpi_suites.MATRIX) for matrix in (left_factor, right_factor)]
    assert mpi_suites.multiply(*as_one).tolist() == [tuple((left_factor @ right_factor).flat)]
