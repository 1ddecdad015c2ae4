"""Orders of addition, against sums written out by hand."""

import numpy as np
import pytest

from zerosim.core.orders import Order, far_tree, folded_tree, left_to_right, near_tree, rank_order, ring, two_level
from zerosim.core.sharding import Mesh
from zerosim.core.terms import Term

POWERS = [1, 2, 4, 8, 16]

WRITTEN_OUT = [
    (ring, 1, 0, "g0"),
    (ring, 4, 0, "(((g1 + g2) + g3) + g0)"),
    (ring, 4, 3, "(((g0 + g1) + g2) + g3)"),
    (rank_order, 4, 2, "(((g0 + g1) + g2) + g3)"),
    (near_tree, 1, 0, "g0"),
    (near_tree, 7, 0, "(((g0 + g1) + (g2 + g3)) + ((g4 + g5) + g6))"),
    (two_level(2), 5, 1, "(((g2 + g3) + g4) + (g0 + g1))"),
    (two_level(3), 6, 4, "(((g2 + g0) + g1) + ((g5 + g3) + g4))"),
    (folded_tree, 5, 0, "(((g0 + g1) + g2) + (g3 + g4))"),
    (folded_tree, 7, 0, "(((g0 + g1) + (g2 + g3)) + ((g4 + g5) + g6))"),
    (far_tree, 4, 0, "((g3 + g1) + (g2 + g0))"),
    (far_tree, 4, 3, "((g0 + g2) + (g1 + g3))"),
]


def added(order, size, chunk):
    return order([Term(rank) for rank in range(size)], chunk)


@pytest.mark.parametrize(("order", "size", "chunk", "expected"), WRITTEN_OUT)
def test_written_out(order, size, chunk, expected):
    assert repr(added(order, size, chunk)) == expected


@pytest.mark.parametrize("size", POWERS)
def test_there_is_nothing_to_fold_in_a_power_of_two(size):
    assert added(folded_tree, size, 0) == added(near_tree, size, 0)


@pytest.mark.parametrize("size", POWERS[:-1])
def test_a_near_tree_of_near_trees_is_one(size):
    """So sums over twice the ranks add the same micro-batches in the same order."""
    halves = [Term(2 * pair) + Term(2 * pair + 1) for pair in range(size)]
    assert near_tree(halves, 0) == added(near_tree, 2 * size, 0)


def test_every_chunk_has_the_length_that_ranks_give_it_because_an_order_may_depend_on_places():
    def of_chunks(contributions, chunk):
        lengths.add(len(contributions[0]))
        return rank_order(contributions, chunk)

    lengths = set()
    total = Order("", left_to_right, of_chunks).total([np.ones(10, np.float32)] * 4, Mesh(0, 4, 4))
    assert (lengths, total.tolist()) == ({3}, [4] * 10)
