"""What measuring and judging rest on, one piece at a time: figures by hand, without a run wherever none is needed."""

from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from tests.test_formulas import config
from tests.training import labelled, scenario
from zerosim.allocation import allocate
from zerosim.figures.shapes import expected
from zerosim.figures.traffic import message_copies
from zerosim.instruments.observed import Observed
from zerosim.numerics.orders import ORDERS
from zerosim.scenario import Check
from zerosim.scenario.schema import Claims
from zerosim.stages import STAGES
from zerosim.stages.gathering import Prefetched
from zerosim.stages.replica import Replica
from zerosim.training import build
from zerosim.training.comparison import Evidence, first_of
from zerosim.training.experiment import prepare
from zerosim.training.program import Run, Silent, measure
from zerosim.verdict.diagnosis import element, hexadecimal, locate, orders_of_addition, ulps_apart
from zerosim.verdict.judge import judged_memory, what_it_needs
from zerosim.verdict.judged_run import run_locally
from zerosim.worlds.local import LocalWorld, spawn

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")


# Tables.


def test_what_is_true_of_each_stage():
    assert {
        key: (stage.sharded, stage.gathers, stage.publishes, stage.shares_updates, stage.may_reduce_parts)
        for key, stage in STAGES.items()
    } == {
        "ddp": ((), False, False, False, False),
        "zero1": (("optimizer",), False, True, True, False),
        "zero2": (("optimizer", "gradients"), False, True, True, True),
        "zero3": (("optimizer", "gradients", "parameters"), True, False, True, True),
    }


def test_a_row_of_which_nothing_is_said_has_no_claims_but_the_reference():
    assert Claims() == Claims(
        volume=None, messages=None, largest_message=None, activations=None, beyond_peak=None,
        beyond_peak_laid_out=None, fragmentation=False, does_not_fit=False, test_accuracy=0.0, test_loss=0.0,
        reference=True)
    said = replace(scenario(stages=("ddp", "zero3")), check=Check(
        volumes=(2, 3), messages=(4, 5), largest_messages=(6, 7), activations=(8, 9), beyond_peak=(10, 11),
        beyond_peak_laid_out=(12, 13), does_not_fit=("zero3",),
        test_accuracy=0.5, test_loss=1.5, reference=False))
    assert [row.claims for row in said.rows] == [
        Claims(2, 4, 6, 8, 10, 12, True, False, 0.5, 1.5, False),
        Claims(3, 5, 7, 9, 11, 13, True, True, 0.5, 1.5, False)]


# A rank's figures.


def left(owners):
    figures = SimpleNamespace(
        rank=0, owners={kind: owners.get(kind, {}) for kind in KINDS}, peak_bytes={}, alive_bytes=0, resident_bytes=0,
        curve=[], copies_messages=owners.get("copies", False), at_rest=owners.get("at rest", {}), offloaded_bytes=0,
        held_as_began=owners.get("as began", {}),
    )
    copies = message_copies(config("ddp")) if figures.copies_messages else 0
    judged = judged_memory(config("ddp"), figures, expected(config("ddp")), copies)
    return [*judged.overweight, *judged.lingering]


def test_a_byte_too_much_is_named_with_its_unit():
    assert left({"parameters": {"layers.0": 144, "layers.1": 96}}) == []
    assert left({"parameters": {"layers.0": 145}}) == ["145 B of layers.0's parameters; expected 144"]
    assert left({"activations": {"loss": 1}}) == ["1 B of activations for loss after the step"]
    copies = (61 + 41 + 26 + 3 + 6 + 11) * 5                                # as in the plans
    assert left({"buffers": {"messages": copies}, "copies": True}) == []
    assert left({"buffers": {"messages": copies + 1}, "copies": True}) != []
    assert left({"buffers": {"messages": 1}}) == ["1 B of buffers for messages after the step"]


def test_what_a_row_that_did_not_fit_needs():
    """Of 1,752, 62,751 and 753 elements, padded: 65,256, of which gradients are at most 753 and twice 62,751 in DDP."""
    found = what_it_needs(config("ddp", {"memory_limit_mb": 1, "hidden": (250, 250)}))
    assert (found.needed_bytes, found.allowed_bytes) == (65_256 * 16, 10**6)
    assert found.would_fit == ["zero1", "zero2"]                                # Stage III: 87,008 + 251,004 + …
    assert what_it_needs(config("zero3", {"memory_limit_mb": 1})).would_fit == [*STAGES][:-1]
    assert what_it_needs(config("zero3", {"hidden": (250, 250)})).would_fit == []


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
    (F32(1), F32(1), 0), (F32(-1e-45), F32(1e-45), 2), (F32(1e-45), F32(-0.0), 1), (F32(-1e-45), F32(0), 1),
    (F32(-1), F32(1), 2 * 0x3F800000), (F16(-1), F16(1), 2 * 0x3C00), (F16(65504), F16("inf"), 1),
    (F32("nan"), F32(1), None), (F32(1), F32("nan"), None),
    (ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(-1), 2 * 0x3F80),
])
def test_ulps_are_counted_across_zero_in_every_precision(ours, expected, ulps):
    assert ulps_apart(ours, expected) == ulps_apart(expected, ours) == ulps


