"""One function: a model split over ranks computes what the model in one piece computes, and so does its schedule.

The bits of one process cannot show this, because the reference replays the graph of each place: a model that forgets
to add a gradient over its group trains wrongly with every bit equal. So, before a run, both are computed in float64 on
a few samples: the loss of every place, and every gradient, joined. A gradient that all places have must be the same
bytes on all. Over a pipeline, the code of the schedule trains one step, on all ranks of one copy of the model, in the
local world; the loss, every joined gradient, and the square of their norm must be those of the model in one piece.

Two right computations differ by their rounding errors only, whatever the order of their sums. Both run on arrays that
carry a proved bound of these errors (`payloads.bounded`), so each number may differ by the sum of its two bounds: about
1e-11 of a gradient in a transformer of two blocks, where a forgotten or repeated sum changes a good part. Bounds are
those of the worst case and grow with each layer, and cost eight times the time. So `TOLERANCE` of the largest gradient,
which is chosen, limits them; and it serves alone for models of more than `PROVED` parameters, and for those that call a
function of NumPy without a rule.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

import numpy as np

from zerosim.allocation import Array, allocate
from zerosim.autograd.player import perform
from zerosim.autograd.tape import Draw, Tape, TapeUnit
from zerosim.autograd.tape_collectives import ALONE, TapeGroups, over
from zerosim.comm import Communicator
from zerosim.errors import UsageError
from zerosim.instruments.observed import Observed
from zerosim.models import build
from zerosim.models.units import Model, Unit
from zerosim.payloads.bounded import Bounded, NotBounded, allocate_bounded, bound, bounded, values_of
from zerosim.places import cut, joined, side_by_side
from zerosim.reference import backpropagate
from zerosim.scenario.sections import Parallel
from zerosim.stages.replica import Batch
from zerosim.training.build import on_rank
from zerosim.training.config import Config
from zerosim.worlds.local import spawn

TOLERANCE = 1e-9
"""The largest allowed difference, relative to the largest element of all gradients."""
PROVED = 2**16
"""The parameters of the largest model whose differences are bounded number by number."""
SPREAD, EMBEDDED = 0.1, 3.0
"""The deviations of the random numbers that are added to initial weights, so that none are equal, and to embeddings:
norms then divide by about 1, so rounding errors do not grow in them."""
NEAR = 5e-3
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
        times_whole = self.ratio > 1.5 and abs(self.ratio - round(self.ratio)) < NEAR
        added = round(self.ratio) if times_whole else 0
        why = f": {added} ranks add what each has whole; use join_from, or one copy_to less" if added else ""
        times = "not" if equal else f"{self.ratio:.3g} times"
        return f"{self.name}: {times} the {self.what} of the model in one piece{self.why or why}"


def differences(config: Config) -> list[Difference]:
    """The differences between a row's split model and the model in one piece, none if it is one function: the
    loss, then parameters, last first.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Scenario
    >>> from zerosim.scenario.sections import Parallel
    >>> from zerosim.training.config import configured
    >>> row, *_ = Scenario(parallel=Parallel(tensor_ranks=2)).rows
    >>> differences(configured(row, Task(64, 10, "cross_entropy")))
    []
    """
    due, found = in_both(config, some_batch(config.model, max(4, 2 * config.directions.places)))
    wrong = [Difference("loss", float(each.loss[0] / due.loss[0]), what="value", why=departure(config, found, due))
             for each in found if not near(each.loss, due.loss)]
    return [*wrong[:1], *compared(config, [each.gradients for each in found], due.gradients)]


def refuse_draws(*_: object) -> None:
    """Refuse an operation that draws: places would draw the same numbers for different pieces."""
    raise UsageError("dropout is drawn for whole arrays, and ranks that share a micro-batch have pieces of them; leave "
                     "it out, or run the model in one piece")


def in_both(config: Config, batch: tuple[Array, Array], samples: int = 0) -> tuple["Computed", tuple["Computed", ...]]:
    """The results of the model in one piece, and of each place of the split one, for a batch and `some_weights`; they
    carry bounds if each function has one."""
    whole = some_weights(config.in_one_piece)

    def both(proved: bool) -> tuple[Computed, tuple[Computed, ...]]:
        def of_place(place: int, groups: TapeGroups) -> Iterator[Computed]:
            coordinates = config.directions.coordinates(place)
            pieces = {unit: cut(of_whole, unit, flat, coordinates)
                      for unit, (of_whole, flat) in zip(config.model.units, whole.items(), strict=True)}
            return computed(config.model, pieces, groups, batch, samples=samples, proved=proved)

        due = next(computed(config.in_one_piece, whole, ALONE, batch, refuse_draws, samples, proved))
        return due, next(side_by_side(replace(config.directions, pipeline=1), of_place))

    try:
        return both(config.in_one_piece.count <= PROVED)
    except NotBounded:
        return both(proved=False)


def error(array: Array) -> Array:
    """The proved bound of the error of each number; infinite, or NaN, if there is none."""
    return bound(array) if isinstance(array, Bounded) else np.full(array.shape, np.inf)


def near(found: Array, due: Array) -> bool:
    """Whether numbers are equal but for rounding."""
    allowed = np.fmin(error(found) + error(due), TOLERANCE * np.abs(values_of(due)).max(initial=0.0))
    return bool((np.abs(values_of(found) - values_of(due)) <= allowed).all())


def compared(
    config: Config, found: Sequence[Gradients], due: Gradients, of_same: Sequence[Gradients] = ()
) -> Iterator[Difference]:
    """The parameters whose gradients differ from those of the model in one piece, last first: in backward a fault
    reaches all parameters before it.

    `of_same` carry the bounds of `found`, if it has none.
    """
    most = TOLERANCE * max((np.abs(values_of(each)).max() for each in due.values()), default=0.0)
    for whole, unit in reversed([*zip(config.in_one_piece.units, config.model.units, strict=True)]):
        if unit.frozen:
            continue
        numbers, errors = (
            whole.views(joined(whole, unit, [flattened(unit, each, of) for each in places], config.directions))
            for of, places in ((values_of, found), (error, of_same or found)))
        for place in reversed(unit.places):
            name = place.name
            each, exact = numbers[name], values_of(due[name])
            apart = () if place.parameter.cut else tuple(
                number for number, other in enumerate(found) if other[name].tobytes() != found[0][name].tobytes())
            allowed = np.fmin(errors[name] + error(due[name]), most)
            if apart or not (np.abs(each - exact) <= allowed).all():
                yield Difference(name, ratio(each, exact), apart)


def departure(config: Config, found: Sequence["Computed"], due: "Computed") -> str:
    """The first layer whose outputs are neither those of the model in one piece nor a piece of them, in words."""
    for number, (_, segment) in enumerate(config.in_one_piece.segments):
        exact = due.outputs[number]
        for place, each in enumerate(found):
            mine = each.outputs[number]
            starts = [range(0, whole, size) for whole, size in zip(exact.shape, mine.shape, strict=True)]
            pieces = (tuple(slice(first, first + size) for first, size in zip(start, mine.shape, strict=True))
                      for start in product(*starts))
            if not any(near(mine, exact[piece]) for piece in pieces):
                return f": first in the outputs of {segment.layers[-1].name} on place {place}"
    return ""


def flattened(unit: Unit, gradients: Gradients, of: Callable[[Array], Array]) -> Array:
    """The gradients of a unit's parameters, or their bounds, in one array."""
    return np.concatenate([of(gradients[place.name]).reshape(-1) for place in unit.places])


