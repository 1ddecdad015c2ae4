"""One function: a model split over ranks computes what the model in one piece computes.

The bits of one process cannot show this, because the reference replays the graph of each place: a model that forgets
to add a gradient over its group trains wrongly with every bit equal. So, before a run, both are computed in float64 on
a few samples: the loss of every place, and every gradient, joined. A gradient that all places have must be the same
bytes on all.

Float64 rounds at 1e-16, and each number here is the result of some thousands of additions; a forgotten or repeated sum
changes a gradient by a good part of itself. `TOLERANCE` lies between, and is chosen, not proved: a proved bound needs
the conditioning of every operation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.player import perform
from zerosim.autograd.tape import Draw, Tape
from zerosim.autograd.tape_collectives import ALONE, TapeGroups, over
from zerosim.errors import UsageError
from zerosim.models.units import Model, Unit
from zerosim.places import cut, joined, side_by_side
from zerosim.reference import backpropagate
from zerosim.training.config import Config

TOLERANCE = 1e-9
"""The allowed difference, relative to the largest element of all gradients: some are 0 but for rounding."""
SPREAD = 0.3
"""The deviation of the random numbers that are added to initial weights, so that none are equal."""
NEAR = 1e-3
"""Median ratios this near to 1 are not said."""

Gradients = dict[str, Array]
"""Each parameter's gradient, by its full name."""


@dataclass(frozen=True)
class Difference:
    """A parameter, or the loss, that the split model and the model in one piece have differently."""

    name: str
    ratio: float
    """The median ratio of its elements to those of the model in one piece."""
    places: tuple[int, ...] = ()
    """The places that differ from place 0 in what all should have; empty if none do."""
    what: str = "gradient"
    why: str = ""
    """The cause, if it is known, after a colon."""

    def __str__(self) -> str:
        if self.places:
            which = ", ".join(map(str, self.places))
            return (f"{self.name}: place {which} and place 0 have different gradients of a parameter that all have, "
                    "each a part of the sum: let the parameter, or the input of the next cut product, pass copy_to")
        equal = abs(self.ratio - 1.0) < NEAR or not np.isfinite(self.ratio)
        added = round(self.ratio) if not equal and self.ratio > 1.5 and abs(self.ratio % 1.0) < NEAR else 0
        why = f": {added} ranks add what each has whole; use join_from, or one copy_to less" if added else ""
        times = "not" if equal else f"{self.ratio:.3g} times"
        return f"{self.name}: {times} the {self.what} of the model in one piece{self.why or why}"


def differences(config: Config) -> list[Difference]:
    """The differences between a row's split model and the model in one piece, in model order; none if it is one
    function.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Scenario
    >>> from zerosim.scenario.sections import Parallel
    >>> from zerosim.training.config import configured
    >>> row, *_ = Scenario(parallel=Parallel(tensor_ranks=2)).rows
    >>> differences(configured(row, Task(64, 10, "cross_entropy")))
    []
    """
    batch = some_batch(config.model, 4 * config.directions.places)
    whole = {unit: some_weights(unit, number) for number, unit in enumerate(config.in_one_piece.units)}
    (due_loss, due), = computed(config.in_one_piece, whole, ALONE, batch, refuse_draws)

    def of_place(place: int, groups: TapeGroups) -> Iterator[tuple[float, Gradients]]:
        coordinates = config.directions.coordinates(place)
        pieces = {unit: cut(of_whole, unit, flat, coordinates)
                  for unit, (of_whole, flat) in zip(config.model.units, whole.items(), strict=True)}
        return computed(config.model, pieces, groups, batch)

    (found,) = side_by_side(replace(config.directions, pipeline=1), of_place)
    wrong = [Difference("loss", loss / due_loss, what="value") for loss, _ in found if not near(loss, due_loss)]
    return [*wrong[:1], *compared(config, [gradients for _, gradients in found], due)]


def refuse_draws(*_: object) -> None:
    """Refuse an operation that draws: places would draw the same numbers for different pieces."""
    raise UsageError("dropout is drawn for whole arrays, and ranks that share a micro-batch have pieces of them; leave "
                     "it out, or run the model in one piece")


def near(found: float, due: float) -> bool:
    """Whether two numbers are equal but for rounding."""
    return abs(found - due) <= TOLERANCE * abs(due)


def compared(config: Config, found: Sequence[Gradients], due: Gradients) -> Iterator[Difference]:
    """The parameters whose gradients differ from those of the model in one piece."""
    allowed = TOLERANCE * max(np.abs(each).max() for each in due.values()) if due else 0.0
    for whole, unit in zip(config.in_one_piece.units, config.model.units, strict=True):
        if unit.frozen:
            continue
        flat = joined(whole, unit, [flattened(unit, each) for each in found], config.directions)
        for place, each in zip(unit.places, whole.views(flat).values(), strict=True):
            name = place.name
            apart = () if place.parameter.cut else tuple(
                number for number, other in enumerate(found) if other[name].tobytes() != found[0][name].tobytes())
            if apart or not np.abs(each - due[name]).max() <= allowed:
                yield Difference(name, ratio(each, due[name]), apart)


def flattened(unit: Unit, gradients: Gradients) -> Array:
    """The gradients of a unit's parameters in one array."""
    return np.concatenate([gradients[place.name].reshape(-1) for place in unit.places])


def ratio(found: Array, due: Array) -> float:
    """The median of the elements' ratios; NaN if all are due to be 0."""
    counted = due != 0
    return float(np.median(found[counted] / due[counted])) if counted.any() else float("nan")


def some_batch(model: Model, samples: int) -> tuple[Array, Array]:
    """Random inputs and targets of a task."""
    random, task = np.random.default_rng(0), model.task
    if task.tokens:
        x, y = random.integers(0, task.outputs, (2, samples, task.inputs))
        return x, y
    x = random.standard_normal((samples, task.inputs))
    classes = task.loss == "cross_entropy"
    return x, random.integers(0, task.outputs, samples) if classes else random.standard_normal((samples, task.outputs))


def some_weights(unit: Unit, number: int) -> Array:
    """Weights near the initial ones, in float64."""
    weights = unit.initial(0).astype(np.float64)
    weights += np.random.default_rng([1, number]).normal(0.0, SPREAD / unit.count**0.25, unit.count)
    return weights


def computed(
    model: Model, weights: Mapping[Unit, Array], groups: TapeGroups, batch: tuple[Array, Array],
    draw: Draw | None = None, samples: int = 0,
) -> Iterator[tuple[float, Gradients]]:
    """The loss and the gradients of one place, once; `samples` are those of all micro-batches, by default the batch's.
    """
    tape = Tape(perform=over(groups, perform), draw=draw, loss_over=model.loss_over)
    loss, gradients = backpropagate(model, tape, weights, *batch, samples or len(batch[0]))
    yield float(loss[0]), {
        name: view for unit, flat in gradients.items() if not unit.frozen for name, view in unit.views(flat).items()}
