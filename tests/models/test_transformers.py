"""Transformers by every stage: equal bits, bytes by hand, dropout and recomputation, and what must be caught."""

from dataclasses import replace

import pytest

from tests.models.transformers import gpt2_most_alive, outcome, prepared, tokens
from zerosim.autograd.operations.linear import affine
from zerosim.models.transformer import TransformerShape, transformer
from zerosim.training.collect import continued
from zerosim.verdict.shapes import expected as expected_memory

LLAMA = {"architecture": "llama", "width": 12, "heads": 6, "key_value_heads": 3, "inner": 5}
DROPOUT = {"dropout": 0.3}
TIED = {"tied_embeddings": True}


# Sizes and names.


GPT2_NAMES = {
    "wte.weight": (7, 6), "wpe.weight": (5, 6), "ln_f.weight": (6,), "ln_f.bias": (6,), "lm_head.weight": (7, 6),
} | {f"h.{n}.{name}": shape for n in range(2) for name, shape in {
    "ln_1.weight": (6,), "ln_1.bias": (6,), "attn.c_attn.weight": (6, 18), "attn.c_attn.bias": (18,),
    "attn.c_proj.weight": (6, 6), "attn.c_proj.bias": (6,), "ln_2.weight": (6,), "ln_2.bias": (6,),
    "mlp.c_fc.weight": (6, 24), "mlp.c_fc.bias": (24,), "mlp.c_proj.weight": (24, 6), "mlp.c_proj.bias": (6,),
}.items()}
LLAMA_NAMES = {
    "model.embed_tokens.weight": (7, 12), "model.norm.weight": (12,), "lm_head.weight": (7, 12),
} | {f"model.layers.{n}.{name}.weight": shape for n in range(2) for name, shape in {
    "self_attn.q_proj": (12, 12), "self_attn.k_proj": (6, 12), "self_attn.v_proj": (6, 12),
    "self_attn.o_proj": (12, 12), "mlp.gate_proj": (5, 12), "mlp.up_proj": (5, 12), "mlp.down_proj": (12, 5),
    "input_layernorm": (12,), "post_attention_layernorm": (12,),
}.items()}


@pytest.mark.parametrize(("keys", "names"), [({}, GPT2_NAMES), (LLAMA, LLAMA_NAMES)], ids=["gpt2", "llama"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("units", ["layer", "model"])
def test_weights_have_the_names_that_others_know(keys, names, tied, units):
    (config, *_) = prepared(**keys, tied_embeddings=tied, units=units).rows
    assert {place.name: place.shape for place in config.model.places} == {
        name: shape for name, shape in names.items() if not (tied and name == "lm_head.weight")}


# Dropout.


@pytest.mark.parametrize("order", ["exact", pytest.param("tree", marks=pytest.mark.long)])
@pytest.mark.parametrize("keys", [{}, LLAMA, TIED | {"recompute": True}], ids=str)
def test_what_is_dropped_does_not_depend_on_the_number_of_ranks(order, keys):
    keys = {"order": order, "ranks": 4, "stages": ("zero3",)} | keys
    found = outcome(same_bits_on=(1, 2), **keys | DROPOUT)
    assert found.failures == []
    digest = found.trained[0].measured.weights_sha256
    assert [other.measured.weights_sha256 for _, other in found.on_other_ranks] == [digest, digest]
    assert digest != outcome(**keys | {"ranks": 1}).trained[0].measured.weights_sha256
    assert digest != outcome(**keys | {"ranks": 1, "dropout": 0.4}).trained[0].measured.weights_sha256


# Recomputation.


RECOMPUTED = [(), (1,), (2,), (3,), (1, 2, 3), (0, 4), (0, 1, 2, 3, 4)]


@pytest.mark.parametrize("keys", [
    {}, {"vocabulary": 13}, {"width": 12, "heads": 1, "sequence": 9}, {"inner": 1}, {"vocabulary": 500}, TIED,
    {"width": 96, "sequence": 64, "micro_batch": 8},
], ids=str)
def test_activations_of_a_transformer_to_the_byte(keys):
    for recomputed in RECOMPUTED:
        if recomputed == (0, 4) and keys is TIED:
            continue
        config, expected = by_hand(keys, recomputed)
        assert expected_memory(config).peak_bytes["activations"] == expected, recomputed


def by_hand(keys, recomputed):
    """A row of one rank that has one micro-batch, and the most bytes of activations that it should hold."""
    keys = {"layers": 3, "ranks": 1, "micro_batches": 1, "stages": ("zero3",), "recompute": recomputed} | keys
    (config,) = prepared(**keys).rows
    model = config.keys
    expected = gpt2_most_alive(
        config.train.micro_batch, model.sequence, model.width, model.heads, model.layers, model.vocabulary,
        inner=model.inner, recomputed=recomputed)
    return config, expected


@pytest.mark.parametrize(("recompute", "again"), [(False, 0), ((2,), 1), ((1, 2, 3), 3), (True, 3)])
def test_operations_are_six_for_each_weight_and_token_and_eight_with_recomputation(recompute, again):
    """2 forward and 4 backward, and for attention 4 T d and 8 T d of each token, causal ones counted in full."""
    found = outcome(layers=3, stages=("zero2",), steps=3, recompute=recompute)
    tokens_of_a_rank = 3 * 2 * 2 * 5                            # steps, micro-batches, samples, places
    block, head, scores = 12 * 6**2, 7 * 6, 2 * 5 * 6
    forward = 2 * tokens_of_a_rank * (3 * (block + scores) + head)
    once_more = 2 * tokens_of_a_rank * (again * (block + scores) + (head if recompute is True else 0))
    for rank in found.trained[0].measured.operations:
        assert rank == {"forward": forward, "backward": 2 * forward, "recomputation": once_more}


def without_y(upstream, into, *, y, **named):
    affine.backward(upstream, into, **named)


def test_an_operation_that_keeps_one_array_more_differs_from_the_one_by_hand(monkeypatch):
    """Runs and plans share the tape, so it takes a second ledger to know."""
    hoarding = replace(affine, needs={**affine.needs, "bias": ("y",)}, backward=without_y)
    monkeypatch.setattr("zerosim.models.transformer.affine", hoarding)
    config, expected = by_hand({}, ())
    assert expected_memory(config).peak_bytes["activations"] > expected
    assert outcome(stages=("zero2",)).failures == []


def test_a_long_text_goes_on_within_its_first_256_tokens():
    shape = TransformerShape("gpt2", 1, 2, 1, 1, 2, 7, 300, tied_embeddings=False)
    dataset, model = tokens(sequence=300), transformer(shape)
    weights = {unit: unit.initial(0) for unit in model.units}
    given, _, said = continued(model, weights, dataset, seed=0).partition("|")
    assert (len(given), len(said)) == (65, 192)
    assert dataset.decode(dataset.x_test[0]).startswith(given)
