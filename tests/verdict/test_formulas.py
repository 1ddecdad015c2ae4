"""What the plans say of one small model, worked out by hand: layers of 6-5-4-3, so 35, 24 and 15 parameters.

On 3 ranks these are padded to 36, 24 and 15, in chunks of 12, 8 and 5: 75 elements in all, 25 on each rank.
Each rank has two micro-batches a step; they go together unless a case says otherwise.
"""

from dataclasses import replace

import pytest

from tests.verdict.configs import config
from zerosim.observe.traffic import Count
from zerosim.verdict.resting import needed_at_beginning, padding_bytes, resting_bytes
from zerosim.verdict.shapes import expected as expected_memory
from zerosim.verdict.traffic import counts_due, message_copies, message_lengths, most_messages, volume

FP16 = {"precision": "fp16"}
PARTS, BOUNDARY = {"accumulation": "micro_batch"}, {"accumulation": "boundary"}
WIDE_WIRE, WIDE_SUMS = {"reduce_dtype": "fp32"}, {"accumulate_dtype": "fp32"}
FROZEN = {"frozen": (0, 1, 2)}


def peak(found, *kinds):
    """The peaks of these kinds, from a step on shapes; of one kind its number."""
    held = [expected_memory(found).peak_bytes.get(kind, 0) for kind in kinds]
    return tuple(held) if len(kinds) > 1 else held[0]


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("ddp", [], (300, 300, 600, 16)),                            # 1 element of padding: 4 + 4 + 8
    ("zero1", [], (300, 300, 200, 11)),                          # 4 + 4 + 8/3
    ("zero3", [], (100, 100, 200, 5)),
    ("zero3", [FP16, WIDE_SUMS], (50, 150, 300, 7)),
    ("ddp", [{"frozen": (0,)}], (300, 156, 312, 4)),
    ("zero3", [{"optimizer": "sgd"}], (100, 100, 0, 3)),
    ("zero2", [{"ranks": 1}], (296, 296, 592, 0)),
])
def test_what_rests(stage, keys, expected):
    found = config(stage, *keys)
    assert (*resting_bytes(found).values(), padding_bytes(found)) == expected


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("zero3", [], 100 + 36 * 4),
    ("zero3", [{"prefetch": True}], 100 + (36 + 24) * 4),
    ("zero3", [{"prefetch": True, "units": "model"}], 100 + 2 * 75 * 4),                    # forward's, and backward's
    ("zero3", [{"prefetch": True, "hidden": (1, 9)}], (3 + 6 + 10) * 4 + 2 * 30 * 4),
    ("zero3", [{"reshard_after_forward": False}], 100 + 75 * 4),
    ("zero3", [{"reshard_after_forward": False, "frozen": (0,)}], 100 + (24 + 15) * 4),     # kept until backward
])
def test_the_peak_of_parameters(stage, keys, expected):
    assert peak(config(stage, *keys), "parameters") == expected


OVERLAP = {"overlap": True}
FOUR_EACH = {"micro_batches": 12}
ONE_EACH = {"micro_batches": 3}


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("ddp", [], 39 * 4 + 8 * 36), ("zero1", [], 39 * 4 + 8 * 36),                           # two contributions
    ("zero2", [], 13 * 4 + 8 * 36), ("zero3", [], 13 * 4 + 8 * 36),
    ("zero2", [ONE_EACH], 13 * 4 + 4 * 36 + 4 * 12),                                        # sum and shard
    ("ddp", [FOUR_EACH, {"order": "exact"}], 39 * 4 + 16 * 36),
    ("zero2", [PARTS], 100 + 4 * 36 + 4 * 12), ("zero3", [PARTS], 100 + 4 * 36 + 4 * 12),
    ("zero2", [FP16, WIDE_WIRE, {"ranks": 4, "micro_batches": 4}], 10 * 2 + 6 * 36),        # a sum, and it for the wire
    ("ddp", [FP16, WIDE_SUMS], 39 * 6 + 10 * 36),                                           # 4 + 4 + 2
    ("ddp", [FP16, {"order": "exact"}, WIDE_WIRE, ONE_EACH], 39 * 2 + 2 * 36),              # integers travel
    ("ddp", [{"frozen": (0,)}], 15 * 4 + 8 * 24),
    ("ddp", [OVERLAP], 15 * 4 + 4 * 24 + 8 * 36),                                           # reduced beside two more
    ("zero3", [OVERLAP, ONE_EACH], 5 * 4 + 4 * 24 + 4 * 36 + 4 * 8),                        # kept, beside one
    ("zero2", [OVERLAP, {"units": "model"}], 8 * 75),                                       # nothing is beside it
    ("ddp", [OVERLAP, FP16, WIDE_WIRE], 15 * 2 + 6 * 24 + 4 * 36),                          # a sum, and it for the wire
])
def test_the_peak_of_gradients(stage, keys, expected):
    assert peak(config(stage, *keys), "gradients") == expected


