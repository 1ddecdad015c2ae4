"""Operations, losses and models in every precision against what PyTorch answered.

The answers are recorded; `make oracles` asks PyTorch again and names the folder of live answers in `TORCH_ANSWERS`.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.oracles import functions, our_functions
from tests.oracles.our_functions import BY_NAME
from zerosim.autograd.operations import attention, elementwise, normalization
from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.operations.linear import linear_backward
from zerosim.autograd.operations.losses import LOSSES
from zerosim.autograd.player import Player, Precise
from zerosim.models import mlp, transformer

PYTORCH = functions.read()
LANGUAGES = {case.name for case in functions.LANGUAGES}
GPT2 = {name for name in LANGUAGES if name.startswith("gpt2")}
LLAMA = LANGUAGES - GPT2
ALONE = {call.name for call in functions.CALLS if call.shapes.get("q", (0, 0))[1] == 1}
"""One token that can only attend to itself."""
TIED = {case.name for case in functions.LANGUAGES if case.tied_embeddings}


def different(precision="float64"):
    """The names of the cases in which zerosim is further from PyTorch's exact answers than is permitted."""
    return {
        name.partition("|")[0] for name in functions.disagreements(precision, our_functions.ask(precision), PYTORCH)
    }


def calls(*operations):
    return {call.name for call in functions.CALLS if call.operation in operations}


def perceptrons(**fields):
    return {
        case.name for case in functions.PERCEPTRONS
        if all(getattr(case, field) == value for field, value in fields.items())
    }


MODELS = LANGUAGES | perceptrons()


def losses(*names, uncounted=0):
    return {case.name for case in functions.JUDGED if case.loss in names and case.uncounted >= uncounted}


def test_every_operation_and_loss_is_asked():
    assert {call.operation for call in functions.CALLS} == set(BY_NAME)
    assert {case.loss for case in functions.JUDGED} == set(LOSSES)


@pytest.mark.parametrize("precision", our_functions.NUMPY)
def test_zerosim_agrees_with_pytorch_but_for_rounding(precision):
    assert functions.disagreements(precision, our_functions.ask(precision), PYTORCH) == {}


@pytest.mark.parametrize("case", functions.TRAINED, ids=lambda case: case.family)
def test_weights_are_written_by_the_names_and_in_the_shapes_that_pytorch_has(case, tmp_path):
    found = our_functions.train(case, tmp_path)
    assert found.keys() == PYTORCH.exact[case.name].keys() - {"logits", "loss"}
    assert np.load(tmp_path / f"{case.name}.npy").shape == (case.samples, case.sequence, case.vocabulary)


# Planted: exactly what they concern must disagree.


def planted(monkeypatch, operation, **fault):
    wrong = replace(BY_NAME[operation], **fault)
    monkeypatch.setitem(BY_NAME, operation, wrong)
    if operation in ACTIVATIONS:
        monkeypatch.setitem(ACTIVATIONS, operation, wrong)
    for module in (mlp, transformer):
        if operation in vars(module):
            monkeypatch.setattr(module, operation, wrong)


def without(operation, name):
    """A backward that gives one input the gradient 0."""
    backward = BY_NAME[operation].backward

    def wrong(upstream, into, **named):
        backward(upstream, into, **named)
        if name in into:
            into[name][...] = 0.0

    return wrong


def passed_on(upstream, into, *, empty, **named):
    into["x"][...] = upstream


def last_sample_missing(upstream, into, *, empty, x, **given):
    linear_backward(upstream, {name: each for name, each in into.items() if name == "x"}, empty=empty, **given)
    of_parameters = {name: each for name, each in into.items() if name != "x"}
    linear_backward(upstream[:-1], of_parameters, empty=empty, x=x[:-1])


@pytest.mark.parametrize(("operation", "name", "concerned"), [
    ("gelu", "x", GPT2 | perceptrons(activation="gelu")), ("silu", "x", LLAMA), ("affine", "bias", GPT2),
    ("linear", "weight", MODELS), ("layer_norm", "weight", GPT2), ("rms_norm", "weight", LLAMA),
    ("positions", "weight", GPT2), ("causal_attention", "k", LLAMA), ("embedding", "weight", LANGUAGES),
    ("multiply", "other", set()),
])
def test_a_forgotten_gradient_is_caught(monkeypatch, operation, name, concerned):
    planted(monkeypatch, operation, backward=without(operation, name))
    assert different() == calls(operation) - ALONE | concerned


@pytest.mark.parametrize(("operation", "wrong", "concerned"), [
    ("linear", without("linear", "bias"),
     {call.name for call in functions.CALLS if call.operation == "linear" and "bias" in call.shapes} | perceptrons()),
    ("linear", last_sample_missing, calls("linear") | MODELS),
    *((name, passed_on, calls(name) | perceptrons(activation=name)) for name in ("relu", "tanh")),
    ("gelu", passed_on, calls("gelu") | GPT2 | perceptrons(activation="gelu")),
])
def test_a_wrong_gradient_is_caught(monkeypatch, operation, wrong, concerned):
    planted(monkeypatch, operation, backward=wrong)
    assert different() == concerned


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("factors", [(1.001, 1.0), (1.0, 1.001)])
def test_a_loss_or_its_gradient_a_thousandth_too_large_is_caught(monkeypatch, loss, factors):
    right = LOSSES[loss]
    monkeypatch.setitem(LOSSES, loss, lambda *arguments, **empty: tuple(
        array * array.dtype.type(factor) for array, factor in zip(right(*arguments, **empty), factors, strict=True)))
    assert different() == losses(loss) | perceptrons(loss=loss) | (LANGUAGES if loss == "cross_entropy" else set())


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("precision", functions.NARROW)
def test_activations_that_are_not_applied_in_16_bits_are_caught(monkeypatch, activation, precision):
    """As on a tape of a former day, which passed on what an activation had been given."""
    honest = Player._forward

    def not_applied(self, step, values, dtype):
        if dtype.itemsize == 2 and step.instruction.operation is ACTIVATIONS[activation]:
            return values[step.instruction.inputs["x"]], None
        return honest(self, step, values, dtype)

    monkeypatch.setattr(Player, "_forward", not_applied)
    assert different(precision) == calls(activation) | perceptrons(activation=activation)


