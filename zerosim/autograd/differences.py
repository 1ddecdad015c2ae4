"""A check of an operation: backward against central differences of forward in float64, and the laws that it keeps.

A broken law gives wrong numbers only where a step relies on it, and the same ones in every stage and in the reference.
So each law is tested by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Shape
from zerosim.core.allocation import Array
from zerosim.core.extents import owner

STEP = 1e-6
TOLERANCE = 1e-6
"""The allowed error of an element relative to the largest gradient; differences in float64 are not more accurate."""

PARAMETERS = ("weight", "bias")
"""Inputs with these names are weights."""

Arrays = Mapping[str, Array]


def operation_fault(operation: Operation, given: Sequence[Shape | Array], settings: Mapping[str, Any]) -> str | None:
    """The first broken law, or the first wrong element of a gradient, in a sentence; None if there is neither.

    `given` has the shape of each input, whose numbers are drawn, or an array of integers, which has no gradient.

    >>> from zerosim.autograd.operations.elementwise import gelu, multiply
    >>> operation_fault(gelu, [(2, 3)], {}), operation_fault(multiply, [(4,), (4,)], {})
    (None, None)
    """
    random = np.random.default_rng(19)
    trial = Trial(operation, {
        name: x if isinstance(x, np.ndarray) else random.standard_normal(x)
        for name, x in zip(operation.inputs, given, strict=False)}, settings)
    upstream = random.standard_normal(trial.forward()[0].shape)
    return law_fault(trial, upstream) or gradient_fault(trial, upstream)


LAYOUTS: Mapping[str, Callable[[Array], Array]] = {
    "C-ordered": lambda array: array.copy(),
    "transposed": lambda array: array.T.copy().T,
    "sliced": lambda array: np.stack([array, array], axis=-1)[..., 0],
}
"""The layouts in memory on which an operation is tried."""


def unwritten(shape: Shape, dtype: Any) -> Array:
    """An array of NaN."""
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype)


@dataclass(frozen=True, eq=False)
class Trial:
    """An operation on inputs, with settings; it draws the same random numbers each time."""

    operation: Operation
    inputs: Arrays
    settings: Mapping[str, Any]

    @property
    def _named(self) -> dict[str, Any]:
        def draws(array: Array) -> None:
            array[...] = np.random.default_rng(19).random(array.shape)

        return {**self.settings, **({"draws": draws} if self.operation.draws else {})}

    @property
    def wanted(self) -> list[str]:
        """The inputs that have a gradient."""
        return [name for name in self.inputs if name in self.operation.needs]

    def forward(self, changed: Arrays | None = None, empty: Empty = unwritten) -> tuple[Any, ...]:
        """The output, and if backward reads it the array that forward saves; some inputs may be `changed`."""
        inputs = {**self.inputs, **(changed or {})}
        results = self.operation.forward(*inputs.values(), empty=empty, **self._named)
        return results if isinstance(results, tuple) else (results,)

    def backward(self, upstream: Array) -> dict[str, Array]:
        """The gradient of each input that has one."""
        return self.gradients(self.forward(), upstream, self.wanted)

    def gradients(
        self, results: Sequence[Array], upstream: Array, wanted: Sequence[str], changed: Arrays | None = None
    ) -> dict[str, Array]:
        """The `wanted` gradients by backward, from inputs, some of them `changed`, and results of forward."""
        if self.operation.backward is None or not wanted:
            return {}
        names = {name for gradient in wanted for name in self.operation.needs[gradient]}
        arrays = {**self.inputs, "y": results[0], **(changed or {})}
        read = {name: array for name, array in arrays.items() if name in names}
        if self.operation.saves:
            read["saved"] = results[1]
        shapes = {name: self.inputs[name].shape for name in wanted}
        into = Into(shapes, lambda name: np.full(shapes[name], np.nan))
        self.operation.backward(upstream, into, empty=unwritten, **read, **self._named)
        return {name: np.array(into[name]) for name in wanted}


def law_fault(trial: Trial, upstream: Array) -> str | None:
    """The first law of `autograd/operation.py` that the operation breaks, in a sentence; None if it breaks none."""
    if fault := returned_fault(trial):
        return fault
    expected, expected_gradients = trial.forward()[0], trial.backward(upstream)
    if np.isnan(expected).any():
        return "forward leaves elements of y unwritten or NaN; write all of it, as in y[...] = …"
    for layout, lay in LAYOUTS.items():
        laid = replace(trial, inputs={name: lay(x) for name, x in trial.inputs.items()})
        fault = returned_fault(laid) or changed_fault(laid, lay(upstream))
        if not fault and apart(laid.forward()[0], expected).any():
            fault = "y differs from that of the same numbers in C order"
        if not fault and (wrong := first_apart(laid.backward(lay(upstream)), expected_gradients)):
            fault = f"∂L/∂{wrong} differs from that of the same numbers in C order"
        if fault:
            return fault if layout == "C-ordered" else f"{fault} ({layout} inputs)"
    return needs_fault(trial, upstream, expected_gradients)


def returned_fault(trial: Trial) -> str | None:
    """A result of forward that the memory ledger would not count, or that holds a weight, in a sentence."""
    allocated = list[Array]()

    def empty(shape: Shape, dtype: Any) -> Array:
        allocated.append(unwritten(shape, dtype))
        return allocated[-1]

    results = trial.forward(empty=empty)
    if len(results) != 1 + trial.operation.saves:
        return f"forward returns {len(results)} arrays: return y, and saved if, and only if, backward reads it"
    for name, array in zip(("y", "saved"), results, strict=False):
        if not isinstance(array, np.ndarray):
            return (f"forward returns {type(array).__name__} as {name}; return y, or y and saved if backward reads it: "
                    "y an array of empty(shape, dtype) or a view of an input, saved an array of empty")
        view_of = next((key for key, given in trial.inputs.items() if owner(array) is owner(given)), None)
        if name == "saved" and view_of is not None:
            return (f"forward saves a view of {view_of}, which would keep all of it until backward, also a weight that "
                    f"Stage III has freed; save an array of empty, and name {view_of} in needs if backward reads it")
        if view_of is None and not any(owner(array) is memory for memory in allocated):
            return (f"forward returns {array.nbytes:,} bytes as {name} that empty did not allocate; write them to an "
                    "array of empty(shape, dtype)")
    weights = [name for name in PARAMETERS if name in trial.inputs]
    if not trial.operation.saves or not weights or len(weights) == len(trial.inputs):
        return None
    halves = {name: x * 0.5 for name, x in trial.inputs.items() if x.dtype.kind == "f"}
    _, of_others = trial.forward({name: x for name, x in halves.items() if name not in weights})
    _, of_weights = trial.forward({name: x for name, x in halves.items() if name in weights})
    if of_others.tobytes() == results[1].tobytes() != of_weights.tobytes():
        return (f"forward saves {results[1].nbytes:,} bytes that it computes of {' and '.join(weights)} alone, weights "
                "that Stage III frees; backward gets them again, so let it compute this, and name them in needs")
    return None


def changed_fault(trial: Trial, upstream: Array) -> str | None:
    """An array that forward or backward gets and writes to, in a sentence."""
    before = {name: x.tobytes() for name, x in trial.inputs.items()}
    results = trial.forward()
    if name := first_changed(before, trial.inputs):
        return f"forward writes to its input {name}; write to arrays of empty(shape, dtype)"
    read = {**trial.inputs, **dict(zip(("y", "saved"), results, strict=False)), "upstream": upstream}
    before = {name: array.tobytes() for name, array in read.items()}
    trial.gradients(results, upstream, trial.wanted)
    if name := first_changed(before, read):
        return f"backward writes to {name}; write to into, and to arrays of empty(shape, dtype)"
    return None


def first_changed(before: Mapping[str, bytes], arrays: Arrays) -> str | None:
    """The name of the first array that has other bytes than before."""
    return next((name for name, content in before.items() if arrays[name].tobytes() != content), None)


def needs_fault(trial: Trial, upstream: Array, expected: Arrays) -> str | None:
    """A gradient that is another one if it alone is wanted, or does not read an array that it needs."""
    results = trial.forward()
    arrays = {**trial.inputs, "y": results[0]}
    for wanted in trial.wanted:
        if first_apart(trial.gradients(results, upstream, [wanted]), expected) is not None:
            return f"∂L/∂{wanted} differs if no other gradient is wanted"
        for name in trial.operation.needs[wanted]:
            array = arrays[name]
            if array.dtype.kind == "f" and array.size and all(
                    first_apart(trial.gradients(
                        results, upstream, [wanted], {name: np.full_like(array, poison)}), expected) is None
                    for poison in (np.nan, 2.0)):
                return (f"keeps {name} for ∂L/∂{wanted}, which does not read it: {array.nbytes:,} bytes; leave it out "
                        "of needs")
    return None


def first_apart(arrays: Arrays, expected: Arrays) -> str | None:
    """The first name whose arrays differ by more than rounding."""
    return next((name for name, array in arrays.items() if apart(array, expected[name]).any()), None)


def apart(array: Array, expected: Array) -> Array:
    """Where two arrays differ by more than rounding."""
    size = max(1.0, float(np.abs(expected).max(initial=0.0)))
    near: Array = np.abs(np.subtract(array, expected, dtype=np.float64)) <= TOLERANCE * size
    return ~near


def gradient_fault(trial: Trial, upstream: Array) -> str | None:
    """The first element of a gradient that disagrees with central differences of Σ upstream · y; None if all agree."""
    for name, gradient in trial.backward(upstream).items():
        expected = np.empty(gradient.shape)
        for index in np.ndindex(expected.shape):
            step = np.zeros(expected.shape)
            step[index] = STEP
            above, below = (float(np.sum(upstream * trial.forward({name: trial.inputs[name] + by})[0]))
                            for by in (step, -step))
            expected[index] = (above - below) / (2 * STEP)
        wrong = apart(gradient, expected)
        if wrong.any():
            at = tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))
            return (f"∂L/∂{name}{list(at)} is {gradient[at]:.6g} by backward and {expected[at]:.6g} by differences of "
                    "forward")
    return None
