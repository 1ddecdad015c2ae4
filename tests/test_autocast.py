"""Torch's autocast: float32 weights, and a dtype for each operation."""

import numpy as np
import pytest

from tests import transformers
from tests.test_variants import run, tensors
from tests.test_whole_steps import SKIPPING, outcome_of
from zerosim.autograd.autocast import FLOAT32, Autocast
from zerosim.models.transformer import TransformerShape, transformer
from zerosim.numerics.precisions import PRECISIONS

BF16, FP16 = {"autocast": "bf16"}, {"autocast": "fp16"}
LOUD = {**SKIPPING, "precision": "fp32"}

CASES = {
    "plain": BF16, "several orders": BF16 | {"order": "exact", "activation": "gelu"},
    "steps are skipped": FP16 | LOUD, "steps are skipped, one process": FP16 | LOUD | {"ranks": 1, "micro_batches": 2},
    "every micro-batch": FP16 | {"accumulation": "micro_batch", "order": "rank", "activation": "tanh"},
    "layered": BF16 | {"accumulation": "layered", "accumulate_dtype": "fp32", "micro_batches": 12},
    "a tree": BF16 | {"order": "tree", "ranks": 4, "micro_batches": 16, "clip_norm": 0.02},
    "recomputed": BF16 | {"recompute": True, "units": ((0, 1), (2,))},
    "recomputed, products stay": BF16 | {"recompute": True, "recompute_keeps": "products"},
    "recomputed, offloaded": FP16 | {"recompute": True, "offload_activations": True},
    "beside the step": BF16 | {"prefetch": True, "overlap": True, "units": "model", "ranks": 2, "micro_batches": 4},
    "weights stay": BF16 | {"reshard_after_forward": False, "frozen": (1,)},
    "narrow wires": BF16 | {
        "reduce_dtype": "bf16", "output_dtype": "fp16", "quantized_weights": "int8", "frozen": (0,)},
}


@pytest.mark.parametrize("name", CASES)
def test_every_stage_has_the_bits_of_one_process_and_the_bytes_of_the_formulas(name):
    outcome = outcome_of(**CASES[name])
    assert outcome.failures == []
    assert len(outcome.trained) == 4
    if "skipped" in name:
        assert all(0 < row.measured.updates < 12 for row in outcome.trained)


LANGUAGE = {
    "plain": BF16, "tied": FP16 | {"tied_embeddings": True},
    "dropped and recomputed": BF16 | {"dropout": 0.5, "recompute": True},
    "every other product stays": BF16 | {"recompute": True, "recompute_keeps": "half_products"},
    "all but attention stay": BF16 | {"recompute": True, "recompute_keeps": "all_but_attention"},
    "layered": FP16 | {"accumulation": "layered", "tied_embeddings": True, "units": "model"},
}


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_every_stage_trains_a_transformer_as_one_process_does(name, architecture):
    found = transformers.outcome(layers=1, architecture=architecture, heads=3 if architecture == "gpt2" else 1,
                                 **LANGUAGE[name])
    assert found.failures == []
    assert len(found.trained) == 4


def dtypes(family):
    """The operations of a block and of a head, each with the dtype of what it makes; casts as `name:dtype`."""
    low = np.dtype(np.float16)
    shape = TransformerShape(family, 1, 8, 2, 2, 16, 11, 4, tied_embeddings=False, dropout=0.1)
    model, found, dtype = transformer(shape), [], np.dtype(np.int64)
    for unit, like in zip(model.units, [(2, 4), (2, 4, 8), (2, 4, 8)], strict=True):
        plan = Autocast(low)(unit.segments[0].plan(like, of_parameters=True, of_input=True), dtype)
        found.append(" ".join(f"{step.instruction.operation.name}:{step.dtype.itemsize * 8}" for step in plan.steps))
        dtype = plan.graph.dtype(plan.graph.output.slot)
    return found


def test_products_have_16_bits_and_norms_residual_sums_and_what_they_read_32():
    weight = "cast:16 cast:16 cast:16 affine:16"
    assert dtypes("gpt2") == [
        "embedding:32 positions:32 dropout:32",
        f"layer_norm:32 {weight} causal_self_attention:16 cast:16 cast:16 affine:16 dropout:16 add:32 "
        f"layer_norm:32 {weight} gelu:16 cast:16 cast:16 affine:16 dropout:16 add:32",
        "layer_norm:32 cast:16 cast:16 linear:16",
    ]
    product = "cast:16 cast:16 linear:16"
    assert dtypes("llama") == [
        "embedding:32 dropout:32",
        f"rms_norm:32 {product} {product} {product} rotary:16 rotary:16 causal_attention:16 cast:16 linear:16 "
        f"dropout:16 add:32 rms_norm:32 {product} silu:16 {product} multiply:16 cast:16 linear:16 dropout:16 add:32",
        "rms_norm:32 cast:16 cast:16 linear:16",
    ]


def test_an_mlp_has_the_bits_of_fsdp2_reduced_in_float32_which_casts_all_that_it_casts():
    """Linear maps and activations are all that an MLP has, so every number is rounded where FSDP2 rounds it."""
    one, = run(stages=("zero3",), **BF16).trained
    other, = run(stages=("zero3",), param_dtype="bf16", reduce_dtype="fp32").trained
    assert [loss.tobytes() for loss in one.measured.losses] == [loss.tobytes() for loss in other.measured.losses]
    assert {k: v.tobytes() for k, v in tensors(one).items()} == {k: v.tobytes() for k, v in tensors(other).items()}


def test_a_transformer_has_other_bits_than_fsdp2_because_residual_sums_stay_float32():
    one, = transformers.outcome(stages=("zero3",), **BF16).trained
    other, = transformers.outcome(stages=("zero3",), param_dtype="bf16", reduce_dtype="fp32").trained
    assert [loss.tobytes() for loss in one.measured.losses] != [loss.tobytes() for loss in other.measured.losses]


def test_weights_gradients_and_messages_are_those_of_float32():
    plain, cast = (run(**keys).trained for keys in ({}, BF16))
    for before, after in zip(plain, cast, strict=True):
        assert [rank.counts.sent_bytes for rank in before.traffic] == [rank.counts.sent_bytes for rank in after.traffic]
        assert before.memory[0].figures.resting_bytes == after.memory[0].figures.resting_bytes
        assert {w.dtype for w in after.measured.weights.values()} == {FLOAT32}


@pytest.mark.parametrize(("name", "scaled"), [("bf16", False), ("fp16", True)])
def test_losses_are_scaled_in_float16(name, scaled):
    row, = run(stages=("zero3",), autocast=name).trained
    assert row.config.scaling().dynamic == scaled == PRECISIONS[name].scales_loss
