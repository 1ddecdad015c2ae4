"""Whole steps of every stage with all that can matter at once: bits, bytes and memory are those of one process and of
the formulas. Sizes are odd, ranks have several micro-batches, and steps are skipped."""

from dataclasses import replace

import numpy as np
import pytest

from tests import transformers
from tests.training import labelled, run, scenario
from zerosim.scenario.sections import Variant
from zerosim.stages import STAGES
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally

ALL = tuple(STAGES)
FP16 = {"precision": "fp16", "clip_norm": 0.5, "weight_decay": 0.3, "decay_biases": False}
SKIPPING = FP16 | {"loud": 3000, "steps": 12, "schedule": "cosine", "warmup_steps": 2, "activation": "relu"}
"""The first steps overflow, so that a step's number is not that of its update."""
BF16 = {"precision": "bf16", "accumulate_dtype": "fp32"}

CASES = {
    "steps are skipped": SKIPPING,
    "clipped in float64": {"precision": "fp64", "clip_norm": 0.02, "ranks": 2, "micro_batches": 4, "steps": 12,
                           "hidden": (), "features": 4},           # 15 numbers: the last of 16 is padding
    "steps are skipped, nothing is clipped": SKIPPING | {"clip_norm": 0.0},
    "steps are skipped, one process": SKIPPING | {"ranks": 1, "micro_batches": 2},
    "updates of skipped steps": SKIPPING | {"publish": "updates", "optimizer": "adamw"},
    "all have all gradients": SKIPPING | {"gradients": "all_reduce", "optimizer": "momentum"},
    "added in float32": BF16 | {"reduce_dtype": "fp32", "clip_norm": 0.02},
    "added in float32, sent in 16 bits": BF16 | {"optimizer": "sgd", "units": "model"},
    "rounded, sent in 32 bits": {"precision": "bf16", "reduce_dtype": "fp32", "micro_batches": 9},
    "rank by rank": BF16 | {"order": "rank", "accumulation": "micro_batch"},
    "exact": BF16 | {"order": "exact", "micro_batches": 9},
    "every micro-batch": FP16 | {"accumulation": "micro_batch", "accumulate_dtype": "fp32", "micro_batches": 9},
    "every micro-batch, rounded": BF16 | {"accumulate_dtype": "weights", "accumulation": "micro_batch"},
    "a tree": {"order": "tree", "ranks": 4, "micro_batches": 16, "clip_norm": 0.02},
    "broadcasts": FP16 | {"publish": "broadcasts", "loss_scale": 8},
    "diverging": BF16 | {"learning_rate": 1e30, "optimizer": "sgd", "steps": 4},
    "weights stay": {"reshard_after_forward": False, "frozen": (0,), "clip_norm": 0.02},
    "weights stay, one frozen between": {"reshard_after_forward": False, "frozen": (1,)},
    "weights stay, several micro-batches": {"reshard_after_forward": False, "accumulation": "micro_batch"},
    "prefetched": {"prefetch": True, "frozen": (1,), "clip_norm": 0.02},
    "prefetched, every micro-batch": {"prefetch": True, "accumulation": "micro_batch"},
    "overlapping": FP16 | {"overlap": True, "prefetch": True},
    "overlapping, every micro-batch": {"overlap": True, "accumulation": "micro_batch", "units": ((0, 1), (2,))},
    "overlapping, all have all": {"overlap": True, "gradients": "all_reduce", "frozen": (0,)},
    "computed again": {"recompute": (0,), "units": ((0, 1), (2,))},
    "buckets": {"bucket_mb": 0.00004, "order": "exact", "clip_norm": 0.02},
}


def outcome_of(*, loud=1, features=6, **changes):
    """A run of all stages on samples that are so many times as large."""
    data = labelled(features)
    return run(replace(data, x=data.x * np.float32(loud)), **{"ranks": 3, "micro_batches": 6, "steps": 3, **changes})


@pytest.mark.parametrize("name", CASES)
def test_every_stage_has_the_bits_of_one_process_and_the_bytes_of_the_formulas(name):
    outcome = outcome_of(**CASES[name])
    assert outcome.failures == []
    assert len(outcome.trained) == len(ALL)
    if CASES[name].get("loud"):
        assert all(0 < row.measured.updates < 12 for row in outcome.trained)


LANGUAGE = {
    "dropped": {"dropout": 0.5},
    "dropped, every micro-batch": {"dropout": 0.5, "accumulation": "micro_batch"},
    "dropped, layered": {"dropout": 0.5, "accumulation": "layered"},
    "tied, added in float32 at once": {
        "tied_embeddings": True, "precision": "bf16", "accumulate_dtype": "fp32", "accumulation": "layered",
        "micro_batches": 12, "vocabulary": 120},
    "tied, dropped and computed again": {
        "dropout": 0.5, "tied_embeddings": True, "recompute": True, "precision": "fp16", "accumulate_dtype": "fp32"},
    "tied, frozen below": {"tied_embeddings": True, "frozen": (1,), "reshard_after_forward": False, "clip_norm": 0.02},
    "offloaded": {"recompute": True, "offload_activations": True, "prefetch": True},
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_every_stage_trains_a_transformer_as_one_process_does(name):
    found = transformers.outcome(layers=1, stages=("zero2", "zero3"), **LANGUAGE[name])
    assert found.failures == []
    assert len(found.trained) == 2


def test_a_loss_that_is_no_number_is_the_same_one_everywhere():
    """Samples have NaNs of which every bit is set: none that a processor makes."""
    data = labelled()
    data.x.view(np.uint32)[:, 1] = 0xFFFFFFFF
    assert run_locally(prepare(scenario(steps=1), data)).failures == []


@pytest.mark.parametrize("name", ALL)
def test_a_reduction_is_waited_for_before_the_next_one_begins(name, monkeypatch):
    """Of gradients that are reduced beside the step at most one is on its way, and none as weights are updated."""
    honest, begun = STAGES[name].step, []

    def step(replica, batch):
        def alone(verb):
            def call(*given):
                if not given or given[-1] is not None:
                    assert replica.reducing == []
                    begun.append(verb.__name__)
                return verb(*given)
            return call

        watched = {verb: getattr(replica, verb) for verb in ("reduce_scatter", "unscale_and_clip")}
        vars(replica).update({verb: alone(method) for verb, method in watched.items()})
        loss = honest(replica, batch)
        for verb in watched:
            del vars(replica)[verb]
        return loss

    monkeypatch.setitem(STAGES, name, replace(STAGES[name], step=step))
    assert run_locally(prepare(replace(scenario(), variant=(Variant(stage=name, overlap=True),)), labelled()),
                       Silent()).failures == []
    assert begun.count("reduce_scatter") == 3 * begun.count("unscale_and_clip") > 0
