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


def zeros_too(replica, at_boundary):
    """Zeros are reduced with each micro-batch but the last: the sums stay, the bytes do not."""
    def changed(part, unit, gradient):
        if not part.last:
            replica.reduce_scatter(unit, np.zeros_like(gradient))
        return at_boundary(part, unit, gradient)

    return changed


def hoarding(replica, at_boundary):
    """Full gradients stay where shards should, although every micro-batch is reduced."""
    hoard = vars(replica).setdefault("hoard", [])

    def changed(part, unit, gradient):
        hoard.append(gradient)
        return at_boundary(part, unit, gradient)

    return changed


def only_once(replica, gather):
    """Weights are gathered once for all micro-batches of a step."""
    known = vars(replica).setdefault("known", {})

    def changed(unit):
        key = replica.state.step, unit
        known[key] = known[key] if key in known else gather(unit)
        return known[key]

    return changed


@pytest.mark.parametrize(("stage", "verb", "changed", "keys", "said"), [
    ("zero2", "at_boundary", zeros_too, {}, "bytes sent are not the formula's"),
    ("zero2", "at_boundary", hoarding, {"accumulation": "micro_batch"}, "of gradients; "),
    ("zero3", "at_boundary", hoarding, {"accumulation": "micro_batch"}, "of gradients; "),
    ("zero3", "gather", only_once, {}, "bytes sent are not the formula's"),
])
def test_a_verb_with_right_bits_and_wrong_bytes_is_seen(monkeypatch, stage, verb, changed, keys, said):
    with_verb(monkeypatch, stage, verb, changed)
    fails(outcome_of(stages=(stage,), **keys), said)
