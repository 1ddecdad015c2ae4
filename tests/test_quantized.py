"""Quantised weights and gradients: a reference replays every bit, and bytes and memory are the formulas'."""

import numpy as np
import pytest

from tests.test_variants import run
from tests.test_whole_steps import outcome_of
from zerosim.numerics.wires import CODES, BlockWire

WEIGHTS = (
    {"quantized_weights": "int8", "quantized_block": 4}, {"quantized_weights": "int4", "quantized_block": 3},
    {"quantized_weights": "fp8_e4m3", "quantized_block": 0, "prefetch": True, "overlap": True},
    {"quantized_weights": "fp8_e5m2", "quantized_block": 8, "reshard_after_forward": False, "param_dtype": "bf16"},
    {"quantized_weights": "int4", "quantized_block": 5, "secondary_ranks": 3, "precision": "fp16", "clip_norm": 0.5},
    {"quantized_weights": "int8", "quantized_block": 7, "shard_ranks": 1, "units": "model"},
    {"quantized_weights": "int8", "quantized_block": 2, "bucket_mb": 0.00004, "recompute": True, "frozen": (1,)},
    {"quantized_weights": "int8", "order": "exact", "accumulation": "layered", "precision": "bf16"},
    {"quantized_weights": "int4", "learning_rate": 1e30, "optimizer": "sgd", "quantized_block": 4},
)


@pytest.mark.parametrize("keys", WEIGHTS, ids=str)
def test_weights_are_decoded_as_one_process_decodes_them(keys):
    assert outcome_of(**keys).failures == []


def test_gathers_send_a_quarter_or_an_eighth_and_scales():
    """A unit of 35, 24 or 15 weights on 3 ranks has shards of 12, 8 and 5."""
    def sent(**keys):
        row, = run(stages=("zero3",), steps=1, **keys).trained
        return row.traffic[0].counts.by_collective["all_gather"]["sent_bytes"]

    gathers, others, parts = 2, 2, 2
    shards = (12, 8, 5)
    assert sent() == gathers * others * parts * 4 * sum(shards)
    assert sent(quantized_weights="int8", quantized_block=4) == gathers * others * parts * sum(
        4 * -(-each // 4) + each for each in shards)
    assert sent(quantized_weights="int4", quantized_block=0) == gathers * others * parts * sum(
        4 + -(-each // 2) for each in shards)


@pytest.mark.parametrize("name", CODES)
def test_the_master_weights_are_never_quantised(name):
    """An update of nothing leaves float32 shards as they were."""
    plain, = run(stages=("zero3",), learning_rate=0.0).trained
    coded, = run(stages=("zero3",), learning_rate=0.0, quantized_weights=name).trained
    assert coded.measured.weights_sha256 == plain.measured.weights_sha256
    assert [each.tobytes() for each in coded.measured.losses] != [each.tobytes() for each in plain.measured.losses]


def test_a_scale_of_the_wrong_block_is_noticed(monkeypatch):
    honest = BlockWire.decode

    def decode(self, coded, out):
        scales = coded[: 4 * self.blocks(len(out))].view("<f4")
        scales[:] = np.roll(scales, 1)
        honest(self, coded, out)

    monkeypatch.setattr("zerosim.stages.gathering.Quantized.fill", quantised_by(decode))
    outcome = outcome_of(quantized_weights="int8", quantized_block=4)
    assert any("bits differ" in what for _, what in outcome.failures)


def quantised_by(decode):
    """`Quantized.fill`, with the ranks' decoding replaced and not the reference's."""
    from zerosim.stages.gathering import Quantized

    honest = Quantized.fill

    class Other:
        def __init__(self, wire):
            self.encoded_bytes, self.encode, self._wire = wire.encoded_bytes, wire.encode, wire

        def decode(self, coded, out):
            decode(self._wire, coded, out)

    return lambda self, *arguments: honest(Quantized(Other(self.wire)), *arguments)
