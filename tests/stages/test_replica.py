"""Stages and their verbs: what runs beside a step, and accumulation that must be caught."""

from threading import get_ident

import numpy as np
import pytest

from tests.training import sabotaged
from tests.verdict.outcomes import fails, outcome_of
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.stages.second_channel import SecondChannel

ALL = ("ddp", "zero1", "zero2", "zero3")


def test_what_runs_beside_a_step_has_the_second_channel_to_itself():
    assert SecondChannel("own").begin(lambda comm: (comm, get_ident())).take() == ("own", get_ident())
    comm, thread = SecondChannel("own", "second").begin(lambda comm: (comm, get_ident())).take()
    assert comm == "second"
    assert thread != get_ident()


def test_each_use_of_weights_is_prefetched_during_the_use_before_it(monkeypatch):
    """Of forward, backward and the next micro-batch; bytes and bits are the same without, so it stands here by hand."""
    asked, honest = [], Replica.prefetch

    def prefetch(replica, unit):
        asked.append(unit and int(unit.name.removeprefix("layers.")))
        honest(replica, unit)

    monkeypatch.setattr(Replica, "prefetch", prefetch)
    outcome_of(stages=("zero3",), micro_batches=6, prefetch=True)
    one_step = [1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0, None]
    assert asked[-len(one_step):] == one_step


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
