"""The stages and the reference add alike: proved on symbols where there is an order."""

import numpy as np
import pytest

from zerosim.autograd.tape import left_to_right
from zerosim.collectives import ring
from zerosim.core.orders import ORDERS
from zerosim.core.sharding import Mesh
from zerosim.core.terms import symbols
from zerosim.stages.adding import ADDITIONS, in_order, itself
from zerosim.verdict.diagnosis import chunk_sums


def declared(name, ranks, block):
    return list(ORDERS[name].total([symbols(number, ranks) for number in range(ranks * block)], Mesh(0, ranks, ranks)))


def test_there_is_an_addition_for_every_order():
    assert list(ADDITIONS) == list(ORDERS)


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("block", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["ring", "rank", "tree"])
def test_stages_add_as_the_reference_does(name, ranks, block):
    if name == "tree" and (ranks.bit_count() != 1 or block.bit_count() != 1):
        pytest.skip("a tree is for powers of two")
    assert chunk_sums(ADDITIONS[name], Mesh(0, ranks, ranks), block) == declared(name, ranks, block)


def test_micro_batches_added_backwards_are_seen():
    def backwards(total, contribution):
        return contribution if total is None else np.add(contribution, total)

    planted = in_order(backwards, ring.reduce_scatter, itself)
    assert chunk_sums(planted, Mesh(0, 2, 2), 2) != declared("ring", 2, 2)
    assert chunk_sums(in_order(left_to_right, ring.reduce_scatter, itself), Mesh(0, 2, 2), 2) == declared("ring", 2, 2)
