"""A check of an operation: backward against central differences of forward in float64, and the laws that it declares.

A broken law gives wrong numbers only where the player relies on it, and the same ones in every stage and in the
reference. So each law is tested by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Operation, Shape

STEP = 1e-6
TOLERANCE = 1e-6
"""The allowed error of an element relative to the largest gradient; differences in float64 are not more accurate."""

Inputs = Mapping[str, Array]


def operation_fault(
    operation: Operation, given: Sequence[Shape | Array], settings: Mapping[str, Any]
) -> str | None:
    """The first broken law, or the first wrong element of a gradient, in a sentence; None if there is neither.

    `given` has the shape of each input, whose numbers are drawn, or an array of integers, which has no gradient.

    >>> from zerosim.autograd.operations.elementwise import gelu, multiply
    >>> operation_fault(gelu, [(2, 3)], {}), operation_fault(multiply, [(4,), (4,)], {})
    (None, None)
    """
    random = np.random.default_rng(19)
    inputs = {
        name: each if isinstance(each, np.ndarray) else random.standard_normal(each)
        for name, each in zip(operation.inputs, given, strict=False)
    }
    upstream = random.standard_normal(shape_of(operation, inputs, settings))
    return law_fault(operation, inputs, upstream, settings) or gradient_fault(operation, inputs, upstream, settings)


def law_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """The first law of `autograd/operation.py` that the operation breaks, in a sentence; None if it breaks none."""
    if operation.views:
        return None
    y, _ = forward(operation, inputs, settings)
    if np.isnan(y).any():
        return "forward leaves elements of out unwritten or NaN; write all of it, as in out[...] = …"
    copies = {name: each.copy() for name, each in inputs.items()}
    run_forward(operation, copies, np.empty(y.shape), settings)
    for name in inputs:
        if copies[name].tobytes() != inputs[name].tobytes():
            return f"forward writes to its input {name}; write to out, and to arrays from empty(shape, dtype)"
    if operation.over is not None and inputs[operation.over].shape == y.shape:
        run_forward(operation, copies, copies[operation.over], settings)
        if copies[operation.over].tobytes() != y.tobytes():
            return f"y changes when it is written over {operation.over}: leave over={operation.over!r} out"
    gradients = backward(operation, inputs, upstream, settings)
    over = operation.over_upstream
    if over is not None and gradients[over].shape == upstream.shape:
        into = {name: np.empty(array.shape) for name, array in gradients.items() if name not in operation.passed}
        into[over] = upstream.copy()
        run_backward(operation, inputs, into[over], into, settings)
        for name, array in into.items():
            if array.tobytes() != gradients[name].tobytes():
                return (f"∂L/∂{name} changes when ∂L/∂{over} is written over upstream: leave "
                        f"over_upstream={over!r} out")
    return None


def gradient_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """The first element of a gradient that disagrees with the differences, in a sentence; None if all agree."""
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


def shape_of(operation: Operation, inputs: Inputs, settings: Mapping[str, Any]) -> Shape:
    return operation.shape(*(each.shape for each in inputs.values()), **settings)


def run_forward(operation: Operation, inputs: Inputs, out: Array | None, settings: Mapping[str, Any]) -> Array | None:
    """The result of forward, which writes to `out`."""
    return operation.forward(*inputs.values(), out=out, empty=np.empty, **settings, **draws_setting(operation))


def forward(operation: Operation, inputs: Inputs, settings: Mapping[str, Any]) -> tuple[Array, Array | None]:
    """The output, and the array that forward keeps for backward."""
    copies = {name: each.copy() for name, each in inputs.items()}
    if operation.views:
        view = run_forward(operation, copies, None, settings)
        assert view is not None
        return view, None
    out = np.full(shape_of(operation, inputs, settings), np.nan)
    return out, run_forward(operation, copies, out, settings)


def backward(
    operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]
) -> dict[str, Array]:
    """The gradient of each input that has one."""
    found = {name: np.array(view(upstream, inputs[name].shape, **settings)) for name, view in operation.passed.items()
             if name in inputs}
    into = {name: np.full(inputs[name].shape, np.nan) for name in operation.needs if name in inputs}
    if operation.backward is not None and into:
        run_backward(operation, inputs, upstream.copy(), into, settings)
    return found | into


def run_backward(
    operation: Operation, inputs: Inputs, upstream: Array, into: dict[str, Array], settings: Mapping[str, Any]
) -> None:
    """Run backward on the inputs that it declares; it writes to `into`."""
    assert operation.backward is not None
    y, saved = forward(operation, inputs, settings)
    names = {each for needed in operation.needs.values() for each in needed}
    named = {name: array.copy() for name, array in {**inputs, "y": y}.items() if name in names}
    if operation.saves and saved is not None:
        named["saved"] = saved
    operation.backward(upstream, into, empty=np.empty, **named, **settings, **draws_setting(operation))


def differences(
    operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any], name: str
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


def draws_setting(operation: Operation) -> dict[str, Any]:
    """The setting that draws random numbers, the same ones each time; empty if the operation draws none."""
    def draws(array: Array) -> None:
        array[...] = np.random.default_rng(19).random(array.shape)

    return {"draws": draws} if operation.draws else {}