def ratio(found: Array, due: Array) -> float:
    """The median of the elements' ratios; NaN if all are due to be 0."""
    counted = due != 0
    return float(np.median(found[counted] / due[counted])) if counted.any() else float("nan")


def some_batch(model: Model, samples: int, seed: int = 0) -> tuple[Array, Array]:
    """Random inputs and targets of a task."""
    random, task = np.random.default_rng(seed), model.task
    if task.tokens:
        x, y = random.integers(0, task.outputs, (2, samples, task.inputs))
        return x, y
    x = random.standard_normal((samples, task.inputs))
    classes = task.loss == "cross_entropy"
    return x, random.integers(0, task.outputs, samples) if classes else random.standard_normal((samples, task.outputs))


def some_weights(model: Model) -> dict[Unit, Array]:
    """Weights near the initial ones, in float64."""
    found = {}
    for number, unit in enumerate(model.units):
        spread = EMBEDDED if model.task.tokens and not number else SPREAD / unit.count**0.25
        found[unit] = unit.initial(0) + np.random.default_rng([1, number]).normal(0.0, spread, unit.count)
    return found


@dataclass(frozen=True)
class Computed:
    """The results of one place: the loss, of one element, its gradients, and the outputs of each segment."""

    loss: Array
    gradients: Gradients
    outputs: list[Array]


