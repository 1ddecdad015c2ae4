"""Losses and models in every precision against what PyTorch answered.

The answers are recorded; `make oracles` asks PyTorch again and names the folder of live answers in `TORCH_ANSWERS`.
"""

from dataclasses import replace
from functools import wraps

import ml_dtypes
import numpy as np
import pytest

from tests.oracles import functions, our_functions
from zerosim.autograd.operations.elementwise import ACTIVATIONS, GELUS
from zerosim.autograd.operations.losses import LOSSES
from zerosim.autograd.operations.table import OPERATIONS
from zerosim.autograd.player import Player, Precise
from zerosim.models import mlp, parallel, transformer

PYTORCH = functions.read()
LANGUAGES = {case.name for case in functions.LANGUAGES}
GPT2 = {name for name in LANGUAGES if name.startswith("gpt2")}
LLAMA = LANGUAGES - GPT2
TIED = {case.name for case in functions.LANGUAGES if case.tied_embeddings}


def different(precision="float64"):
    """The names of the cases in which zerosim is further from PyTorch's exact answers than is permitted."""
    return {
        name.partition("|")[0] for name in functions.disagreements(precision, our_functions.ask(precision), PYTORCH)
    }


def perceptrons(**fields):
    return {
        case.name for case in functions.PERCEPTRONS
        if all(getattr(case, field) == value for field, value in fields.items())
    }


MODELS = LANGUAGES | perceptrons()


def losses(*names, uncounted=0):
    return {case.name for case in functions.JUDGED if case.loss in names and case.uncounted >= uncounted}


def test_every_loss_is_asked():
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
    wrong = replace(right := OPERATIONS[operation], **fault)
    for name, family in transformer.FAMILIES.items():
        if family.norm is right:
            monkeypatch.setitem(transformer.FAMILIES, name, replace(family, norm=wrong))
    for table in (ACTIVATIONS, GELUS):
        for name in [name for name, of_table in table.items() if of_table is right]:
            monkeypatch.setitem(table, name, wrong)
    for module in (mlp, transformer, parallel):
        if operation in vars(module):
            monkeypatch.setattr(module, operation, wrong)


def without(operation, name):
    """A backward that gives one input the gradient 0."""
    backward = OPERATIONS[operation].backward

    @wraps(backward)
    def wrong(upstream, into, **named):
        backward(upstream, into, **named)
        if name in into:
            into[name][...] = 0.0

    return wrong


@pytest.mark.parametrize(("operation", "name", "concerned"), [
    ("gelu", "x", GPT2 | perceptrons(activation="gelu")), ("silu", "x", LLAMA), ("affine", "bias", GPT2),
    ("linear", "weight", MODELS), ("layer_norm", "weight", GPT2), ("rms_norm", "weight", LLAMA),
    ("positions", "weight", GPT2), ("causal_attention", "k", LLAMA), ("embedding", "weight", LANGUAGES),
])
def test_a_forgotten_gradient_is_caught(monkeypatch, operation, name, concerned):
    planted(monkeypatch, operation, backward=without(operation, name))
    assert different() == concerned


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("factors", [(1.001, 1.0), (1.0, 1.001)])
def test_a_loss_or_its_gradient_a_thousandth_too_large_is_caught(monkeypatch, loss, factors):
    right = LOSSES[loss]
    monkeypatch.setitem(LOSSES, loss, lambda *arguments, **empty: tuple(
        array * array.dtype.type(factor) for array, factor in zip(right(*arguments, **empty), factors, strict=True)))
    assert different() == losses(loss) | perceptrons(loss=loss) | (LANGUAGES if loss == "cross_entropy" else set())


def rounding(how):
    """A plant: values and upstreams that are rounded are rounded by `how(array, dtype)`."""

    class Rounding(Precise):
        def rounded(self, array, dtype):
            return array if array.dtype == dtype else how(array, dtype)

    return Rounding


def as_bfloat16(array, dtype):
    return array.astype(ml_dtypes.bfloat16 if dtype == np.float16 else dtype).astype(dtype)


@pytest.mark.parametrize(("precision", "concerned"), [("float16", MODELS), ("bfloat16", set())])
def test_float16_rounded_as_bfloat16_is_caught(monkeypatch, precision, concerned):
    monkeypatch.setattr("zerosim.autograd.tape.Precise", rounding(as_bfloat16))
    assert different(precision) == concerned


def test_a_second_gradient_of_tied_embeddings_that_is_dropped_is_caught(monkeypatch):
    def first_alone(self, name, found, contribution):
        if name not in contribution.written:
            contribution.views[name][...] = found
        contribution.written.add(name)

    monkeypatch.setattr(Player, "_write", first_alone)
    assert different() == TIED


def test_an_answer_that_is_no_number_or_has_another_name_is_a_disagreement():
    spoilt = our_functions.ask("float32")
    first, second = functions.JUDGED[0].name, functions.LANGUAGES[0].name
    spoilt[first]["outputs"][0] = np.nan
    spoilt[second]["lm_head.bias"] = spoilt[second].pop("wte.weight")
    assert set(functions.disagreements("float32", spoilt, PYTORCH)) == {f"{first}|outputs", second}