def test_bits_in_hexadecimal():
    shown = [hexadecimal(each) for each in (F32(1), F32(0), F16(-2), F16(6e-8), ml_dtypes.bfloat16(1))]
    assert shown == ["0x3f800000", "0x00000000", "0xc000", "0x0001", "0x3f80"]


def test_an_element_and_the_padding_behind_it():
    unit = config("ddp", {"units": "model"}).model.units[0]
    assert [element(unit, at) for at in (0, 13, 29, 30, 34, 35, 73, 74, 75)] == [
        (0, "weight", (0, 0)), (0, "weight", (2, 1)), (0, "weight", (4, 5)), (0, "bias", (0,)), (0, "bias", (4,)),
        (1, "weight", (0, 0)), (2, "bias", (2,)), (2, "padding", (0,)), (2, "padding", (1,)),
    ]


def test_a_difference_is_located_in_its_chunk():
    units = config("ddp").model.units
    weights = {unit: np.arange(unit.count, dtype=F32) for unit in units}
    snapshot = SimpleNamespace(loss=np.ones(1, F32), weights=weights, optimizer={}, gradients={}, residuals={})
    values = np.arange(8, 16, dtype=F32)
    values[[2, 5]] = [11, np.nan]
    found = locate(units, evidence(step=3, unit=1, chunk=1, rank=2, values=values), snapshot, 3)
    assert (found.layer, found.parameter, found.index, found.ours, found.reference) == (1, "weight", (2, 0), 11, 10)
    assert (found.step, found.rank, found.chunk, found.differing_elements, found.state) == (3, 2, 1, 2, None)
    assert (found.ours_bits, found.reference_bits, found.ulps) == ("0x41300000", "0x41200000", 1 << 20)
    loss = locate(units, evidence(unit=None, what="loss", values=np.full(1, 2, F32)), snapshot, 3)
    assert (loss.layer, loss.parameter, loss.index, loss.reference, loss.state) == (None, "loss", (), 1, None)


def test_orders_of_addition_in_words_and_in_symbols():
    words = ORDERS["exact"].words
    assert orders_of_addition(config("ddp", {"order": "exact"}), 0) == {"ours": words, "reference": words}
    found = orders_of_addition(config("zero2", {"order": "rank"}), 1)
    assert found["ours"] == found["reference"] == "(((g0 + g1) + (g2 + g3)) + (g4 + g5))"
    by_parts = orders_of_addition(config("zero2", {"order": "ring", "accumulation": "micro_batch"}), 0)
    assert by_parts["ours"] == by_parts["reference"] == "((g1 + g2) + g0)"


# What a row is made of.


# Fingerprints, and what measuring brings.


@pytest.mark.parametrize("steps", [0, 1])
def test_the_optimizer_state_is_compared_even_without_steps(monkeypatch, steps):
    honest = Replica.begin

    def begins(replica, initial):
        honest(replica, initial)
        for state in replica.state.optimizer[replica.units[1]].values():
            state[0] = 1

    monkeypatch.setattr(Replica, "begin", begins)
    (stage,) = run_locally(prepare(scenario(steps=steps, stages=("zero2",)), labelled()), Silent()).trained
    assert stage.equal is False
    assert (stage.first_divergence.step, stage.first_divergence.layer) == (0, 1)


def test_the_second_channel_carries_what_is_prefetched_and_what_is_reduced_beside_the_step():
    cases = (({}, False, False), ({"prefetch": True}, True, False), ({"overlap": True}, False, True))
    for keys, gathers, reduces in cases:
        comm, channel = (Observed(SimpleNamespace(rank=0, size=1)) for _ in range(2))
        mine = build.replica(config("zero3", {"ranks": 1}, keys), comm, allocate, channel)
        assert isinstance(mine.gathering, Prefetched) is gathers
        assert [beside._comm for beside in (getattr(mine.gathering, "_beside", None), mine.overlap) if beside] == (
            [channel] * (gathers + reduces))


def test_measurements_are_rank_0s_alone_and_the_curve_is_the_last_steps():
    experiment = prepare(scenario(ranks=2, stages=("ddp",), steps=2), labelled())
    world = LocalWorld(2)
    (first,), (second,) = spawn(lambda comm: list(measure(comm, Run(world, experiment, Silent()))), 2)
    assert second is None
    assert first.compared
    assert first.evidence is None
    assert [len(first.losses), len(first.traffic), len(first.memory), first.updates] == [2, 2, 2, 2]
    for rank, figures in enumerate(first.memory):
        assert figures.rank == rank
        assert figures.curve[0][0] == 0
        times = [at for at, _ in figures.curve]
        assert times == sorted(times)
        assert figures.curve[-1][1].get("activations", 0) == 0
        assert max(now.get("activations", 0) for _, now in figures.curve) == figures.peak_bytes["activations"]
        assert sum(figures.curve[-1][1].values()) == figures.alive_bytes
