"""The transpose law of operations with a direction: ⟨C x, y⟩ = ⟨x, Cᵀ y⟩, on ranks that send messages.

C is forward, Cᵀ backward. The law is tested between the x of each rank and the y of each; what all ranks have `alike`
counts once, and must be the same bytes on all. For a collective on the tape, which is linear, x and y hold integers and
both sides are equal exactly. For any other operation C is the differential of forward: both sides agree up to the error
of central differences in float64.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from zerosim.autograd.differences import STEP, TOLERANCE, Trial, law_fault
from zerosim.autograd.operation import Operation, Shape
from zerosim.autograd.tape_collectives import Direction, TapeCollective
from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError, ZerosimError
from zerosim.core.sharding import Directions
from zerosim.observe.observed import Observed
from zerosim.training.groups import groups_of
from zerosim.worlds.local import spawn

SECONDS = 60.0
"""The limit of one run, which a user's operation need not end."""


def direction_in(settings: Mapping[str, Any]) -> Direction | None:
    """The direction among an operation's settings, if it has one."""
    return next((setting for setting in settings.values() if isinstance(setting, Direction)), None)


def met(settings: Mapping[str, Any], comm: Observed) -> dict[str, Any]:
    """The settings with the group of all ranks for the direction."""
    group = groups_of(comm, Directions(tensor=comm.size))["tensor"]
    return {key: group if isinstance(setting, Direction) else setting for key, setting in settings.items()}


def cases_of(operation: Operation, size: int) -> Iterator[tuple[Shape, dict[str, Any]]]:
    """Shapes of each input, and settings: a direction of `size` ranks and, if forward has them, `axis` and `by`.

    >>> from zerosim.autograd.tape_collectives import shift
    >>> [(shape, settings["by"]) for shape, settings in cases_of(shift, 2)]
    [((4, 6), 1), ((4, 6), 2)]
    """
    choices: dict[str, list[Any]] = {"group": [Direction("tensor", size)], "axis": [0, 1], "by": [1, 2]}
    parameters = inspect.signature(operation.forward).parameters.values()
    names = [key.name for key in parameters if key.kind is key.KEYWORD_ONLY and key.name != "empty"]
    if "group" not in names or not choices.keys() >= set(names):
        raise UsageError(f"{operation.name} has the settings {', '.join(names) or 'none'}; a proof sets group, axis "
                         "and by; for any others, give the file EXAMPLES and use zerosim check FILE")
    for chosen in product(*(choices[name] for name in names)):
        yield (2 * size, 3 * size), dict(zip(names, chosen, strict=True))


def first_fault(operation: Operation, size: int) -> str | None:
    """The first fault among the cases of an operation, all of whose inputs have one shape; or its error."""
    faults = (transpose_fault(operation, [shape] * len(operation.inputs), settings)
             for shape, settings in cases_of(operation, size))
    try:
        return next(filter(None, faults), None)
    except ZerosimError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def law_of(operation: Operation) -> str:
    """The proved law, in words."""
    exact = isinstance(operation, TapeCollective)
    alike = "".join(f"; all ranks have {name} alike" for name in operation.alike)
    return ("backward is the transpose of forward: ⟨C x, y⟩ = ⟨x, Cᵀ y⟩ between every two ranks, "
            f"{'exactly, on integers' if exact else 'by central differences in float64'}{alike}")


@dataclass(frozen=True)
class OfRank:
    """Both sides on one rank, by the input's name: x, C x for the x of each giver, y of each taker, and Cᵀ of these."""

    fault: str | None
    moves: dict[str, Array]
    slopes: dict[str, list[Array]]
    upstream: Array
    output: Array
    gradients: dict[str, list[Array]]


def transpose_fault(operation: Operation, given: Sequence[Shape | Array], settings: Mapping[str, Any]) -> str | None:
    """The first broken law on as many ranks as the direction has, in a sentence; None if all hold.

    `given` has the shape of each input on a rank, or an array of integers, which all ranks have and no gradient.

    >>> from zerosim.autograd.tape_collectives import copy_to
    >>> transpose_fault(copy_to, [(2, 3)], {"group": Direction("tensor", 3)})
    """
    direction = direction_in(settings)
    assert direction is not None
    if direction.alone:
        return f"over one rank the law says nothing; give Direction({direction.name!r}, 2) in EXAMPLES"
    ranks = spawn(lambda comm: of_rank(operation, given, settings, Observed(comm)), direction.size,
                  limit_seconds=SECONDS)
    fault = next((on_rank.fault for on_rank in ranks if on_rank.fault), None)
    if fault is None and "y" in operation.alike:
        fault = rank_difference("y", [on_rank.output for on_rank in ranks])
    return fault or next(filter(None, (broken(operation, name, ranks) for name in ranks[0].moves)), None)