class Noting(Tape):
    """A tape that keeps copies of all outputs."""

    outputs: list[Array]

    def forward(self, unit: TapeUnit, weights: Array, activations: Sequence[Array]) -> list[Array]:
        """The outputs of the unit's next segment."""
        found = super().forward(unit, weights, activations)
        self.outputs.extend(each.copy() for each in found)
        return found


def computed(
    model: Model, weights: Mapping[Unit, Array], groups: TapeGroups, batch: tuple[Array, Array],
    draw: Draw | None = None, samples: int = 0, proved: bool = False,
) -> Iterator[Computed]:
    """The results of one place for a batch, once; `samples` are those of all micro-batches, by default the batch's.

    With `proved` all arrays carry bounds; raises `NotBounded` for a function of which none is known.
    """
    tape = Noting(allocate_bounded if proved else allocate, perform=over(groups, perform), draw=draw,
                  loss_over=model.loss_over)
    tape.outputs = []
    given = {unit: bounded(flat) for unit, flat in weights.items()} if proved else weights
    loss, found = backpropagate(model, tape, given, *batch, samples or len(batch[0]))
    gradients = {
        name: view for unit, flat in found.items() if not unit.frozen for name, view in unit.views(flat).items()}
    yield Computed(loss, gradients, tape.outputs)


Found = tuple[Array | None, float, Gradients]
"""A rank's loss, if it computes one, the square of the norm, and its gradients."""
NOT_ADDED = ": the first and the last rank of the pipeline have different sums; add them over both before the update"
A_FEW = 2
"""The samples of a micro-batch."""
MOST_SHOWN = 3
"""The differences of a split model that are shown."""


def split_otherwise(config: Config) -> str:
    """The first differences between a row's split model and the model in one piece, in words; empty if there are none.
    """
    found = [*(differences(config) if config.directions.side_by_side > 1 else ()),
             *(differences_of_schedule(config) if config.directions.pipeline > 1 else ())]
    more = f" (and {len(found) - MOST_SHOWN} more)" if len(found) > MOST_SHOWN else ""
    return "; ".join(map(str, found[:MOST_SHOWN])) + more


