"""Casts, dtypes and gradients under autocast against what PyTorch answered.

The answers are recorded; `make oracles` asks PyTorch again and names the folder of live answers in `TORCH_ANSWERS`.
"""

import numpy as np
import pytest

from tests.oracles import autocast, functions, our_functions
from zerosim.autograd import autocast as ours
from zerosim.autograd.operations.losses import counted
from zerosim.autograd.operations.table import OPERATIONS
from zerosim.autograd.player import Player
from zerosim.autograd.tape import Tape

PYTORCH = autocast.read()
NAMES = {
    "linear": "product", "affine": "product", "causal_attention": "attention", "causal_self_attention": "attention",
    "positions": "embedding:32 add",
}
"""PyTorch's names of steps, where they are others; positions are an embedding and a sum there."""
IN_LISTS = {
    "linear": "linear", "affine": "addmm", "matmul": "matmul", "causal_attention": "scaled_dot_product_attention",
    "causal_self_attention": "scaled_dot_product_attention", "softmax": "softmax", "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
}
"""PyTorch's names of the operations that are in one of its lists."""


def answers_of(case, dtype):
    """The steps of all segments, and logits, loss and gradients."""
    steps, model, policy = [], our_functions.model_of(case), ours.Autocast(np.dtype(our_functions.NUMPY[dtype]))

    def watched(plan, dtype):
        found = policy(plan, dtype)
        steps.extend(f"{NAMES.get(name := step.instruction.operation.name, name)}:{step.dtype.itemsize * 8}"
                     for step in found.steps)
        return found

    tape, (x, targets) = Tape(policy=watched), case.batch()
    weights = {unit: our_functions.weights_of(case, unit, np.float32) for unit in model.units}
    (logits,), found = our_functions.forward(model, tape, weights, x), {}
    found["logits"] = logits.astype(np.float64)
    judge = Tape(output_dtype=np.dtype(np.float32))
    found["loss"], upstreams = judge.loss("cross_entropy", [logits], [targets], counted(targets))
    assert [each.dtype for each in upstreams] == [logits.dtype]
    for unit in model.backward_units:
        upstreams, gradient = tape.backward(unit, weights[unit], upstreams)
        if gradient is not None:
            assert gradient.dtype == np.float32
            found |= unit.views(gradient)
    steps.append(f"loss:{found['loss'].dtype.itemsize * 8}")
    return " ".join(steps), functions.in_numbers({case.name: found})[case.name]


def ask():
    found = {"steps": {}, "numbers": {}}
    for case in autocast.CASES:
        for dtype in functions.NARROW:
            key = f"{case.name}|{dtype}"
            found["steps"][key], found["numbers"][key] = answers_of(case, dtype)
    return found


def different():
    """What is asked about, steps or an array, and the family of the model, wherever PyTorch's answer is another."""
    return {(each.split()[0], each.rpartition("|")[2]) for each in autocast.disagreements(ask())}


def test_zerosim_casts_what_pytorch_casts_and_has_its_numbers_but_for_rounding():
    assert autocast.disagreements(ask()) == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_cast_by_pytorchs_lists_for_cuda(name):
    low, theirs = np.dtype(np.float16), IN_LISTS.get(name, name)
    listed = {low: PYTORCH["lists"]["low"], ours.FLOAT32: PYTORCH["lists"]["float32"]}
    expected = [dtype for dtype, names in listed.items() if theirs in names]
    assert [ours.casts_to(OPERATIONS[name], low)] == (expected or [None])
    assert len(expected) == (name in IN_LISTS)


# Planted.


def test_a_norm_in_16_bits_is_seen(monkeypatch):
    monkeypatch.setattr(ours, "casts_to", lambda operation, low: low if operation.name == "layer_norm" else None)
    assert ("gpt2", "steps") in different()


def test_a_gradient_that_goes_around_its_cast_is_seen(monkeypatch):
    honest = Player._add

    def add(self, slot, given, dtype, gradients, *, shared):
        honest(self, slot, given * np.float32(1.01), dtype, gradients, shared=shared)

    monkeypatch.setattr(Player, "_add", add)
    assert different()
