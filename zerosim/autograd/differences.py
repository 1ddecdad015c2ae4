"""A check of an operation's gradients: backward beside central differences of forward, in float64."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Operation, Shape

STEP = 1e-6
TOLERANCE = 1e-6
"""The error of an element relative to the gradient's largest: differences are no closer in float64."""


def gradient_fault(operation: Operation, shapes: Sequence[Shape], settings: Mapping[str, Any]) -> str | None:
    """The first element in which a gradient is not what differences say, in a sentence; None where all agree.

    >>> from zerosim.autograd.operations.elementwise import gelu, multiply
    >>> gradient_fault(gelu, [(2, 3)], {}), gradient_fault(multiply, [(4,), (4,)], {})
    (None, None)
    """
    random = np.random.default_rng(19)
    inputs = {name: random.standard_normal(shape) for name, shape in zip(operation.inputs, shapes, strict=False)}
    upstream = random.standard_normal(operation.shape(*shapes, **settings))
    found = backward(operation, inputs, upstream, settings)
    for name in (*operation.needs, *operation.passed):
        if name not in inputs:
            continue
        due = differences(operation, inputs, upstream, settings, name)
        apart = np.abs(found[name] - due) > TOLERANCE * max(1.0, float(np.abs(due).max(initial=0.0)))
        if apart.any() or not np.isfinite(found[name]).all():
            at = tuple(int(each) for each in np.unravel_index(int(apart.argmax()), apart.shape))
            return (f"∂L/∂{name}{list(at)} is {found[name][at]:.6g} by backward and {due[at]:.6g} by differences of "
                    "forward")
    return None


def forward(
    operation: Operation, inputs: Mapping[str, Array], settings: Mapping[str, Any]
) -> tuple[Array, Array | None]:
    """The output, and what forward keeps for backward."""
    out = np.full(operation.shape(*(each.shape for each in inputs.values()), **settings), np.nan)
    copies = [each.copy() for each in inputs.values()]
    kept = operation.forward(*copies, out=None if operation.views else out, empty=np.empty, **settings)
    if operation.views:
        assert kept is not None
        return kept, None
    return out, kept


def backward(
    operation: Operation, inputs: Mapping[str, Array], upstream: Array, settings: Mapping[str, Any]
) -> dict[str, Array]:
    """The gradient of each input that has one."""
    shapes = {name: each.shape for name, each in inputs.items()}
    found = {name: np.array(view(upstream, shapes[name], **settings)) for name, view in operation.passed.items()
             if name in inputs}
    into = {name: np.full(shapes[name], np.nan) for name in operation.needs if name in inputs}
    if operation.backward is not None and into:
        y, saved = forward(operation, inputs, settings)
        names = {each for needed in operation.needs.values() for each in needed}
        named = {name: array.copy() for name, array in {**inputs, "y": y}.items() if name in names}
        if operation.saves and saved is not None:
            named["saved"] = saved
        operation.backward(upstream.copy(), into, empty=np.empty, **named, **settings)
    return found | into


def differences(
    operation: Operation, inputs: Mapping[str, Array], upstream: Array, settings: Mapping[str, Any], name: str
) -> Array:
    """∂L/∂input by central differences, L = Σ upstream · y."""
    found = np.empty(inputs[name].shape)
    for at in np.ndindex(found.shape):
        moved = []
        for sign in (1.0, -1.0):
            changed = {key: each.copy() for key, each in inputs.items()}
            changed[name][at] += sign * STEP
            moved.append(float(np.sum(upstream * forward(operation, changed, settings)[0])))
        found[at] = (moved[0] - moved[1]) / (2 * STEP)
    return found