@pytest.mark.parametrize(("keys", "activations", "buffers"), [
    ([], 2 * 4 * (2 * (5 + 4) + 2 * 3 + 2 * 4 + 4), 0),     # layer 1: all y, outputs, both ∂L/∂y, one ∂L/∂x
    ([{"activation": "tanh"}], 2 * 4 * (2 * (5 + 4) + 2 * 3 + 2 * 4 + 2 * 4), 0),           # … and a slope
    ([{"activation": "gelu"}], 2 * 4 * (2 * (5 + 5 + 4) + 2 * 3 + 2 * 4 + 3 * 4), 0),       # x of gelu, two of scratch
    ([FP16], 2 * 2 * (2 * (5 + 4) + 2 * 3 + 2 * 4 + 3 * 4), 4 * (2 * (5 + 4) + 24 + 20)),
])
def test_activations_of_one_pass_by_hand(keys, activations, buffers):
    """In 16 bits one ∂L/∂x is there twice, once wide; in layer 1 x, ∂L/∂y, gradients and the matrix are widened."""
    assert peak(config("zero2", *keys), "activations", "buffers") == (activations, buffers)


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("zero1", [], 36 * 4), ("zero2", [FROZEN], 0), ("zero1", [{"frozen": (0,)}], 24 * 4), ("ddp", [], 0),
    ("zero3", [], 0), ("zero1", [FP16], 4 * (5 + 4 + 24 + 20)),
])
def test_buffers_are_what_is_widened_or_updates_on_their_way_never_both(stage, keys, expected):
    assert peak(config(stage, {"publish": "updates", "micro_batch": 1}, *keys), "buffers") == expected
    assert stage == "ddp" or FP16 in keys or not peak(config(stage, {"publish": "broadcasts"}, *keys), "buffers")


ALWAYS = {2, 4, 8}
"""Exponents, losses and integers."""


@pytest.mark.parametrize(("stage", "keys", "step", "apart"), [
    ("ddp", [], {48, 32, 20}, set()),
    ("zero1", [FP16, WIDE_WIRE], {48, 32, 20, 24, 16, 10}, set()),              # sums, and published weights
    ("ddp", [{"order": "exact"}], {24, 16, 10, 96, 64, 40, 48, 32, 20}, set()),  # exponents, integers, sums
    ("zero3", [FP16, WIDE_WIRE, {"prefetch": True}], {48, 32, 20}, {24, 16, 10}),
    ("zero1", [FP16, OVERLAP], {24, 16, 10}, {24, 16, 10}),                     # published, and reduced
    ("zero3", [{"units": "model"}], {100}, set()),
])
def test_lengths_of_messages(stage, keys, step, apart):
    found = config(stage, *keys)
    agreed = found.scaling().dynamic and stage != "ddp"
    norms = {8 * sum(not unit.frozen for unit in found.model.units)} if agreed else set()
    assert message_lengths(found) == (step | ALWAYS | norms, apart)


