"""Gradient accumulation: when each stage reduces and gathers, what that sends and holds, and what must be caught.

By hand on the model of `test_formulas`: units of 36, 24 and 15 elements, padding included, so 75, on 3 ranks.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.mpi.launch import mpirun
from tests.training import sabotaged
from tests.verdict.test_formulas import (
    BOUNDARY,
    FOUR_EACH,
    FP16,
    FROZEN,
    ONE_EACH,
    OVERLAP,
    PARTS,
    WIDE_SUMS,
    WIDE_WIRE,
    config,
    peak,
)
from tests.verdict.test_planted import fails, outcome_of
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.verdict.traffic import most_messages, volume

ALL = ("ddp", "zero1", "zero2", "zero3")
PREFETCH, KEEP = {"prefetch": True}, {"reshard_after_forward": False}
EXACT, TREE = {"order": "exact"}, {"order": "tree", "ranks": 4}


# By hand.


@pytest.mark.parametrize(("stage", "keys", "volumes", "messages"), [
    ("ddp", [], 2, 12), ("zero1", [], 2, 12), ("zero2", [], 2, 12),                     # whatever n is
    ("ddp", [PARTS], 2, 12), ("zero1", [PARTS], 2, 12),
    ("zero2", [PARTS], 4 + 1, 30), ("zero2", [PARTS, {"gradients": "all_reduce"}], 8 + 1, 54),
    ("zero3", [], 2 * 4 + 1, 54), ("zero3", [KEEP], 4 + 1, 30),
    ("zero3", [PARTS], 3 * 4, 72), ("zero3", [PARTS, KEEP], 2 * 4, 48),
    ("zero3", [{"frozen": (0,)}], (4 * (75 + 39) + 39) / 75, 4 * 10 + 4),
])
def test_what_is_sent_for_four_micro_batches(stage, keys, volumes, messages):
    """In units of P (N − 1)/N; the layered way sends what one micro-batch does."""
    found, layered = (config(stage, FOUR_EACH, how, *keys) for how in (BOUNDARY, {"accumulation": "layered"}))
    assert volume(found) == pytest.approx(volumes, rel=1e-12)
    assert most_messages(found) == messages
    if PARTS not in keys:
        assert volume(layered) == volume(config(stage, ONE_EACH, *keys))


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("ddp", [], 300 + 4 * 36), ("zero1", [], 300 + 4 * 36),                 # all sums, and one contribution
    ("zero2", [], 300 + 4 * 15), ("zero3", [], 300 + 4 * 15),               # the last micro-batch leaves shards
    ("zero2", [FOUR_EACH], 300 + 4 * 36), ("zero3", [FOUR_EACH], 300 + 4 * 36),     # the ones between do not
    ("zero2", [FOUR_EACH, OVERLAP], 300 + 4 * 36),
    ("zero2", [OVERLAP], 5 * 4 + 4 * 24 + 8 * 36),
    ("ddp", [FP16, WIDE_SUMS], 39 * 6 + 10 * 36),
    ("zero3", [FP16, WIDE_SUMS, FOUR_EACH], 300 + 6 * 36),                  # a sum of all, a contribution, its copy
    ("zero3", [FP16, WIDE_WIRE, FOUR_EACH], 13 * 2 + 6 * 36),               # the last sum, and it for the wire
    ("zero2", [FOUR_EACH, EXACT], 3 * 300 + 4 * 15),
    ("zero3", [TREE, {"micro_batches": 16}], 2 * 304 + 4 * 16),             # 3 micro-batches are two sums
    ("zero2", [ONE_EACH], 13 * 4 + 4 * 36 + 4 * 12), ("zero2", [FROZEN], 0),
])
def test_the_peak_of_gradients_that_wait_for_the_boundary(stage, keys, expected):
    assert peak(config(stage, BOUNDARY, *keys), "gradients") == expected


@pytest.mark.parametrize("how", [BOUNDARY, PARTS])
@pytest.mark.parametrize("stage", ALL)
def test_activations_do_not_grow_with_micro_batches(stage, how):
    layered = {"accumulation": "layered"}
    one, four, together, more = (
        peak(config(stage, keys, {"micro_batches": 3 * block}), "activations")
        for keys, block in ((how, 2), (how, 4), (layered, 2), (layered, 4)))
    assert one == four < together < more


@pytest.mark.parametrize(("keys", "expected"), [
    ([PREFETCH], 100 + (36 + 36) * 4),              # layer 0 in use, and for the next micro-batch
    ([PREFETCH, ONE_EACH], 100 + (36 + 24) * 4),
    ([PREFETCH, FROZEN], 100 + (36 + 24) * 4),      # nothing goes backward
    ([PREFETCH, {"hidden": (1, 9)}], (3 + 6 + 10) * 4 + 2 * 30 * 4),
    ([KEEP], 100 + 75 * 4), ([], 100 + 36 * 4),
])
def test_the_peak_of_parameters_where_another_micro_batch_follows(keys, expected):
    assert peak(config("zero3", BOUNDARY, *keys), "parameters") == expected


# Runs: bits as one process has them, bytes and peaks as the formulas say.


def test_the_last_backward_of_a_micro_batch_prefetches_for_the_next_one(monkeypatch):
    """Expected figures come from the same code, so the order of units stands here by hand."""
    asked, honest = [], Replica.prefetch

    def prefetch(replica, unit):
        asked.append(unit and int(unit.name.removeprefix("layers.")))
        honest(replica, unit)

    monkeypatch.setattr(Replica, "prefetch", prefetch)
    outcome_of(stages=("zero3",), micro_batches=6, prefetch=True)
    one_step = [1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, None]
    assert asked[-len(one_step):] == one_step


# What must be caught.


def with_verb(monkeypatch, stage, verb, changed):
    """Let the stage train by a replica of which one verb is another: `changed(replica, the honest one)` gives it."""
    honest = STAGES[stage]

    def step(replica, batch):
        setattr(replica, verb, changed(replica, getattr(Replica, verb).__get__(replica)))
        try:
            return honest.step(replica, batch)
        finally:
            delattr(replica, verb)

    monkeypatch.setitem(STAGES, stage, sabotaged(STAGES, stage, step=step))


def dropped(replica, parts):
    """The second micro-batch is never taken."""
    return lambda batch: (part for number, part in enumerate(parts(batch)) if number != 1)


def twice(replica, parts):
    return lambda batch: (part for part in parts(batch) for _ in range(1 + (part.first == batch.first)))


def last_first(replica, parts):
    """The same micro-batches, added right to left."""

    def backwards(batch):
        ways = replace(batch, inputs=batch.inputs[::-1], targets=batch.targets[::-1])
        return parts(ways)

    return backwards


def reduced_early(replica, at_boundary):
    """The first micro-batch's gradients are reduced as well, and kept."""
    return lambda part, unit, gradient: gradient if part.first % 3 == 0 else at_boundary(part, unit, gradient)