def differences_of_schedule(config: Config) -> Iterator[Difference]:
    """The differences between a step of a row's schedule and the model in one piece.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Scenario
    >>> from zerosim.training.config import configured
    >>> row, *_ = Scenario(parallel=Parallel(stages=("ddp",), pipeline_ranks=2)).rows
    >>> list(differences_of_schedule(configured(row, Task(64, 10, "cross_entropy"))))
    []
    """
    small = in_float64(config)
    count = small.block
    x, y = some_batch(small.model, A_FEW * count)
    batch = Batch(1, np.split(x, count), np.split(y, count), len(x), first=0)
    parts = [in_both(small, pair, len(x)) for pair in zip(batch.inputs, batch.targets, strict=True)]
    due, *same = (reduce(plus, each) for each in zip(*((part, *places) for part, places in parts), strict=True))
    whole = some_weights(small.in_one_piece)
    found: list[Found] = spawn(lambda comm: step_of_rank(comm, small, whole, batch), ranks=small.all_ranks)
    for loss, _, _ in found:
        if loss is not None and not near(with_errors(loss, same[0].loss), due.loss):
            yield Difference("loss", float(loss[0] / due.loss[0]), what="value")
    side = small.directions.side_by_side
    joined: list[Gradients] = [{} for _ in range(side)]
    for rank, (_, _, gradients) in enumerate(found):
        joined[rank % side] = gradients | joined[rank % side]
    apart = {name for rank, (_, _, gradients) in enumerate(found) for name, each in gradients.items()
             if each.tobytes() != joined[rank % side][name].tobytes()}
    yield from (Difference(name, float("nan"), why=NOT_ADDED) for name in due.gradients if name in apart)
    for each in compared(small, joined, due.gradients, [place.gradients for place in same]):
        if each.name not in apart:
            yield replace(each, why=missing(each.name, joined[0], [part.gradients for part, _ in parts]))
    due_square = np.array([sum(float(np.square(values_of(each)).sum()) for each in due.gradients.values())])
    for _, square, _ in found[:1]:
        if not near(np.array([square]), due_square):
            yield Difference("norm", float(np.sqrt(square / due_square[0])), what="norm of all gradients")


def plus(one: Computed, other: Computed) -> Computed:
    """The sum of what two micro-batches contribute."""
    return Computed(one.loss + other.loss, {name: each + other.gradients[name] for name, each in one.gradients.items()},
                    [])


def with_errors(found: Array, same: Array) -> Array:
    """`found`, which the schedule computed without bounds, with those of the same operations."""
    return bounded(found, bound(same)) if isinstance(same, Bounded) else found


def in_float64(config: Config) -> Config:
    """A row with the same pieces of the model: one data rank, DDP, float64, and two micro-batches for each rank of the
    pipeline."""
    row, asked = config.row, config.row.parallel
    keys = ("tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks", "sequence_parallel", "schedule",
            "model_chunks", "pipeline_layers", "units")
    parallel = Parallel(stages=("ddp",), **{key: getattr(asked, key) for key in keys})
    train = replace(row.train, precision="fp64", loss_scale="dynamic", micro_batches=2 * asked.pipeline_ranks,
                    micro_batch=A_FEW, steps=1)
    model = replace(row.model, dropout=0.0)
    row = replace(row, ranks=1, stage="ddp", parallel=parallel, train=train, model=model)
    return Config(row, build(model, config.model.task, row.layers))


def step_of_rank(comm: Communicator, config: Config, whole: dict[Unit, Array], batch: Batch) -> Found:
    """One step of the schedule on a rank."""
    mine, step, _ = on_rank(config, Observed(comm), allocate)
    coordinates = config.directions.coordinates(config.directions.place(comm.rank))
    pairs = {of_model.numbers: (of_model, flat) for of_model, flat in whole.items()}

    def initial(unit: Unit) -> Array:
        of_model, flat = pairs[unit.numbers]
        return cut(of_model, unit, flat, coordinates)

    mine.begin(initial)
    with np.errstate(all="ignore"):
        loss = step(batch)
    square = sum(mine.norms.of_gradients(mine))
    return loss, square, {
        name: view for unit in mine.units for name, view in unit.views(mine.state.gradients[unit]).items()}


def missing(name: str, found: Gradients, parts: list[Gradients]) -> str:
    """The micro-batch whose gradient a parameter lacks, in words; empty if that is not what differs."""
    due, mine = reduce(np.add, [each[name] for each in parts]), found[name]
    for number, each in enumerate(parts):
        if mine.shape == each[name].shape and near(mine, due - each[name]):
            return f": it lacks micro-batch {number} of {len(parts)}; run its backward too, before the update"
    return ""
