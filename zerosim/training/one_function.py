"""One function: a model split over ranks, and the schedule of a pipeline, compute what the model in one piece computes.

The bits of one process cannot show this, because the reference replays the graph of each place: a model that forgets
to add a gradient over its group trains wrongly with every bit equal. So, before a run, the ranks of one copy of the
model train one step of DDP in float64 on a few samples, in the local world and by the code of the run; the loss, every
joined gradient, and the square of their norm must be those of the model in one piece. A gradient that all places have
must be the same bytes on all.

Two right computations differ by their rounding errors only. `TOLERANCE` of the largest gradient is far above those of
float64, about 1e-13, and far below a sum that is forgotten or repeated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce

import numpy as np

from zerosim.autograd.operations.losses import UNCOUNTED, counted
from zerosim.autograd.player import perform
from zerosim.autograd.tape import Draw, Tape
from zerosim.autograd.tape_collectives import ALONE, TapeGroups, over
from zerosim.core.allocation import Array, allocate
from zerosim.core.comm import Communicator
from zerosim.core.errors import UsageError
from zerosim.models import build
from zerosim.models.places import joined
from zerosim.models.units import Model, Unit
from zerosim.observe.observed import Observed
from zerosim.scenario.sections import Parallel
from zerosim.stages.replica import Batch
from zerosim.training.build import of_place, on_rank
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.reference import backpropagate
from zerosim.worlds.local import spawn

TOLERANCE = 1e-9
"""The largest allowed difference, relative to the largest element of all gradients."""
PIECES = ("units", "tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks", "schedule", "model_chunks",
          "pipeline_layers", "sequence_parallel", "vocabulary_parallel", "context_by")
"""The keys of [parallel] that say how a model is cut; all others have their usual values in the run here."""
SPREAD, EMBEDDED = 0.1, 3.0
"""The deviations of the random numbers that are added to initial weights, so that none are equal, and to embeddings:
norms then divide by about 1, so rounding errors do not grow in them."""
UNCOUNTED_SHARE = 0.2
"""The share of targets in the random sequences that do not count, so that micro-batches have different numbers."""
MOST_SHOWN = 3
"""The differences of a split model that are shown."""

Gradients = dict[str, Array]
"""Each parameter's gradient, by its full name."""


def refuse_unequal_splits(experiment: Experiment) -> None:
    """Compare each split model with the model in one piece; raises `ScenarioError` with the first differences."""
    rows = {tuple(getattr(row.parallel, key) for key in PIECES): row
            for row in experiment.rows if row.directions.places > 1}
    for config in rows.values():
        with experiment.scenario.origin.blaming(("model", "kind")):
            difference = split_fault(config)
        if difference:
            raise experiment.scenario.origin.error(
                f"the split model of {config.name} is not the model in one piece: {difference}", ("model", "kind"))


def split_fault(config: Config) -> str:
    """The first differences between a row's split model and the model in one piece, in words; empty if none."""
    different = differences(config)
    more = f" (and {len(different) - MOST_SHOWN} more)" if len(different) > MOST_SHOWN else ""
    return "; ".join(different[:MOST_SHOWN]) + more


def differences(config: Config) -> list[str]:
    """The differences between a row's split model and the model in one piece, in words; none if it is one function.

    The loss comes first, then parameters, the last one first, then the norm.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Scenario
    >>> from zerosim.training.config import configured
    >>> row, *_ = Scenario(parallel=Parallel(tensor_ranks=2)).rows
    >>> differences(configured(row, Task(64, 10, "cross_entropy")))
    []
    """
    config = in_float64(config)
    whole, count, side = some_weights(config.in_one_piece), config.block, config.directions.side_by_side
    x, y = some_batch(config.model, count * config.train.micro_batch)
    batch = Batch(1, np.split(x, count), np.split(y, count), counted(y), first=0)
    parts = [computed(config.in_one_piece, whole, pair, batch.counted, draw=refuse_draws)
             for pair in zip(batch.inputs, batch.targets, strict=True)]
    loss = reduce(np.add, [part for part, _ in parts])
    expected = {name: reduce(np.add, [part[name] for _, part in parts]) for name in parts[0][1]}
    ranks = spawn(lambda comm: step_of_rank(comm, config, whole, batch), ranks=config.directions.ranks)
    words = [f"loss: {times(float(result[0] / loss[0]), 'value')}" for result, _, _ in ranks
             if result is not None and not abs(result[0] - loss[0]) <= TOLERANCE * abs(loss[0])][:1]
    places: list[Gradients] = [{} for _ in range(side)]
    for rank, (_, _, gradients) in enumerate(ranks):
        places[rank % side] = gradients | places[rank % side]
    ends = {name for rank, (_, _, gradients) in enumerate(ranks) for name, gradient in gradients.items()
            if gradient.tobytes() != places[rank % side][name].tobytes()}
    words += [f"{name}: the first and the last rank of the pipeline have different sums of its gradient"
              for name in expected if name in ends]
    words += [f"{name}: {how}" for name, how in wrong_gradients(config, places, expected) if name not in ends]
    square = sum(float(np.square(gradient).sum()) for gradient in expected.values())
    if not abs(ranks[0][1] - square) <= TOLERANCE * square:
        words.append(f"norm: {times(float(np.sqrt(ranks[0][1] / square)), 'norm of all gradients')}")
    return words


