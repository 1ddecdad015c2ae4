"""A user's optimizer: a formula whose signature declares slots and keys, with a trial before its use.

The trial takes a millisecond and finds errors that would otherwise show hours later, or on different numbers of ranks,
as different bits: a formula that is not elementwise, a slot that is rebound instead of written, a write to the
gradient.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError, error_line
from zerosim.core.parts.signature import signature_of
from zerosim.stages.optimizers import Hyperparameters, Optimizer
from zerosim.stages.storage import GRADIENT, WEIGHTS
from zerosim.stages.update import MASTER

GIVEN = ("t", "h", "a", "b")
TAKEN = {WEIGHTS, GRADIENT, MASTER}
"""Names of what is stored beside the slots."""
COUNT, CUT = 37, 10
"""The number of elements of the trial, and the index at which they are split."""


def optimizer(
    *, decoupled: bool = False, weight_decay: float = 0.0, of_matrix: Callable[..., None] | None = None
) -> Callable[[Callable[..., None]], Optimizer]:
    """A decorator: the formula as an optimizer, with decoupled weight decay or another default weight decay.

    `of_matrix(difference, *, h)` rewrites in place what the formula would subtract from a whole matrix.

    >>> @optimizer(decoupled=True)
    ... def signs(g, *, t, h, a, b, power=1.0):
    ...     np.multiply(np.sign(g), h.learning_rate * power, out=a)
    >>> signs.decoupled, signs.slots, signs.keys
    (True, (), {'power': 1.0})
    """
    return lambda formula: replace(
        declared(formula.__name__, formula), decoupled=decoupled, usual_weight_decay=weight_decay,
        of_matrix=of_matrix)


def declared(name: str, formula: Callable[..., None]) -> Optimizer:
    """The optimizer that a formula's signature declares; its slots are the positional parameters after the gradient."""
    signature = signature_of(name, formula, GIVEN)
    if not signature.positional:
        raise UsageError(f"{name} takes no gradient; write def {formula.__name__}(g, …, *, t, h, a, b), a "
                         "slot for each parameter after g")
    if taken := TAKEN & {*signature.positional[1:]}:
        raise UsageError(f"{name} has a slot {min(taken)}, a name that a model state has; give it another")
    return Optimizer(name, signature.positional[1:], formula, keys=signature.keys)


def as_optimizer(name: str, named: Any) -> Optimizer:
    """The optimizer that a scenario names, after its trial. Raises `UsageError` with the error."""
    if not isinstance(named, Optimizer) and not inspect.isfunction(named):
        raise UsageError(f"{name} is a {type(named).__name__}; give a formula, def {name.rpartition(':')[2]}"
                         "(g, …, *, t, h, a, b)")
    optimizer = replace(named if isinstance(named, Optimizer) else declared(name, named), name=name)
    problem = wrong(optimizer)
    if problem is not None:
        raise UsageError(f"{name}: {problem}")
    return optimizer


def wrong(optimizer: Optimizer) -> str | None:
    """The error of a formula, in a sentence; None if it has none."""
    if binds_anew(optimizer.formula, "a"):
        return ("it rebinds a with a = …, so the previous contents of a are subtracted from the weights: write into "
                "it, as in np.multiply(g, h.learning_rate, out=a)")
    for count in (1, 2):
        g, slots = trial_arrays(len(optimizer.slots))
        try:
            a, after = applied(optimizer, g, slots, count, np.nan)
            parts = [applied(optimizer, g[part], [slot[part] for slot in slots], count, 7.0)
                     for part in (slice(CUT), slice(CUT, None))]
        except Exception as error:
            return error_line(error, optimizer.formula)
        if not np.array_equal(g, trial_arrays(0)[0]):
            return "it writes to the gradient g, which is read-only; use the scratch arrays a and b"
        if not np.isfinite(a).all():
            return ("it leaves elements of a unwritten or not finite: write the difference to subtract from the "
                    "weights into a, as in np.multiply(g, h.learning_rate, out=a)")
        for slot, before, now in zip(optimizer.slots, slots, after, strict=True):
            if not np.isfinite(now).all():
                return f"it leaves elements of the slot {slot} not finite, which the next update reads"
            if np.array_equal(before, now):
                return (f"the slot {slot} does not change: write into it, {slot} *= … or {slot}[:] = …, and not "
                        f"{slot} = …, which rebinds the name")
        whole = [a, *after]
        pieces = [np.concatenate(halves) for halves in zip(*([p, *s] for p, s in parts), strict=True)]
        for what, one, other in zip(("the difference a", *(f"slot {s}" for s in optimizer.slots)), whole, pieces,
                                    strict=True):
            if one.tobytes() != other.tobytes():
                index = int(np.flatnonzero(one != other)[0])
                return (f"{what} of element {index} is {one[index]:.6g} in a vector of {COUNT} elements and "
                        f"{other[index]:.6g} in a part of it: a formula works element by element, so that shards and "
                        "whole units come out the same; leave out sums, means and norms over g and slots, or give "
                        "@optimizer an of_matrix")
    return None if optimizer.of_matrix is None else wrong_of_matrix(optimizer.of_matrix)


def wrong_of_matrix(of_matrix: Callable[..., None]) -> str | None:
    """The error of a function of whole matrices, in a sentence; None if it has none."""
    for shape in ((3, 5), (5, 3)):
        matrix = np.random.default_rng(19).standard_normal(shape).astype(np.float32)
        before = matrix.copy()
        try:
            of_matrix(matrix, h=Hyperparameters())
        except Exception as error:
            return error_line(error, of_matrix)
        if not np.isfinite(matrix).all() or np.array_equal(matrix, before):
            return ("of_matrix leaves a difference unchanged or not finite: write what is to be subtracted into it, as "
                    "in difference[...] = …")
    return None


def binds_anew(formula: Callable[..., None], name: str) -> bool:
    """Whether a function assigns to a name, if its source is known; `a += b` does not count."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(formula)))
    except (OSError, TypeError, SyntaxError):
        return False
    return any(isinstance(target, ast.Name) and target.id == name
               for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets)


def trial_arrays(slots: int) -> tuple[Array, list[Array]]:
    """A gradient and slots for a trial."""
    random = np.random.default_rng(19)
    g = random.standard_normal(COUNT).astype(np.float32)
    return g, [np.abs(random.standard_normal(COUNT)).astype(np.float32) for _ in range(slots)]


def applied(optimizer: Optimizer, g: Array, slots: list[Array], t: int, scratch: float) -> tuple[Array, list[Array]]:
    """The results of the formula in a and in copies of the slots; scratch arrays are filled with `scratch`."""
    copies = [slot.copy() for slot in slots]
    a, b = np.full_like(g, scratch), np.full_like(g, scratch)
    with np.errstate(all="ignore"):
        optimizer.formula(g, *copies, t=t, h=Hyperparameters(), a=a, b=b, **optimizer.keys)
    return a, copies
