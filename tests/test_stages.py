"""What a stage keeps between steps, and what it lets go of within one, seen from the arrays themselves."""

import gc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.training import batches_of, labelled, scenario
from zerosim.allocation import allocate
from zerosim.errors import CollectiveError
from zerosim.instruments.observed import Observed, ObservedAllocator
from zerosim.sharding import chunk_length, padded
from zerosim.stages import STAGES
from zerosim.training.build import initial_weights
from zerosim.training.build import replica as replica_of
from zerosim.worlds.local import spawn

RANKS = 3


def train(name, *, watch, optimizer="adam"):
    """Each rank's replica and what `watch` saw, after two steps of stage `name`."""
    batches = batches_of(scenario(ranks=RANKS, micro_batches=RANKS, steps=2, optimizer=optimizer, stages=(name,)))

    def program(comm):
        watcher = watch()
        replica = replica_of(batches.config, Observed(comm), ObservedAllocator(allocate, watcher))
        replica.begin(initial_weights(batches.config))
        for batch in batches.of_rank(comm.rank):
            STAGES[name].step(replica, batch)
        return replica, watcher

    return batches.config, spawn(program, RANKS)


class Watcher:
    """Counts, for each kind, the elements of 4 bytes that are alive now and the most there ever were."""

    def __init__(self):
        self.alive, self.peak = Counter(), Counter()

    def taken(self, kind, owner, held_bytes):
        self.alive[kind] += held_bytes // 4
        self.peak[kind] = max(self.peak[kind], self.alive[kind])

    def given_back(self, kind, owner, held_bytes):
        self.alive[kind] -= held_bytes // 4


KEPT = {
    "ddp": ("full", "full", "full"),
    "zero1": ("full", "full", "shard"),
    "zero2": ("full", "shard", "shard"),
    "zero3": ("shard", "shard", "shard"),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_a_rank_keeps_what_its_stage_says_and_nothing_else(name, optimizer, slots):
    config, ranks = train(name, watch=Watcher, optimizer=optimizer)
    gc.collect()
    lengths = {
        "full": sum(padded(unit.count, RANKS) for unit in config.model.units),
        "shard": sum(chunk_length(unit.count, RANKS) for unit in config.model.units),
    }
    weights, gradients, state = (lengths[kept] for kept in KEPT[name])
    for _, watcher in ranks:
        assert watcher.alive["parameters"] == weights
        assert watcher.alive["gradients"] == gradients
        assert watcher.alive["optimizer"] == state * slots


@pytest.mark.parametrize("name", STAGES)
def test_at_the_peak_one_unit_more_is_alive(name):
    """Of gradients in Stages II and III, of weights in Stage III; the largest unit comes first in this model."""
    config, ranks = train(name, watch=Watcher)
    largest = max(padded(unit.count, RANKS) for unit in config.model.units)
    full = sum(padded(unit.count, RANKS) for unit in config.model.units)
    shards = full // RANKS
    for _, watcher in ranks:
        if name in ("ddp", "zero1"):
            assert watcher.peak["gradients"] == full
        else:
            assert watcher.peak["gradients"] == shards + largest
        assert watcher.peak["parameters"] == (shards + largest if name == "zero3" else full)


def test_a_stage_that_keeps_a_gathered_unit_is_seen(monkeypatch):
    honest = STAGES["zero3"].step
    hoard = []

    def step(replica, batch):
        gather = replica.gather
        replica.gather = lambda unit: hoard.append(gather(unit)) or hoard[-1]
        return honest(replica, batch)

    monkeypatch.setitem(STAGES, "zero3", replace(STAGES["zero3"], step=step))
    config, ranks = train("zero3", watch=Watcher)
    shards = sum(chunk_length(unit.count, RANKS) for unit in config.model.units)
    assert ranks[0][1].alive["parameters"] > shards


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
