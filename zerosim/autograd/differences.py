"""A check of an operation: backward against central differences of forward in float64, and the laws that it keeps.

A broken law gives wrong numbers only where a step relies on it, and the same ones in every stage and in the reference.
So each law is tested by itself.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from zerosim.autograd.operation import Into, Operation, Shape
from zerosim.core.allocation import Array
from zerosim.core.extents import owner

STEP = 1e-6
TOLERANCE = 1e-6
"""The allowed error of an element relative to the largest gradient; differences in float64 are not more accurate."""

PARAMETERS = ("weight", "bias")
"""Inputs with these names are weights."""

Inputs = Mapping[str, Array]


def operation_fault(operation: Operation, given: Sequence[Shape | Array], settings: Mapping[str, Any]) -> str | None:
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
    upstream = random.standard_normal(forward(operation, inputs, settings)[0].shape)
    return law_fault(operation, inputs, upstream, settings) or gradient_fault(operation, inputs, upstream, settings)


LAYOUTS: Mapping[str, Callable[[Array], Array]] = {
    "C-ordered": lambda array: array.copy(),
    "transposed": lambda array: array.T.copy().T,
    "sliced": lambda array: np.stack([array, array], axis=-1)[..., 0],
}
"""The layouts in memory on which an operation is tried."""


class Memory:
    """Allocates arrays of NaN, and remembers them."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def empty(self, shape: Shape, dtype: Any) -> Array:
        self.arrays.append(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype))
        return self.arrays[-1]

    def has(self, array: Any) -> bool:
        return any(owner(array) is each for each in self.arrays)


def law_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """The first law of `autograd/operation.py` that the operation breaks, in a sentence; None if it breaks none."""
    if fault := returned_fault(operation, inputs, settings):
        return fault
    due, gradients_due = forward(operation, inputs, settings), backward(operation, inputs, upstream, settings)
    if np.isnan(due[0]).any():
        return "forward leaves elements of y unwritten or NaN; write all of it, as in y[...] = …"
    for layout, lay in LAYOUTS.items():
        laid = {name: lay(each) for name, each in inputs.items()}
        fault = (returned_fault(operation, laid, settings)
                 or changed_fault(operation, laid, lay(upstream), settings)
                 or result_fault(operation, laid, lay(upstream), settings, due[0], gradients_due))
        if fault:
            return fault if layout == "C-ordered" else f"{fault} ({layout} inputs)"
    return needs_fault(operation, inputs, upstream, settings, gradients_due)


def returned_fault(operation: Operation, inputs: Inputs, settings: Mapping[str, Any]) -> str | None:
    """A result of forward that the memory ledger would not count, or that holds a weight, in a sentence."""
    memory = Memory()
    results = forward(operation, inputs, settings, memory)
    if len(results) != 1 + operation.saves:
        return f"forward returns {len(results)} arrays: return y, and saved if, and only if, backward reads it"
    for name, array in zip(("y", "saved"), results, strict=False):
        if not isinstance(array, np.ndarray):
            return (f"forward returns {type(array).__name__} as {name}; return y, or y and saved if backward reads it: "
                    "y an array of empty(shape, dtype) or a view of an input, saved an array of empty")
        view_of = next((key for key, given in inputs.items() if owner(array) is owner(given)), None)
        if name == "saved" and view_of is not None:
            return (f"forward saves a view of {view_of}, which would keep all of it until backward, also a weight that "
                    f"Stage III has freed; save an array of empty, and name {view_of} in needs if backward reads it")
        if not memory.has(array) and view_of is None:
            return (f"forward returns {array.nbytes:,} bytes as {name} that empty did not allocate; write them to an "
                    "array of empty(shape, dtype)")
    return saved_fault(operation, inputs, results, settings)


def saved_fault(
    operation: Operation, inputs: Inputs, results: Sequence[Array], settings: Mapping[str, Any]
) -> str | None:
    """A sentence if what forward saves is a function of weights alone, which the tape must not keep."""
    weights = [name for name in PARAMETERS if name in inputs]
    if not operation.saves or not weights or len(weights) == len(inputs):
        return None

    def saved_after(changed: Collection[str]) -> bytes:
        other = {name: array * 0.5 if name in changed and array.dtype.kind == "f" else array
                 for name, array in inputs.items()}
        return bytes(forward(operation, other, settings)[1].tobytes())

    if saved_after(inputs.keys() - set(weights)) == results[1].tobytes() != saved_after(weights):
        return (f"forward saves {results[1].nbytes:,} bytes that it computes of {' and '.join(weights)} alone, weights "
                "that Stage III frees; backward gets them again, so let it compute this, and name them in needs")
    return None