def of_rank(
    operation: Operation, given: Sequence[Shape | Array], settings: Mapping[str, Any], comm: Observed
) -> OfRank:
    """Run both sides on one rank."""
    random = [np.random.default_rng([19, comm.rank]), np.random.default_rng(19)]
    named = met(settings, comm)

    def drawn(name: str, shape: Shape) -> Array:
        """Integers, all multiples of the number of ranks, so that a mean over them is exact."""
        return comm.size * random[name in operation.alike].integers(-9, 10, shape).astype(np.float64)

    def of(giver: int, name: str, array: Array) -> Array:
        """The array on `giver`, and where all ranks have it alike; 0 on other ranks."""
        return array if name in operation.alike or giver == comm.rank else np.zeros_like(array)

    exact = isinstance(operation, TapeCollective)
    inputs = {name: value if isinstance(value, np.ndarray) else drawn(name, value)
              for name, value in zip(operation.inputs, given, strict=False)}
    moves = {name: drawn(name, array.shape) for name, array in inputs.items()
             if name in operation.needs}
    if not exact:
        inputs |= {name: inputs[name] / (9 * comm.size) for name in moves}
    step = 1.0 if exact else STEP
    trial = Trial(operation, inputs, named)
    upstream = drawn("y", trial.forward()[0].shape)

    def output(name: str, by: Array) -> Array:
        return np.array(trial.forward({name: inputs[name] + by})[0])

    def givers(name: str) -> range:
        return range(1 if name in operation.alike else comm.size)

    fault = law_fault(trial, upstream)
    slopes = {name: [(output(name, step * of(giver, name, move)) - output(name, -step * of(giver, name, move)))
                     / (2.0 * step) for giver in givers(name)] for name, move in moves.items()}
    gradients = [trial.backward(of(taker, "y", upstream)) for taker in givers("y")]
    return OfRank(fault, moves, slopes, upstream, output(next(iter(inputs)), np.zeros(())),
                  {name: [of_taker[name] for of_taker in gradients] for name in moves})


def rank_difference(name: str, arrays: Sequence[Array]) -> str | None:
    """A sentence if an array that all ranks have alike is not the same bytes on all."""
    for rank, array in enumerate(arrays):
        if array.tobytes() != arrays[0].tobytes():
            return (f"ranks 0 and {rank} have different {name}, which `alike` denies: add the parts of a sum over the "
                    "group")
    return None


def broken(operation: Operation, name: str, ranks: Sequence[OfRank]) -> str | None:
    """The first two ranks between which the law does not hold for the input `name`, in a sentence."""
    exact = isinstance(operation, TapeCollective)
    for taker in range(len(ranks[0].gradients[name])):
        gradients = [on_rank.gradients[name][taker] for on_rank in ranks]
        if name in operation.alike and (fault := rank_difference(f"∂L/∂{name}", gradients)):
            return fault
        for giver in range(len(ranks[0].slopes[name])):
            outer = ranks[taker].upstream * ranks[taker].slopes[name][giver]
            inner = ranks[giver].moves[name] * gradients[giver]
            left, right = float(outer.sum()), float(inner.sum())
            size = max(1.0, float(np.abs(outer).sum()), float(np.abs(inner).sum()))
            if not abs(left - right) <= (0.0 if exact else TOLERANCE * size):
                return (f"backward is not the transpose of forward: between {side(operation, name, giver)} and "
                        f"{side(operation, 'y', taker)}, ⟨C x, y⟩ = {left:g} and ⟨x, Cᵀ y⟩ = {right:g}")
    return None


def side(operation: Operation, name: str, rank: int) -> str:
    return f"{name} of all ranks" if name in operation.alike else f"{name} of rank {rank}"