def forgotten(replica, at_boundary):
    """Only what the last micro-batch brings is reduced."""
    return lambda part, unit, gradient: gradient if part.last else None


@pytest.mark.parametrize(("verb", "fault"), [
    ("parts", dropped), ("parts", twice), ("parts", last_first), ("at_boundary", reduced_early),
    ("at_boundary", forgotten),
])
@pytest.mark.parametrize("stage", ALL)
def test_micro_batches_that_are_not_added_once_each_in_order_fail(monkeypatch, stage, verb, fault):
    keys = {"stages": (stage,), "micro_batches": 9, "learning_rate": 0.3}
    assert outcome_of(**keys).passed
    with_verb(monkeypatch, stage, verb, fault)
    fails(outcome_of(**keys), "bits differ")


def test_a_reduction_too_many_is_counted_where_its_bits_are_right(monkeypatch):
    """Zeros are reduced with each micro-batch but the last: the sums stay, the bytes do not."""

    def zeros_too(replica, at_boundary):
        def changed(part, unit, gradient):
            if not part.last:
                replica.reduce_scatter(unit, np.zeros_like(gradient))
            return at_boundary(part, unit, gradient)

        return changed

    with_verb(monkeypatch, "zero2", "at_boundary", zeros_too)
    fails(outcome_of(stages=("zero2",)), "bytes sent are not the formula's")


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_full_gradients_that_wait_where_shards_should_be_are_seen(monkeypatch, stage):
    """Whoever reduces every micro-batch must not keep a full gradient for the next one."""
    hoard = []

    def hoarding(replica, at_boundary):
        def changed(part, unit, gradient):
            hoard.append(gradient)
            return at_boundary(part, unit, gradient)

        return changed

    with_verb(monkeypatch, stage, "at_boundary", hoarding)
    fails(outcome_of(stages=(stage,), accumulation="micro_batch"), "of gradients; ")


def test_weights_that_are_gathered_once_for_all_micro_batches_are_counted(monkeypatch):
    known = {}

    def only_once(replica, gather):
        def changed(unit):
            key = replica.comm.rank, replica.state.step, unit
            if key not in known:
                known[key] = gather(unit)
            return known[key]

        return changed

    with_verb(monkeypatch, "zero3", "gather", only_once)
    fails(outcome_of(stages=("zero3",)), "bytes sent are not the formula's")


# Under MPI.


def test_a_run_of_every_way_under_mpi():
    """Bytes, bits and peaks on four processes, by the shipped scenario."""
    found = mpirun(4, ["-m", "zerosim", "run", "scenarios/accumulation.toml", "--set", "train.steps=2"])
    assert found.returncode == 0, found.stdout + found.stderr