def changed_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """An array that forward or backward gets and writes to, in a sentence."""
    before = {name: each.tobytes() for name, each in inputs.items()}
    y, *saved = forward(operation, inputs, settings)
    if name := first_changed(before, inputs):
        return f"forward writes to its input {name}; write to arrays of empty(shape, dtype)"
    read = {**inputs, "y": y, "upstream": upstream, **({"saved": saved[0]} if saved else {})}
    before = {name: each.tobytes() for name, each in read.items()}
    gradients(operation, inputs, (y, *saved), upstream, settings, wanted_of(operation, inputs))
    if name := first_changed(before, read):
        return f"backward writes to {name}; write to into, and to arrays of empty(shape, dtype)"
    return None


def first_changed(before: Mapping[str, bytes], arrays: Inputs) -> str | None:
    """The name of the first array that has other bytes than before."""
    return next((name for name, each in before.items() if arrays[name].tobytes() != each), None)


def result_fault(
    operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any], y: Array, due: Inputs
) -> str | None:
    """A result on these layouts that differs from that of the same numbers in C order, in a sentence."""
    if apart(forward(operation, inputs, settings)[0], y).any():
        return "y differs from that of the same numbers in C order"
    wrong = first_apart(backward(operation, inputs, upstream, settings), due)
    return f"∂L/∂{wrong} differs from that of the same numbers in C order" if wrong else None


def needs_fault(
    operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any], due: Inputs
) -> str | None:
    """A gradient that is another one if it alone is wanted, or does not read an array that it needs."""
    made = forward(operation, inputs, settings)
    for wanted in wanted_of(operation, inputs):
        def alone(poisoned: str, poison: float, wanted: str = wanted) -> dict[str, Array]:
            read = {name: np.full_like(each, poison) if name == poisoned else each
                    for name, each in {**inputs, "y": made[0]}.items()}
            y = read.pop("y")
            return gradients(operation, read, (y, *made[1:]), upstream, settings, [wanted])

        if first_apart(alone("", 0.0), due) is not None:
            return f"∂L/∂{wanted} differs if no other gradient is wanted"
        for name in operation.needs[wanted]:
            array = inputs.get(name, upstream)
            if array.dtype.kind == "f" and array.size and all(
                    first_apart(alone(name, poison), due) is None for poison in (np.nan, 2.0)):
                return (f"keeps {name} for ∂L/∂{wanted}, which does not read it: {array.nbytes:,} bytes; leave it out "
                        "of needs")
    return None


def first_apart(found: Inputs, due: Inputs) -> str | None:
    """The first name whose arrays differ by more than rounding."""
    return next((name for name, each in found.items() if apart(each, due[name]).any()), None)


def apart(found: Array, due: Array) -> Array:
    """Where two arrays differ by more than rounding."""
    size = max(1.0, float(np.abs(due).max(initial=0.0)))
    near: Array = np.abs(np.subtract(found, due, dtype=np.float64)) <= TOLERANCE * size
    return ~near


def gradient_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """The first element of a gradient that disagrees with the differences, in a sentence; None if all agree."""
    for name, found in backward(operation, inputs, upstream, settings).items():
        due = differences(operation, inputs, upstream, settings, name)
        wrong = apart(found, due)
        if wrong.any():
            at = tuple(int(each) for each in np.unravel_index(int(wrong.argmax()), wrong.shape))
            return f"∂L/∂{name}{list(at)} is {found[at]:.6g} by backward and {due[at]:.6g} by differences of forward"
    return None


def forward(
    operation: Operation, inputs: Inputs, settings: Mapping[str, Any], memory: Memory | None = None
) -> tuple[Any, ...]:
    """The output, and if backward reads it the array that forward saves."""
    empty = (memory or Memory()).empty
    found = operation.forward(*inputs.values(), empty=empty, **settings, **draws_setting(operation))
    return found if isinstance(found, tuple) else (found,)


def wanted_of(operation: Operation, inputs: Inputs) -> list[str]:
    """The inputs that have a gradient."""
    return [name for name in inputs if name in operation.needs]


def backward(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> dict[str, Array]:
    """The gradient of each input that has one."""
    made = forward(operation, inputs, settings)
    return gradients(operation, inputs, made, upstream, settings, wanted_of(operation, inputs))


def gradients(
    operation: Operation, inputs: Inputs, made: Sequence[Array], upstream: Array, settings: Mapping[str, Any],
    wanted: Sequence[str],
) -> dict[str, Array]:
    """The `wanted` gradients by backward, which reads inputs and what forward `made` as it declares."""
    if operation.backward is None or not wanted:
        return {}
    names = {each for name in wanted for each in operation.needs[name]}
    read = {name: array for name, array in {**inputs, "y": made[0]}.items() if name in names}
    into = Into({name: inputs[name].shape for name in wanted}, lambda name: np.full(inputs[name].shape, np.nan))
    saved = {"saved": made[1]} if operation.saves else {}
    operation.backward(
        upstream, into, empty=Memory().empty, **read, **saved, **settings, **draws_setting(operation))
    return {name: np.array(into[name]) for name in wanted}


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
