"""What the test suites of MPI libraries ask of collectives, written anew for any world.

Each `check_*` is a program that all ranks run, and asserts. They ask what a proof on symbols does not
see: operations that do not commute, and collectives of every kind one straight after the other, with nothing between
them to put the ranks back in step.
"""

import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import zerosim as zs
from zerosim.collectives import ALGORITHMS, Algorithm
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.core.comm import Communicator
from zerosim.core.sharding import split

DTYPES = ("?", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16")
MATRIX = np.dtype([("a", "i8"), ("b", "i8"), ("c", "i8"), ("d", "i8")])


def serving(size: int, *names: str) -> list[Algorithm]:
    """The algorithms for the collectives `names` that `size` ranks can use."""
    return [row for row in ALGORITHMS.values() if row.collective in names and row.serves(size)]


def multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Products of 2×2 matrices of whole numbers, modulo 2⁶⁴: associative, not commutative."""
    product = np.empty_like(left)
    product["a"] = left["a"] * right["a"] + left["b"] * right["c"]
    product["b"] = left["a"] * right["b"] + left["b"] * right["d"]
    product["c"] = left["c"] * right["a"] + left["d"] * right["c"]
    product["d"] = left["c"] * right["b"] + left["d"] * right["d"]
    return product


def leftmost(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left


def rightmost(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return right


def matrices(rank: int, count: int) -> np.ndarray:
    numbers = np.random.default_rng([rank, count]).integers(-9, 9, (count, 4))
    return numbers.view(MATRIX).reshape(count)


def check_operations_that_do_not_commute_keep_the_order_of_ranks(comm):
    for row in serving(comm.size, *(name for name, kind in COLLECTIVE_KINDS.items() if kind.reducing)):
        for count in (0, 1, comm.size + 1):
            brought = [matrices(rank, count) for rank in range(comm.size)]
            for operation in (multiply, leftmost, rightmost):
                ordered(comm, row, brought, operation)


def ordered(comm: Communicator, row: Algorithm, brought: list[np.ndarray], operation: Any) -> None:
    """`row` gives the product in rank order, or is refused by all ranks before anything is sent."""
    for root in roots(row, comm.size):
        call = functools.partial(
            called, comm, row, brought[comm.rank], root, reduce=operation, commutative=False
        )
        if row.ordered:
            same(call(), expected(row.collective, brought, comm.rank, root, operation))
        else:
            with pytest.raises(zs.CollectiveError, match="commutative=False rules out"):
                call()


def check_mixed_sequence(comm):
    """Every algorithm, root and kind of length, back to back, in an order that all ranks share."""
    mixed_sequence(comm, list(cases(comm.size)))


def check_part_of_a_mixed_sequence(comm):
    mixed_sequence(comm, list(cases(comm.size))[:: comm.size])


def cases(size: int) -> Iterator[tuple[Algorithm, int, int, bool]]:
    """Algorithm, root, length and whether the input's memory is to hold the result."""
    for row in ALGORITHMS.values():
        if row.serves(size) and row.collective != "barrier":
            for root in roots(row, size):
                for count in (0, 1, size - 1, 2 * size + 3):
                    for in_place in (False, True):
                        yield row, root, count, in_place


def mixed_sequence(comm: Communicator, sequence: list[tuple[Algorithm, int, int, bool]]) -> None:
    random.Random(comm.size).shuffle(sequence)
    for number, (row, root, count, in_place) in enumerate(sequence):
        dtype = DTYPES[number % len(DTYPES)]
        reduce = (np.add, np.maximum, np.minimum)[number % 3 if dtype[0] != "c" else 0]
        length = count * comm.size if row.collective == "all_to_all" else count
        brought = [whole_numbers(rank, number, length, dtype) for rank in range(comm.size)]
        mine = brought[comm.rank].copy()
        of_my_length = row.collective in ("all_reduce", "broadcast", "all_to_all") or (
            row.collective == "reduce" and comm.rank == root
        )
        out = {"out": mine} if in_place and of_my_length else {}
        adding = {"reduce": reduce} if COLLECTIVE_KINDS[row.collective].reducing else {}
        result = called(comm, row, mine, root, **adding, **out)
        same(result, expected(row.collective, brought, comm.rank, root, reduce))
        same(mine, result if out else brought[comm.rank])


def whole_numbers(rank: int, number: int, count: int, dtype: str) -> np.ndarray:
    """Small enough that their sum over all ranks is exact in every dtype, whatever the order."""
    return np.random.default_rng([rank, number]).integers(0, 12, count).astype(dtype)


def roots(row: Algorithm, size: int) -> list[int | None]:
    return list(range(size)) if COLLECTIVE_KINDS[row.collective].rooted else [None]


def called(
    comm: Communicator, row: Algorithm, x: np.ndarray, root: int | None, **keywords: Any
) -> np.ndarray | None:
    rooted = {} if root is None else {"root": root}
    function = getattr(zs, row.collective)
    return function(comm, x, algorithm=row.name, **rooted, **keywords)


def expected(
    collective: str, brought: list[np.ndarray], rank: int, root: int | None, reduce: Any
) -> np.ndarray | None:
    """What `rank` must hold, by the definition of the collective, from what all ranks brought."""
    size = len(brought)
    match collective:
        case "all_reduce":
            return functools.reduce(reduce, brought)
        case "reduce_scatter":
            return split(functools.reduce(reduce, brought), size)[rank]
        case "reduce":
            return functools.reduce(reduce, brought) if rank == root else None
        case "all_gather":
            return np.concatenate(brought)
        case "gather":
            return np.concatenate(brought) if rank == root else None
        case "broadcast":
            return brought[root]
        case "scatter":
            return split(brought[root], size)[rank]
        case "all_to_all":
            return np.concatenate([split(vector, size)[rank] for vector in brought])
    raise AssertionError(collective)


def same(ours: np.ndarray | None, theirs: np.ndarray | None) -> None:
    if theirs is None:
        assert ours is None
        return
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes()


CHECKS = [
    check_operations_that_do_not_commute_keep_the_order_of_ranks,
    check_mixed_sequence,
]
CHECKS_UNDER_MPI = [check_part_of_a_mixed_sequence]