def wrong_gradients(config: Config, places: list[Gradients], expected: Gradients) -> Iterator[tuple[str, str]]:
    """The parameters whose gradients differ from those of the model in one piece, and how, last first: in backward a
    fault reaches all parameters before it."""
    most = TOLERANCE * max((float(np.abs(gradient).max()) for gradient in expected.values()), default=0.0)
    for whole, unit in reversed([*zip(config.in_one_piece.units, config.model.units, strict=True)]):
        if unit.frozen:
            continue
        flats = [np.concatenate([gradients[place.name].reshape(-1) for place in unit.places]) for gradients in places]
        joined_views = whole.views(joined(whole, unit, flats, config.directions))
        for place in reversed(unit.places):
            name = place.name
            differing = [] if place.parameter.cut else [
                number for number, other in enumerate(places) if other[name].tobytes() != places[0][name].tobytes()]
            if differing:
                yield name, (f"place {', '.join(map(str, differing))} and place 0 have different gradients of a "
                             "parameter that all have: let it, or the input of the next cut product, pass copy_to")
            elif not (np.abs(joined_views[name] - expected[name]) <= most).all():
                counted = expected[name] != 0
                ratio = np.median(joined_views[name][counted] / expected[name][counted]) if counted.any() else np.nan
                yield name, times(float(ratio), "gradient")


def times(ratio: float, what: str) -> str:
    """A wrong value as a multiple of the right one, in words.

    >>> times(2.0, "gradient"), times(1.0, "value")
    ('2 times the gradient of the model in one piece', 'not the value of the model in one piece')
    """
    near_one = abs(ratio - 1.0) < 5e-3 or not np.isfinite(ratio)
    return f"{'not' if near_one else f'{ratio:.3g} times'} the {what} of the model in one piece"


def refuse_draws(*_: object) -> None:
    """Refuse an operation that draws: places would draw the same numbers for different pieces."""
    raise UsageError("dropout is drawn for whole arrays, and ranks that share a micro-batch have pieces of them; leave "
                     "it out, or run the model in one piece")


def some_batch(model: Model, samples: int, seed: int = 0) -> tuple[Array, Array]:
    """Random inputs and targets of a task."""
    random, task = np.random.default_rng(seed), model.task
    if task.tokens:
        x, y = random.integers(0, task.outputs, (2, samples, task.inputs))
        y[1:][random.random(y[1:].shape) < UNCOUNTED_SHARE] = UNCOUNTED
        return x, y
    x = random.standard_normal((samples, task.inputs))
    classes = task.loss == "cross_entropy"
    return x, random.integers(0, task.outputs, samples) if classes else random.standard_normal((samples, task.outputs))


def some_weights(model: Model) -> dict[Unit, Array]:
    """Weights near the initial ones, in float64."""
    weights = {}
    for number, unit in enumerate(model.units):
        spread = EMBEDDED if model.task.tokens and not number else SPREAD / unit.count**0.25
        weights[unit] = unit.initial(0) + np.random.default_rng([1, number]).normal(0.0, spread, unit.count)
    return weights


def computed(
    model: Model, weights: Mapping[Unit, Array], batch: tuple[Array, Array], count: int = 0,
    groups: TapeGroups = ALONE, draw: Draw | None = None,
) -> tuple[Array, Gradients]:
    """The loss and the gradients of one place for a batch; `count` is that of all micro-batches, by default its own."""
    tape = Tape(perform=over(groups, perform), draw=draw, loss_over=model.loss_over)
    loss, gradients = backpropagate(model, tape, weights, *batch, count or counted(batch[1]))
    return loss, {name: view for unit, flat in gradients.items() if not unit.frozen
                  for name, view in unit.views(flat).items()}


def in_float64(config: Config) -> Config:
    """A row with the same pieces of the model: one data rank, DDP, float64, two micro-batches a pipeline rank."""
    directions = config.directions
    parallel = Parallel(stages=("ddp",), **{key: getattr(config.parallel, key) for key in PIECES})
    few = max(4, 2 * directions.side_by_side) if directions.side_by_side > 1 else 2
    train = replace(config.train, precision="fp64", loss_scale="dynamic", micro_batch=few, steps=1,
                    micro_batches=2 * directions.pipeline if directions.pipeline > 1 else 1)
    undropped = replace(config.keys, dropout=0.0)
    return replace(
        config.on(1), stage_key="ddp", parallel=parallel, train=train, keys=undropped, resumed=None, initial=None,
        model=build(undropped, config.model.task, config.layers))


def step_of_rank(
    comm: Communicator, config: Config, whole: dict[Unit, Array], batch: Batch
) -> tuple[Array | None, float, Gradients]:
    """One step of a rank: its loss, if it computes one, the square of the norm, and its gradients."""
    replica, step, _ = on_rank(config, Observed(comm), allocate)
    coordinates = config.directions.coordinates(config.directions.place(comm.rank))
    pairs = {of_model.numbers: (of_model, flat) for of_model, flat in whole.items()}

    def initial(unit: Unit) -> Array:
        of_model, flat = pairs[unit.numbers]
        views = of_model.views(flat)
        return of_place(unit, lambda parameter: views[parameter.name], flat.dtype, coordinates)

    replica.begin(initial)
    with np.errstate(all="ignore"):
        loss = step(batch)
    return loss, sum(replica.norms(replica)), {
        name: view for unit in replica.trained for name, view in unit.views(replica.state.gradients[unit]).items()}
