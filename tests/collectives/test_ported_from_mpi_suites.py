"""What MPI libraries' own suites test: operations that do not commute, long mixtures."""

from dataclasses import replace

import numpy as np
import pytest

import zerosim as zs
from tests.collectives import mpi_suites
from zerosim.collectives import ALGORITHMS, naive, ring
from zerosim.collectives.results import cached_find
from zerosim.worlds.local import spawn


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, *(pytest.param(size, marks=pytest.mark.long) for size in (7, 8, 10))])
@pytest.mark.parametrize("check", mpi_suites.CHECKS, ids=lambda check: check.__name__[6:])
def test_local_world(check, size):
    spawn(check, size)


@pytest.fixture
def planted(monkeypatch):
    """Another function or claim in the table of algorithms, of which nothing is remembered before and after."""
    def planted(name, function, **claims):
        monkeypatch.setitem(ALGORITHMS, name, replace(ALGORITHMS[name], function=function, **claims))

    cached_find.cache_clear()
    yield planted
    cached_find.cache_clear()


def swapped(comm, chunks, reduce):
    naive.all_reduce(comm, chunks, lambda arrived, mine: reduce(mine, arrived))


def forgets_the_last_root(comm, vector, root):
    naive.broadcast(comm, vector, min(root, comm.size - 2))


@pytest.mark.parametrize(("name", "function", "claims", "check", "size"), [
    ("naive.all_reduce", swapped, {}, mpi_suites.CHECKS[0], 2),
    ("naive.all_reduce", swapped, {}, mpi_suites.CHECKS[0], 5),
    ("ring.all_reduce", ring.all_reduce, {"ordered": True}, mpi_suites.CHECKS[0], 3),
    ("tree.broadcast", forgets_the_last_root, {}, mpi_suites.check_mixed_sequence, 4),
])
def test_what_is_planted_is_caught(name, function, claims, check, size, planted):
    planted(name, function, **claims)
    with pytest.raises(AssertionError):
        spawn(check, size)


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