def rounding(how):
    """A plant: values and upstreams that are rounded are rounded by `how(array, dtype)`."""

    class Rounding(Precise):
        def rounded(self, array, dtype):
            return array if array.dtype == dtype else how(array, dtype)

    return Rounding


def as_bfloat16(array, dtype):
    return array.astype(ml_dtypes.bfloat16 if dtype == np.float16 else dtype).astype(dtype)


def towards_zero(array, dtype):
    near = array.astype(dtype)
    return np.where(np.abs(near) > np.abs(array), np.nextafter(near, np.zeros_like(near)), near)


@pytest.mark.parametrize(("precision", "concerned"), [("float16", MODELS), ("bfloat16", set())])
def test_float16_rounded_as_bfloat16_is_caught(monkeypatch, precision, concerned):
    monkeypatch.setattr("zerosim.autograd.tape.Precise", rounding(as_bfloat16))
    assert different(precision) == concerned


@pytest.mark.parametrize("precision", functions.NARROW)
def test_rounding_towards_zero_is_caught(monkeypatch, precision):
    monkeypatch.setattr("zerosim.autograd.tape.Precise", rounding(towards_zero))
    assert different(precision) >= perceptrons()


@pytest.mark.parametrize(("module", "name", "value", "concerned"), [
    (normalization, "EPSILON", 1e-6, calls("layer_norm", "rms_norm") | LANGUAGES),
    (elementwise, "CUBIC", 0.044714, calls("gelu") | GPT2 | perceptrons(activation="gelu")),
])
def test_another_constant_is_caught(monkeypatch, module, name, value, concerned):
    monkeypatch.setattr(module, name, value)
    assert different() == concerned


def test_a_mask_that_shows_the_next_token_is_caught(monkeypatch):
    monkeypatch.setattr(attention, "hidden", lambda t, dtype: np.triu(np.full((t, t), -np.inf, dtype), 2))
    assert different() == calls("causal_attention", "causal_self_attention") - ALONE | LANGUAGES


def test_rotary_positions_of_neighbours_instead_of_halves_are_caught(monkeypatch):
    def interleaved(tokens, size, base, dtype):
        frequency = base ** (-np.arange(0, size, 2) / size)
        angle = np.repeat(np.outer(np.arange(tokens), frequency), 2, axis=1)[:, np.newaxis]
        return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)

    monkeypatch.setattr(attention, "angles", interleaved)
    pairs = {call.name for call in functions.CALLS if call.settings.get("size") == 2}
    heads_of_2 = {case.name for case in functions.LANGUAGES if case.family == "llama" and case.width == 2 * case.heads}
    assert different() == calls("rotary") - pairs | (LLAMA - heads_of_2)


def test_a_second_gradient_of_tied_embeddings_that_is_dropped_is_caught(monkeypatch):
    def first_alone(self, name, found, contribution):
        if name not in contribution.written:
            contribution.views[name][...] = found
        contribution.written.add(name)

    monkeypatch.setattr(Player, "_write", first_alone)
    assert different() == TIED


def test_what_does_not_count_and_is_judged_is_caught(monkeypatch):
    right = LOSSES["cross_entropy"]
    monkeypatch.setitem(
        LOSSES, "cross_entropy", lambda y, classes, n, empty: right(y, np.maximum(classes, 0), n, empty=empty))
    concerned = {case.name for case in functions.LANGUAGES if case.uncounted}
    assert different() == losses("cross_entropy", uncounted=1) | concerned


def test_another_residual_is_caught(monkeypatch):
    def after_the_norm(w, x, s):
        h = transformer.layer_norm(x, w["ln_1.weight"], w["ln_1.bias"])
        return right(w, h, s)

    right = transformer.gpt2_block
    monkeypatch.setattr(transformer, "gpt2_block", after_the_norm)
    assert different() == GPT2


def test_a_product_in_half_precision_is_caught(monkeypatch):
    """A float32 answer that has the roundings of 16 bits on its way."""
    right = BY_NAME["linear"].forward

    def coarse(x, weight, bias=None, *, out, empty):
        right(x, weight, bias, out=out, empty=empty)
        out[...] = out.astype(np.float16)

    planted(monkeypatch, "linear", forward=coarse)
    assert different("float32") == calls("linear") | MODELS


def test_an_answer_that_is_no_number_or_has_another_name_is_a_disagreement():
    spoilt = our_functions.ask("float32")
    first, second = functions.CALLS[0].name, functions.LANGUAGES[0].name
    spoilt[first]["x"][0] = np.nan
    spoilt[second]["lm_head.bias"] = spoilt[second].pop("wte.weight")
    assert set(functions.disagreements("float32", spoilt, PYTORCH)) == {f"{first}|x", second}
