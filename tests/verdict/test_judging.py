"""What measuring and judging rest on, one piece at a time: figures by hand, without a run wherever none is needed."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tests.training import labelled, scenario
from tests.verdict.configs import config
from zerosim.core.allocation import allocate
from zerosim.core.orders import ORDERS
from zerosim.observe.observed import Observed
from zerosim.stages import STAGES
from zerosim.stages.gathering import Prefetched
from zerosim.stages.replica import Replica
from zerosim.training import build
from zerosim.training.comparison import Evidence, first_of
from zerosim.training.experiment import prepare
from zerosim.training.measurement import Measurement, RankMemory
from zerosim.verdict.diagnosis import hexadecimal, orders_of_addition, ulps_apart
from zerosim.verdict.judged_run import memory_due, run_locally, what_it_needs
from zerosim.verdict.outcome import lingering, overweight
from zerosim.verdict.traffic import message_copies

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")


# A rank's figures.


def left(owners):
    found = RankMemory(
        rank=0, resting_bytes={}, peak_bytes={}, owners={kind: owners.get(kind, {}) for kind in KINDS},
        at_rest=owners.get("at rest", {}), held_at_beginning=owners.get("as began", {}))
    copies = message_copies(config("ddp")) if owners.get("copies") else None
    due = memory_due(config("ddp"), 0, config("ddp").steps_here, copies)
    return [*overweight(found, due), *lingering(found, due)]


def test_a_byte_too_much_is_named_with_its_unit():
    assert left({"parameters": {"layers.0": 144, "layers.1": 96}}) == []
    assert left({"parameters": {"layers.0": 145}}) == ["145 B of layers.0's parameters; expected 144"]
    assert left({"activations": {"loss": 1}}) == ["1 B of activations for loss after the step"]
    copies = (61 + 41 + 26 + 3 + 6 + 11) * 5                                # as in the plans
    assert left({"buffers": {"messages": copies}, "copies": True}) == []
    assert left({"buffers": {"messages": copies + 1}, "copies": True}) != []
    assert left({"buffers": {"messages": 1}}) == ["1 B of buffers for messages after the step"]


def unfit(config):
    return what_it_needs(Measurement(config, fits=False))


def test_what_a_row_that_did_not_fit_needs():
    """Of 1,752, 62,751 and 753 elements, padded: 65,256, of which gradients are at most 753 and twice 62,751 in DDP."""
    found = unfit(config("ddp", {"memory_limit_mb": 1, "hidden": (250, 250)}))
    assert (found.needed_bytes, found.allowed_bytes) == (65_256 * 16, 10**6)
    assert found.would_fit == ["zero1", "zero2"]                                # Stage III: 87,008 + 251,004 + …
    assert unfit(config("zero3", {"memory_limit_mb": 1})).would_fit == [*STAGES][:-1]
    assert unfit(config("zero3", {"hidden": (250, 250)})).would_fit == []


# Where bytes first differ.


def evidence(step=1, unit=0, chunk=0, rank=0, what="weights", values=None):
    return Evidence(step, unit, chunk, rank, what, values)


def test_the_earliest_step_counts_first_then_the_loss_then_units_chunks_and_ranks():
    in_order = [
        evidence(step=1, unit=2, chunk=2, rank=2), evidence(step=2, unit=None, rank=3),
        evidence(step=2, unit=0, chunk=3),
        evidence(step=2, unit=1, chunk=0, rank=3), evidence(step=2, unit=1, chunk=1, rank=0),
        evidence(step=2, unit=1, chunk=1, rank=1),
    ]
    for start in range(len(in_order)):
        assert first_of([None, *reversed(in_order[start:])]) is in_order[start]
    assert first_of([None, None]) is None
    assert first_of(None) is None


F16, F32 = np.float16, np.float32


@pytest.mark.parametrize(("ours", "expected", "ulps"), [
    (F32(-1e-45), F32(1e-45), 2), (F32(1e-45), F32(-0.0), 1), (F16(65504), F16("inf"), 1), (F32("nan"), F32(1), None),
    (ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(-1), 2 * 0x3F80),
])
def test_ulps_are_counted_across_zero_in_every_precision(ours, expected, ulps):
    assert ulps_apart(ours, expected) == ulps_apart(expected, ours) == ulps


def test_bits_in_hexadecimal():
    shown = [hexadecimal(each) for each in (F32(1), F32(0), F16(-2), F16(6e-8), ml_dtypes.bfloat16(1))]
    assert shown == ["0x3f800000", "0x00000000", "0xc000", "0x0001", "0x3f80"]


def test_orders_of_addition_in_words_and_in_symbols():
    words = ORDERS["exact"].words
    assert orders_of_addition(config("ddp", {"order": "exact"}), 0) == {"ours": words, "reference": words}
    found = orders_of_addition(config("zero2", {"order": "rank"}), 1)
    assert found["ours"] == found["reference"] == "(((g0 + g1) + (g2 + g3)) + (g4 + g5))"
    by_parts = orders_of_addition(config("zero2", {"order": "ring", "accumulation": "micro_batch"}), 0)
    assert by_parts["ours"] == by_parts["reference"] == "((g1 + g2) + g0)"


# Fingerprints, and what measuring brings.


def test_the_optimizer_state_is_compared_even_without_steps(monkeypatch):
    honest = Replica.begin

    def begins(replica, initial):
        honest(replica, initial)
        for state in replica.state.optimizer[replica.units[1]].values():
            state[0] = 1

    monkeypatch.setattr(Replica, "begin", begins)
    (stage,) = run_locally(prepare(scenario(steps=0, stages=("zero2",)), labelled())).trained
    assert stage.equal is False
    assert (stage.first_divergence.step, stage.first_divergence.layer) == (0, 1)


def test_the_second_channel_carries_what_is_prefetched_and_what_is_reduced_beside_the_step():
    cases = (({}, False, False), ({"prefetch": True}, True, False), ({"overlap": True}, False, True))
    for keys, gathers, reduces in cases:
        comm, channel = (Observed(SimpleNamespace(rank=0, size=1)) for _ in range(2))
        mine = build.replica(config("zero3", {"ranks": 1}, keys), comm, allocate, channel)
        assert isinstance(mine.gathering, Prefetched) is gathers
        seconds = getattr(mine.gathering, "_second_channel", None), mine.overlap
        assert [second._comm for second in seconds if second] == [channel] * (gathers + reduces)
