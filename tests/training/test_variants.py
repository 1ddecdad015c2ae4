"""Steps that overflow, work beside computation, and bugs planted in a variant; `test_independent` has all keys."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training import labelled, only_row, scenario
from tests.training.variants import run
from tests.verdict.outcomes import plant
from zerosim.core.allocation import allocate
from zerosim.core.errors import CollectiveError, Deadlock
from zerosim.observe.observed import Observed
from zerosim.stages import STAGES
from zerosim.stages.scaling import INITIAL_SCALE
from zerosim.training.build import initial_weights
from zerosim.training.build import replica as replica_of
from zerosim.worlds.local import spawn

# Loss scaling.


def one_large_sample():
    """Gradients of one rank's first micro-batch overflow float16 under the initial loss scale."""
    data = labelled(samples=12)
    data.x[:] *= 0.1
    data.x[3] = 60.0
    return data


OVERFLOWING = {"precision": "fp16", "optimizer": "adam", "activation": "relu", "steps": 5}


# Planted bugs.


def goes_on_alone(replica, batch):
    """Rank 1 looks at the sums of its own chunks, and not at those of the others."""
    if replica.comm.rank == 1 and "unscale_and_clip" not in vars(replica):
        honest = replica.unscale_and_clip

        def unscale_and_clip():
            honest()
            if replica.factor is None:
                replica.factor = 1.0 / INITIAL_SCALE
                replica.state.updates += 1

        replica.unscale_and_clip = unscale_and_clip


def test_a_rank_that_does_not_skip_with_the_others_is_caught_by_its_bits(monkeypatch):
    plant(monkeypatch, "zero3", goes_on_alone)
    outcome = run(**OVERFLOWING, stages=("zero2", "zero3"), dataset=one_large_sample())
    assert outcome.failures == [("Stage III", "bits differ")]
    assert outcome.trained[1].first_divergence.step == 1


def test_one_update_among_skipped_steps_has_the_peak_of_two_steps():
    """A rank alone has its second copy from the first step on, and fetches its whole shard beside it in the second."""
    outcome = run(**OVERFLOWING | {"steps": 2}, ranks=1, micro_batches=1, micro_batch=4, dataset=one_large_sample(),
                  stages=("zero3",), units="model", secondary_ranks=1, offload_parameters="host")
    assert outcome.failures == []
    assert outcome.trained[0].measured.updates_here == 1


@pytest.mark.parametrize("name", ["zero1", "zero2"])
def test_a_rank_that_publishes_what_the_others_skip_is_left_alone(monkeypatch, name):
    plant(monkeypatch, name, goes_on_alone)
    with pytest.raises((Deadlock, CollectiveError)):
        run(**OVERFLOWING, stages=(name,), dataset=one_large_sample())


# What the verbs of a replica refuse: buffers of another length, and gradients of the step before.


def test_a_buffer_of_another_length_is_refused_by_every_verb():
    """Full buffers have 15 numbers and one of padding, shards 8."""

    def program(comm):
        replica = replica_of(config, Observed(comm), allocate)
        replica.begin(initial_weights(config))
        (unit,) = replica.units
        replica.factor = 1.0
        words = []
        for verb, length in (("reduce_scatter", 8), ("keep", 8), ("keep_shard", 8), ("update", 16), ("publish", 8)):
            with pytest.raises(CollectiveError, match=f"{verb} got {length} elements of layers.0; ") as found:
                getattr(replica, verb)(unit, np.zeros(length, np.float32))
            words.append(str(found.value))
        return words

    _, config = only_row(scenario(
        ranks=2, micro_batches=2, hidden=(), stages=("zero1",)), labelled(features=4))
    for words in spawn(program, 2):
        assert ["expected 8" in each for each in words] == [False, False, False, True, False]


@pytest.mark.parametrize("name", STAGES)
def test_the_gradients_of_the_step_before_are_not_those_of_this_one(name):
    """A step that keeps nothing is told so, even if the one before has kept all."""
    experiment, config = only_row(scenario(ranks=1, micro_batches=1, stages=(name,)))

    def program(comm):
        replica = replica_of(config, Observed(comm), allocate)
        replica.begin(initial_weights(config))
        first, second, *_ = experiment.of_rank(config, 0)
        STAGES[name].step(replica, first)
        replica.at_boundary(replace(first, last=False), replica.units[0], np.zeros(1))
        replica.zero_grad(second)
        assert replica.unreduced == {}
        with pytest.raises(CollectiveError, match="update found no gradient of"):
            replica.update(replica.units[0], replica.state.weights[replica.units[0]])

    spawn(program, 1)
