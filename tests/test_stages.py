"""What the verbs of a replica refuse: buffers of another length, and gradients of the step before."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training import batches_of, labelled, scenario
from zerosim.allocation import allocate
from zerosim.errors import CollectiveError
from zerosim.instruments.observed import Observed
from zerosim.stages import STAGES
from zerosim.training.build import initial_weights
from zerosim.training.build import replica as replica_of
from zerosim.worlds.local import spawn


def test_a_buffer_of_another_length_is_refused_by_every_verb():
    """Full buffers have 15 numbers and one of padding, shards 8."""

    def program(comm):
        replica = replica_of(batches.config, Observed(comm), allocate)
        replica.begin(initial_weights(batches.config))
        (unit,) = replica.units
        replica.factor = 1.0
        words = []
        for verb, length in (("reduce_scatter", 8), ("keep", 8), ("keep_shard", 8), ("update", 16), ("publish", 8)):
            with pytest.raises(CollectiveError, match=f"{verb} got {length} elements of layers.0; ") as found:
                getattr(replica, verb)(unit, np.zeros(length, np.float32))
            words.append(str(found.value))
        return words

    batches = batches_of(scenario(
        ranks=2, micro_batches=2, hidden=(), stages=("zero1",)), labelled(features=4))
    for words in spawn(program, 2):
        assert ["expected 8" in each for each in words] == [False, False, False, True, False]


@pytest.mark.parametrize("name", STAGES)
def test_the_gradients_of_the_step_before_are_not_those_of_this_one(name):
    """A step that keeps nothing is told so, even if the one before has kept all."""
    batches = batches_of(scenario(ranks=1, micro_batches=1, stages=(name,)))

    def program(comm):
        replica = replica_of(batches.config, Observed(comm), allocate)
        replica.begin(initial_weights(batches.config))
        first, second, *_ = batches.of_rank(0)
        STAGES[name].step(replica, first)
        replica.at_boundary(replace(first, last=False), replica.units[0], np.zeros(1))
        replica.zero_grad(second)
        assert replica.unreduced == {}
        with pytest.raises(CollectiveError, match="update found no gradient of"):
            replica.update(replica.units[0], replica.state.weights[replica.units[0]])

    spawn(program, 1)
