"""Quantised weights and gradients: a reference replays every bit, and bytes and memory are the formulas'."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.training import labelled
from tests.training.variants import run
from zerosim.training.build import alone
from zerosim.training.experiment import Experiment


def test_gathers_send_a_quarter_or_an_eighth_and_scales():
    """A unit of 35, 24 or 15 weights on 3 ranks has shards of 12, 8 and 5."""
    def sent(**keys):
        row, = run(stages=("zero3",), steps=1, **keys).trained
        return row.measured.traffic[0].by_collective["all_gather"].sent_bytes

    gathers, others, parts = 2, 2, 2
    shards = (12, 8, 5)
    assert sent() == gathers * others * parts * 4 * sum(shards)
    assert sent(quantized_weights="int8", quantized_block=4) == gathers * others * parts * sum(
        4 * -(-each // 4) + each for each in shards)
    assert sent(quantized_weights="int4", quantized_block=0) == gathers * others * parts * sum(
        4 + -(-each // 2) for each in shards)


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3"])
def test_the_master_weights_are_never_quantised(name):
    """An update of nothing leaves float32 shards as they were."""
    plain, = run(stages=("zero3",), learning_rate=0.0).trained
    coded, = run(stages=("zero3",), learning_rate=0.0, quantized_weights=name).trained
    assert coded.measured.weights_sha256 == plain.measured.weights_sha256
    assert [each.tobytes() for each in coded.measured.losses] != [each.tobytes() for each in plain.measured.losses]


# Gradients.


@pytest.mark.parametrize("order", ["ring", "rank"])
def test_reductions_send_a_quarter_and_scales(order):
    row, = run(stages=("zero2",), steps=1, order=order, quantized_gradients="int8", quantized_block=4).trained
    sent = row.measured.traffic[0].by_collective["reduce_scatter"].sent_bytes
    assert sent == 2 * sum(4 * -(-each // 4) + each for each in (12, 8, 5))


def test_the_error_beside_unquantised_sums_is_reported():
    coded, plain = run(stages=("zero3",), quantized_gradients="int8", quantized_weights="int4"), run(stages=("zero3",))
    errors = coded.trained[0].measured.wire_errors
    assert coded.failures == plain.failures == []
    assert set(errors) == {"weights", "gradients"}
    assert plain.trained[0].measured.wire_errors == {}
    for error, most in ((errors["weights"], 0.2), (errors["gradients"], 0.02)):
        assert 0 < error["relative"] < most
        assert error["bits"] == -math.log2(error["relative"])
        assert error["ulps"] > 0


def test_an_error_of_the_quantisation_alone_is_that_of_the_first_step():
    """In the first step weights are those of the unquantised row, so its gradient is what was due."""
    coded, = run(stages=("zero2",), steps=1, quantized_gradients="int4", quantized_block=4).trained
    found, due = (
        np.concatenate([snapshot.gradients[unit].narrow for unit in coded.config.model.units])
        for snapshot in (last(coded.config), last(replace(
            coded.config, parallel=replace(coded.config.parallel, quantized_gradients="none")))))
    relative = np.linalg.norm((found - due).astype(np.float64)) / np.linalg.norm(due.astype(np.float64))
    assert np.isclose(coded.measured.wire_errors["gradients"]["relative"], relative, rtol=1e-6)


def last(config):
    *_, (snapshot,) = alone(Experiment(None, labelled(), (config,)), config)
    return snapshot
