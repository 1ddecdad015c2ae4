"""A check of an operation: backward against central differences of forward in float64, and the laws that it declares.

A broken law gives wrong numbers only where the player relies on it, and the same ones in every stage and in the
reference. So each law is tested by itself.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Operation, Shape
from zerosim.autograd.player import no_array, no_view, owner, same_memory

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
    """The first law of `autograd/operation.py` that the operation breaks, in a sentence; None if it breaks none.

    It is tried on inputs of every layout. An operation that `copies` gets arrays in C order.
    """
    for layout, lay in LAYOUTS.items():
        def laid(arrays: Inputs, lay: Callable[[Inputs], Inputs] = lay) -> dict[str, Array]:
            found = lay(arrays)
            return {name: each.copy() if operation.copies else each for name, each in found.items()}

        fault = (holding_fault(operation, laid(inputs), settings) or forward_fault(operation, laid(inputs), settings)
                 or backward_fault(operation, laid(inputs), laid({"y": upstream})["y"], settings))
        if fault:
            return fault if layout == "C-ordered" else f"{fault} ({layout} inputs)"
    return needs_fault(operation, inputs, upstream, settings)


def repeated(array: Array) -> Array:
    """The first row of an array as each of its rows, in the memory of one."""
    return np.broadcast_to(array[:1].copy(), array.shape)


def shared(inputs: Inputs) -> Inputs:
    """One array for all inputs of one shape."""
    arrays = {(each.shape, each.dtype): each.copy() for each in inputs.values()}
    return {name: arrays[each.shape, each.dtype] for name, each in inputs.items()}


LAYOUTS: Mapping[str, Callable[[Inputs], Inputs]] = {
    "C-ordered": lambda inputs: {name: each.copy() for name, each in inputs.items()},
    "transposed": lambda inputs: {name: each.T.copy().T for name, each in inputs.items()},
    "sliced": lambda inputs: {name: np.stack([each, each], axis=-1)[..., 0] for name, each in inputs.items()},
    "broadcast": lambda inputs: {name: repeated(each) if each.ndim else each.copy() for name, each in inputs.items()},
    "shared": shared,
}
"""The layouts in memory on which an operation is tried; the last two change the numbers."""


def holding_fault(operation: Operation, inputs: dict[str, Array], settings: Mapping[str, Any]) -> str | None:
    """The first array that forward aliases or keeps against its declaration, in a sentence; it empties `inputs`."""
    made: list[weakref.ref[Array]] = []

    def empty(shape: Shape, dtype: Any) -> Array:
        made.append(weakref.ref(array := np.empty(shape, dtype)))
        return array

    out = None if operation.aliases else np.empty(shape_of(operation, inputs, settings))
    given = {f"input {name}": each for name, each in inputs.items()} | ({} if out is None else {"output y": out})
    memory = {name: weakref.ref(owner(each)) for name, each in given.items()}
    found = operation.forward(*inputs.values(), out=out, empty=empty, **settings, **draws_setting(operation))
    source = None if found is None else next(
        (name for name, each in inputs.items() if same_memory(found, each)), None)
    if operation.aliases and source != operation.aliases:
        return no_view(operation)
    if source and not operation.aliases and not operation.saves:
        return f"returns a view of its input {source} that it declares as a copy; write out, or declare aliases"
    saved: Any = found if operation.saves and not operation.aliases else None
    if operation.saves and found is None:
        return "forward returns None, and its backward reads saved; return the array that backward needs"
    if saved is not None and not isinstance(saved, np.ndarray):
        return no_array(saved)
    del found, out
    inputs.clear()
    given.clear()
    for name, reference in memory.items():
        if (left := reference()) is not None:
            return (f"keeps its {name}, which its declaration leaves out: {left.nbytes:,} bytes; name it in needs and "
                    "keep no reference to it")
    left_over = [array for reference in made if (array := reference()) is not None]
    if saved is not None and not any(owner(saved) is each for each in left_over):
        return f"saves {saved.nbytes:,} bytes that empty did not allocate; copy them to an array of empty(shape, dtype)"
    if held := sum(each.nbytes for each in left_over if saved is None or each is not owner(saved)):
        return f"keeps {held:,} bytes that it does not return; return what backward needs, as saved"
    return None


def forward_fault(operation: Operation, inputs: Inputs, settings: Mapping[str, Any]) -> str | None:
    """The first law of forward that is broken on these inputs, which it may overwrite."""
    due, _ = forward(operation, inputs, settings)
    if np.isnan(due).any():
        return "forward leaves elements of out unwritten or NaN; write all of it, as in out[...] = …"
    before = {name: each.copy() for name, each in inputs.items()}
    out = None if operation.aliases else np.empty(due.shape)
    found = run_forward(operation, inputs, out, settings)
    for name, each in before.items():
        if each.tobytes() != inputs[name].tobytes():
            return f"forward writes to its input {name}; write to out, and to arrays from empty(shape, dtype)"
    y = found if out is None else out
    if y is None or apart(y, due).any():
        return "y differs from that of the same numbers in C order"
    over = operation.over
    if over is not None and inputs[over].shape == y.shape and may_be_written(over, inputs):
        run_forward(operation, inputs, inputs[over], settings)
        if inputs[over].tobytes() != y.tobytes():
            return f"y changes when it is written over {over}: leave over={over!r} out"
    return None


def may_be_written(name: str, inputs: Inputs) -> bool:
    """Whether an array is in C order, may be written, and no other input lies in its memory."""
    return inputs[name].flags.carray and sum(same_memory(inputs[name], each) for each in inputs.values()) == 1


def backward_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """The first law of backward that is broken on these inputs and this upstream."""
    due = backward(operation, inputs, upstream, settings)
    for name, view in operation.passed.items():
        if name in inputs and not same_memory(view(upstream, inputs[name].shape, **settings), upstream):
            return (f"passes a copy of upstream on to {name}; return upstream or a view of it, or write ∂L/∂{name} in "
                    "backward")
    computed = [name for name in due if name not in operation.passed]
    if operation.backward is None or not computed:
        return None
    read = for_backward(operation, inputs, settings, computed)
    before = {name: each.tobytes() for name, each in {**read, "upstream": upstream}.items()}
    found = gradients(operation, read, upstream, inputs, settings, computed)
    for name, each in {**read, "upstream": upstream}.items():
        if before[name] != each.tobytes() and name not in operation.spoils:
            return f"backward writes to {name}; write to into, to arrays of empty, and to inputs that spoils names"
    if (wrong := first_apart(found, due)) is not None:
        return f"∂L/∂{wrong} differs from that of the same numbers in C order"
    over = operation.over_upstream
    if over is not None and due[over].shape == upstream.shape and upstream.flags.carray:
        found = gradients(operation, for_backward(operation, inputs, settings, computed), upstream, inputs, settings,
                          computed, over)
        if (wrong := first_apart(found, due)) is not None:
            return f"∂L/∂{wrong} changes when ∂L/∂{over} is written over upstream: leave over_upstream={over!r} out"
    return None


def needs_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """A gradient that is another one if it alone is wanted, or does not read an array that it needs."""
    due = backward(operation, inputs, upstream, settings)
    for wanted in (name for name in operation.needs if name in inputs and operation.backward is not None):
        def alone(poisoned: str, poison: float, wanted: str = wanted) -> dict[str, Array]:
            read = {name: each.copy() for name, each in for_backward(operation, inputs, settings, [wanted]).items()}
            if poisoned in read:
                read[poisoned][...] = poison
            return gradients(operation, read, upstream.copy(), inputs, settings, [wanted])

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
    near: Array = np.abs(found - due) <= TOLERANCE * max(1.0, float(np.abs(due).max(initial=0.0)))
    return ~near


def gradient_fault(operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]) -> str | None:
    """The first element of a gradient that disagrees with the differences, in a sentence; None if all agree."""
    found = backward(operation, inputs, upstream, settings)
    for name in (*operation.needs, *operation.passed):
        if name not in inputs:
            continue
        due = differences(operation, inputs, upstream, settings, name)
        wrong = apart(found[name], due)
        if wrong.any():
            at = tuple(int(each) for each in np.unravel_index(int(wrong.argmax()), wrong.shape))
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
    out = None if operation.aliases else np.full(shape_of(operation, inputs, settings), np.nan)
    found = run_forward(operation, copies, out, settings)
    return (np.asarray(found), None) if out is None else (out, found)


def backward(
    operation: Operation, inputs: Inputs, upstream: Array, settings: Mapping[str, Any]
) -> dict[str, Array]:
    """The gradient of each input that has one."""
    found = {name: np.array(view(upstream, inputs[name].shape, **settings)) for name, view in operation.passed.items()
             if name in inputs}
    wanted = [name for name in operation.needs if name in inputs]
    if operation.backward is None or not wanted:
        return found
    copies = {name: each.copy() for name, each in inputs.items()}
    read = for_backward(operation, copies, settings, wanted)
    return found | gradients(operation, read, upstream.copy(), inputs, settings, wanted)


def for_backward(
    operation: Operation, inputs: Inputs, settings: Mapping[str, Any], wanted: Sequence[str]
) -> dict[str, Array]:
    """The arrays that backward declares to read for the `wanted` gradients; copies of those that it spoils."""
    y, saved = forward(operation, inputs, settings)
    names = {each for name in wanted for each in operation.needs[name]}
    found = {name: array.copy(order="K") if name in operation.spoils else array
             for name, array in {**inputs, "y": y}.items() if name in names}
    return found | ({"saved": saved} if operation.saves and saved is not None else {})


def gradients(
    operation: Operation, read: Mapping[str, Array], upstream: Array, inputs: Inputs, settings: Mapping[str, Any],
    wanted: Sequence[str], over: str | None = None,
) -> dict[str, Array]:
    """The `wanted` gradients by backward, of which that of the input `over` is written over upstream."""
    assert operation.backward is not None
    into = {name: upstream if name == over else np.full(inputs[name].shape, np.nan) for name in wanted}
    operation.backward(upstream, into, empty=np.empty, **read, **settings, **draws_setting(operation))
    return into


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
