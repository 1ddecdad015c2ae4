"""One function, over a pipeline: a schedule computes what the model in one piece computes from the same micro-batches.

Before a run, the code of the schedule trains one step in float64, on all ranks of one copy of the model, in the local
world. The loss, every joined gradient, and the square of their norm must be those of the model in one piece.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import numpy as np

from zerosim.allocation import Array, allocate
from zerosim.comm import Communicator
from zerosim.instruments.observed import Observed
from zerosim.models import build
from zerosim.models.units import Unit
from zerosim.payloads.bounded import Bounded, bound, bounded, values_of
from zerosim.places import cut
from zerosim.scenario.sections import Parallel
from zerosim.stages.replica import Batch
from zerosim.training.build import on_rank
from zerosim.training.config import Config
from zerosim.training.one_function import (
    Computed,
    Difference,
    Gradients,
    compared,
    differences,
    in_both,
    near,
    some_batch,
    some_weights,
)
from zerosim.worlds.local import spawn

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