def test_copies_of_messages():
    """Of each length a quarter more: 48, 32 and 20 bytes of chunks, and 2, 4 and 8; two of a call, twice, and one."""
    spare = 61 + 41 + 26 + 3 + 6 + 11
    assert message_copies(config("ddp")) == spare * (2 * 2 + 1)
    assert message_copies(config("zero2", CLIP)) == (spare + 31) * 5             # three norms
    assert message_copies(config("zero3", {"prefetch": True})) == (spare + 61 + 41 + 26) * 5
    assert message_copies(config("zero3", {"ranks": 1})) == 0
    assert message_copies(config("ddp", {"order": "exact"})) == (            # 4 of exponents and 2 of each limb
        spare + sum(length + length // 4 + 1 for length in (24, 16, 10, 96, 64, 40))) * (2 * 6 + 1)
    for stage in ("zero1", "zero2"):
        assert message_copies(config(stage, {"publish": "broadcasts"})) == spare * (2 * 3 + 1)


def walk(calls, sent, messages=2):
    return Count(calls, sent, calls * messages, sent)


def due_on(found, rank, updates):
    """What is due by collective; the largest message is claimed elsewhere."""
    return {name: replace(each, largest_message_bytes=0) for name, each in counts_due(found, rank, updates).items()}


CLIP = {"clip_norm": 1.0}
BROADCASTS = {"publish": "broadcasts"}


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("ddp", [], {"reduce_scatter": walk(12, 800), "all_gather": walk(12, 800)}),        # 4 steps of 25 · 2 · 4 bytes
    ("zero1", [], {"reduce_scatter": walk(12, 800), "all_gather": walk(9, 600)}),       # 3 were not skipped
    ("zero3", [], {"reduce_scatter": walk(12, 800), "all_gather": walk(24, 1600)}),
    ("zero3", [{"frozen": (0,)}], {"reduce_scatter": walk(8, 416), "all_gather": walk(20, 4 * (200 + 104))}),
    ("zero1", [{"gradients": "all_reduce"}], {"reduce_scatter": walk(12, 800), "all_gather": walk(21, 1400)}),
    ("ddp", [{"order": "exact"}], {"reduce_scatter": walk(12, 4 * 25 * 2 * 12, 6), "all_gather": walk(12, 800)}),
    ("zero2", [CLIP], {
        "reduce_scatter": walk(12, 800), "all_gather": walk(9, 600), "gather_norms": walk(4, 4 * 2 * 3 * 8)}),
    ("zero3", [{"steps": 0}], {}),
])
def test_traffic_that_is_due(stage, keys, expected):
    found = config(stage, *keys)
    for rank in range(found.directions.ranks):
        assert due_on(found, rank, min(3, found.train.steps)) == expected


def test_broadcasts_that_are_due():
    """To 3 ranks from 0: 0 → 2, 0 → 1; from 1: 1 → 2, 1 → 0; from 2: 2 → 0, 0 → 1."""
    found = config("zero1", BROADCASTS)
    calls, chunks = 3 * 3 * 3, 3 * 25 * 4
    for rank, sent in enumerate((3, 2, 1)):
        assert due_on(found, rank, 3) == {
            "reduce_scatter": walk(12, 800), "broadcast": Count(calls, sent * chunks, sent * 9, 2 * chunks)}


@pytest.mark.parametrize(("stage", "keys", "volumes", "messages"), [
    ("ddp", [], 2, 12), ("zero1", [], 2, 12), ("zero2", [], 2, 12), ("zero3", [], 3, 18),
    ("zero1", [BROADCASTS], 2, 6 + 9), ("zero2", [PARTS], 3, 18), ("zero3", [PARTS], 6, 36),
    ("ddp", [{"order": "exact"}], 4, 24), ("zero2", [CLIP], 2 + 48 / 200, 14),
    ("zero3", [{"frozen": (0,)}], (75 + 39 + 39) / 75, 14),
])
def test_volume_and_messages_of_a_step(stage, keys, volumes, messages):
    found = config(stage, *keys)
    assert volume(found) == pytest.approx(volumes, rel=1e-12)
    assert most_messages(found) == messages


def test_the_middle_rank_of_a_pipeline_sends_most_messages():
    """Four activations and four gradients of activations; the ranks at the ends send four of either."""
    found = config("ddp", {"ranks": 3, "pipeline_ranks": 3, "micro_batches": 4}, BOUNDARY)
    assert most_messages(found) == 4 + 4


@pytest.mark.parametrize(("stage", "keys", "expected"), [
    ("ddp", [], {"update": (300, 300, 48), "reduce_scatter": 300}),  # outputs of 2 · 2 samples, 3 each
    ("zero3", [], {"update": (100, 100, 48), "reduce_scatter": 100}),
    ("zero2", [FP16, PARTS], {"update": (150, 50, 12), "reduce_scatter": 150}),
    ("zero3", [{"reshard_after_forward": False}], {"update": (100, 100, 48)}),
    ("zero3", [{"recompute": True}], {"update": (100, 100, 48), "reduce_scatter": 100}),
    ("zero3", [{"prefetch": True}], {}),
])
def test_what_is_still_needed_as_something_begins(stage, keys, expected):
    found = needed_at_beginning(config(stage, *keys))
    assert {name: tuple(needed.values()) if len(needed) > 1 else needed["parameters"]
            for name, needed in found.items()} == expected
