"""One law for every scenario: a run has the bits of one process, and sends, keeps and computes what is due.

What has been recorded stays as it is, bits and figures: see `digests.py`.
"""

import os
from itertools import chain

import pytest

from tests.laws.digests import differences, settings_left
from tests.laws.draws import DRAWS, SAME, toml
from tests.laws.runs import Refused, prepared, run
from tests.laws.scenarios import CORNERS, GPT, MLP, PIPE, drawn, in_sections
from tests.sampling import one_in
from zerosim.training import one_function

SEED = int(os.environ.get("LAWS_SEED") or 1)
COUNT = int(os.environ.get("LAWS_COUNT") or 14)
SAMPLE = [draw for first in range(7) for draw in DRAWS[:77][first::7]]
"""Corners of one kind lie apart, so that a fault is soon found."""


@pytest.mark.parametrize("number", one_in(6, range(len(SAMPLE))))
def test_a_recorded_draw_is_one_process_and_has_the_recorded_bits_and_figures(number):
    settings = settings_left(SAMPLE[number]["settings"])
    ran = run(prepared(settings))
    assert ran.failures == [], shrunk(settings)
    assert differences(ran.rows, SAMPLE[number]["rows"], bits=SAME) == [], toml(settings)


@pytest.mark.parametrize("number", range(COUNT))
def test_a_run_is_one_process_and_its_figures_are_the_formulas(number):
    settings = drawn(1000 * SEED + number)
    assert run(prepared(settings)).failures == [], shrunk(settings)


WIDE = GPT | {"width": 48, "sequence": 2, "micro_batch": 1, "steps": 1, "stages": ["zero2"]}
"""Weights of many numbers for few tokens: what depends on weights alone is most of the memory."""


@pytest.mark.parametrize("corner", [
    WIDE | {"autocast": "bf16", "accumulation": "layered"}, WIDE | {"kind": "mixture", "experts": 4},
    WIDE | {"context_ranks": 2, "precision": "fp16"}, WIDE | {"tied_embeddings": True, "accumulation": "layered"},
    WIDE | {"heads": 2, "tensor_ranks": 2, "sequence_parallel": True, "vocabulary_parallel": True}, WIDE | {
        "architecture": "llama", "latent": 16, "heads": 2, "rotary_size": 2, "head_size": 4, "width": 4, "inner": 12,
        "tensor_ranks": 2},
    GPT | {"width": 4, "heads": 2, "architecture": "llama", "inner": 100, "layers": 4, "accumulation": "layered"},
    MLP | {"hidden": [4, 130, 4, 130], "activation": "gelu", "accumulation": "layered", "autocast": "fp16"},
    PIPE | {"hidden": [64], "activation": "gelu", "schedule": "zb_h1"}, PIPE | {"accumulation": "micro_batch"},
    MLP | {"offload_optimizer": "host", "publish": "updates", "precision": "fp16"}], ids=str)
def test_no_bound_speaks_against_a_right_run(corner):
    assert run(prepared(in_sections(corner))).failures == []


@pytest.mark.parametrize("corner", [
    corner for corner in CORNERS if {"tensor_ranks", "context_ranks", "expert_ranks"} & {*corner}])
def test_a_split_model_is_the_model_in_one_piece(corner):
    assert [*chain.from_iterable(map(one_function.differences, prepared(in_sections(corner)).rows))] == []


def fails(settings):
    """Whether a run of these settings fails a check; what is refused, or has no data without a key, does not."""
    try:
        return bool(run(prepared(settings)).failures)
    except (Refused, ValueError):
        return False


def shrunk(settings, failing=fails):
    """The failing scenario as TOML, without the keys that it fails without."""
    for key in list(settings):
        fewer = {other: value for other, value in settings.items() if other != key}
        settings = fewer if failing(fewer) else settings
    return toml(settings)


def test_a_failing_scenario_is_shrunk_to_the_keys_that_it_needs():
    settings = {"world.ranks": 2, "train.steps": 1, "train.clip_norm": 0.5, "parallel.overlap": True}
    assert shrunk(settings, lambda keys: "train.clip_norm" in keys and "world.ranks" in keys) == (
        "\n[world]\nranks = 2\n[train]\nclip_norm = 0.5")


def test_a_difference_from_the_record_is_seen():
    due = {"DDP": {"weights": "a", "sent": [1, 2]}, "Stage I": {"weights": "b"}}
    assert differences({"DDP": {"weights": "c", "sent": [1, 3]}}, due, bits=True) == [
        "DDP: weights c; recorded a", "DDP: sent [1, 3]; recorded [1, 2]", "Stage I is missing"]
    assert differences({"DDP": {"weights": "c", "sent": [1, 2]}}, {"DDP": due["DDP"]}, bits=False) == []
