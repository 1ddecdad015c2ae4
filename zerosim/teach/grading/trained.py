"""Training with a stage's step on a few samples, by the library or a learner, and the results of each rank.

    trained    the results without expected values: plain data, which another process can judge
    held       copies of all arrays that a rank keeps after a step
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from zerosim.allocation import Array, allocate
from zerosim.comm import Communicator
from zerosim.data import Dataset
from zerosim.errors import CollectiveError
from zerosim.instruments.memory import MEMORY_KINDS, Ledger
from zerosim.instruments.observed import Observed, ObservedAllocator
from zerosim.instruments.traffic import Traffic
from zerosim.models.units import Unit
from zerosim.parts import Name, Named
from zerosim.scenario import Check, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.sharding import chunk_length
from zerosim.stages import STAGES
from zerosim.stages.accumulating import EveryMicroBatch
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.state import ACCUMULATED, GRADIENT
from zerosim.teach.grading.verb_calls import CallLog, Held, LearnersStep, held
from zerosim.training.alike import alike_everywhere
from zerosim.training.build import initial_weights, replica
from zerosim.training.comparison import counts
from zerosim.training.experiment import Batches, Experiment, prepare
from zerosim.verdict.diagnosis import Divergence, first_element
from zerosim.words import plural
from zerosim.worlds.local import spawn

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Tiny:
    """The numbers of ranks, hidden layers and steps; `train` has further keys of [train] and their values."""

    ranks: int
    hidden: tuple[int, ...]
    steps: int
    part_by_part: bool = False
    """Whether each micro-batch is a separate part, which is reduced by itself."""
    train: tuple[tuple[str, Any], ...] = ()
    drawn: int = 0
    """The seed of the samples."""

    def __str__(self) -> str:
        layers = len(self.hidden) + 1
        parts = ", in 2 parts" * self.part_by_part
        keys = "".join(f", {key} = {value}" for key, value in self.train)
        return f"on {plural(self.ranks, 'rank')}, {plural(layers, 'layer')}, {plural(self.steps, 'step')}{parts}{keys}"

    def scenario(self, stage: Name, variant: Mapping[str, Any]) -> Scenario:
        """Two micro-batches of two samples per rank, trained by `stage`; `variant` has keys of [parallel]."""
        accumulation = {"accumulation": "micro_batch" if self.part_by_part else "layered"}
        return Scenario(
            world=WorldKeys(self.ranks),
            model=ModelKeys(hidden=self.hidden, activation="tanh"),
            train=Train(micro_batch=2, micro_batches=2 * self.ranks, steps=self.steps, learning_rate=LEARNING_RATE,
                        **dict(self.train)),
            parallel=Parallel((stage,), **accumulation | dict(variant)),
            check=Check(reference=True),
        )


EVEN = (
    Tiny(1, (), 1), Tiny(2, (), 1), Tiny(2, (), 2), Tiny(2, (3,), 2), Tiny(2, (3,), 2, part_by_part=True),
    Tiny(4, (7, 3), 3),
)
"""Layers that the ranks divide, the smallest first."""
ODD = (Tiny(3, (), 1), Tiny(3, (5, 4), 3), Tiny(4, (5, 4), 2))
"""Layers that the ranks do not divide."""
CLIPPED = (("clip_norm", 0.05),)
PRECISE = (
    Tiny(2, (3,), 2, train=CLIPPED), Tiny(2, (3,), 2, train=(("precision", "bf16"),)),
    Tiny(3, (5,), 3, train=(("precision", "fp16"), *CLIPPED)), Tiny(2, (), 2, train=(("precision", "fp64"),)),
)
"""Trainings with clipped gradients, and in other precisions."""


@contextmanager
def in_place_of(stage: Name, step: LearnersStep) -> Iterator[None]:
    """Replace the step of `stage` in the table of stages, for the duration of the block."""
    honest = STAGES[stage]
    STAGES[str(stage)] = replace(honest, step=step)
    try:
        yield
    finally:
        STAGES[str(stage)] = honest
        if isinstance(stage, Named):
            del STAGES[stage.source]


def samples(seed: int) -> Dataset:
    """A few random samples of two classes."""
    random = np.random.default_rng(seed)
    return Dataset(random.standard_normal((24, 3)).astype(np.float32), random.integers(0, 2, 24), None, None, 2)


LIMIT_SECONDS = 30.0
"""The time limit of one training, which usually takes a fraction of a second."""

Hand = Callable[[Replica], Replica]
"""The function that turns a replica into the one that a step gets."""


@dataclass
class Figures:
    """The traffic of one rank in all steps, and its memory by kind after each step and at the peak."""

    sent_bytes: int = 0
    messages: int = 0
    by_collective: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The calls of the replica's collectives, and the bytes sent in them."""
    kept: list[dict[str, int]] = field(default_factory=list)
    peak: dict[str, int] = field(default_factory=dict)
    weights_in_backward: list[tuple[str, int]] = field(default_factory=list)
    """The live bytes of weights at the beginning of each unit's backward."""


@dataclass
class Trained:
    """The results of all ranks, by rank and step."""

    held: dict[tuple[int, int], Held] = field(default_factory=dict)
    losses: dict[tuple[int, int], Array] = field(default_factory=dict)
    figures: list[Figures] = field(default_factory=list)
    log: CallLog | None = None


@dataclass
class Backwards:
    """An instrument that records the live weights at the beginning of each backward."""

    ledger: Ledger
    found: list[tuple[str, int]] = field(default_factory=list)

    def computing(self, name: str, owner: str) -> None:
        if name == "backward":
            self.found.append((owner, self.ledger.now["parameters"]))


@dataclass(frozen=True)
class SeparateStep:
    """A step that trains in other processes, on the samples of the seed `drawn`."""

    train: Callable[[Communicator, Tiny, Trained], None]
    """Adds the results of one rank of a training to those of all."""
    drawn: int

    def __call__(self, replica: Replica, batch: Batch) -> Any:
        raise NotImplementedError("this step trains in other processes")


def itself(replica: Replica) -> Replica:
    """Return the replica unchanged."""
    return replica


def trained(
    tiny: Tiny, stage: Name, variant: Mapping[str, Any], step: LearnersStep, hand: Hand = itself,
    log: CallLog | None = None,
) -> Trained:
    """Train with `step` instead of the step of `stage`; its exceptions pass through.

    `log` records every verb, up to an exception.
    """
    found = Trained(log=log, figures=[Figures() for _ in range(tiny.ranks)])
    if isinstance(step, SeparateStep):
        separate = step
        spawn(lambda comm: separate.train(comm, tiny, found), tiny.ranks)
        return found
    experiment = prepared(tiny, stage, tuple(variant.items()))
    watched = checked(step) if log is None else log.recording(checked(step))
    with alike_everywhere():
        spawn(lambda comm: on_a_rank(comm, experiment, watched, hand, found), tiny.ranks, limit_seconds=LIMIT_SECONDS)
    return found


@cache
def prepared(tiny: Tiny, stage: Name, variant: tuple[tuple[str, Any], ...]) -> Experiment:
    return prepare(tiny.scenario(stage, dict(variant)), samples(tiny.drawn))


def on_a_rank(comm: Communicator, experiment: Experiment, step: LearnersStep, hand: Hand, found: Trained) -> None:
    """The training on one rank: a replica, which is passed to `hand` once, and its steps."""
    (config,) = experiment.rows
    ledger, traffic, figures = Ledger(), Traffic(), found.figures[comm.rank]
    backwards = Backwards(ledger, figures.weights_in_backward)
    mine = replica(config, Observed(comm, traffic, backwards), ObservedAllocator(allocate, ledger))
    if config.parallel.accumulation == "micro_batch":
        mine = replace(mine, accumulation=EveryMicroBatch())
    mine.begin(initial_weights(config))
    given = hand(mine)
    ledger.begin_peak()
    for batch in Batches(config, experiment.dataset).of_rank(comm.rank):
        loss = step(given, batch)
        found.losses[comm.rank, batch.step] = np.array(loss)
        del loss
        found.held[comm.rank, batch.step] = held(mine) | counted(mine)
        figures.kept.append({str(kind): ledger.now[kind] for kind in MEMORY_KINDS})
    figures.sent_bytes, figures.messages = traffic.sent_bytes, traffic.messages
    figures.by_collective = {
        name: (count.calls, count.sent_bytes) for name, count in sorted(traffic.by_collective.items())}
    figures.peak = {str(kind): ledger.peak[kind] for kind in MEMORY_KINDS}


def counted(replica: Replica) -> Held:
    """The counters of a rank's state."""
    counted = counts(replica.state.updates, replica.state.scaling)
    return {(what, ""): np.array([count]) for what, count in counted.items()}


def checked(step: LearnersStep) -> LearnersStep:
    """The step, with a check of its return value."""

    def looked_at(replica: Replica, batch: Batch) -> Any:
        loss = step(replica, batch)
        if not isinstance(loss, np.ndarray):
            found = "None" if loss is None else f"a {type(loss).__name__}"
            raise CollectiveError(f"the step returned {found}: return the loss, as replica.tape.loss gave it")
        return loss

    return looked_at


@cache
def honest(tiny: Tiny, stage: Name, variant: tuple[tuple[str, Any], ...]) -> Trained:
    """The results of the library's step on every rank, with its recorded calls."""
    return trained(tiny, stage, dict(variant), STAGES[stage].step, log=CallLog())


def first_difference(
    mine: Trained, due: Trained, tiny: Tiny, stage: Name, variant: Mapping[str, Any]
) -> Divergence | None:
    """The first element that differs from the expected one: the earliest step first, then losses before kept arrays."""
    (config,) = prepared(tiny, stage, tuple(variant.items())).rows
    units = {unit.name: unit for unit in config.model.units}
    for step in range(1, tiny.steps + 1):
        ranks = range(tiny.ranks)
        for rank in ranks:
            if found := unequal(mine.losses[rank, step], due.losses[rank, step], ("loss", None, 0), step, rank):
                return found
        for rank in ranks:
            for (what, name), wanted in due.held[rank, step].items():
                have, unit = mine.held[rank, step].get((what, name)), units.get(name)
                length = 0 if unit is None else chunk_length(unit.count, tiny.ranks)
                if what in (GRADIENT, ACCUMULATED):
                    chunk = None if have is None else own(have, rank, length)
                    found = unequal(chunk, own(wanted, rank, length), (what, unit, rank * length), step, rank, length)
                else:
                    start = rank * length if len(wanted) == length else 0
                    found = unequal(have, wanted, (what, unit, start), step, rank, length)
                if found:
                    return found
    return None


def own(array: Array, rank: int, length: int) -> Array:
    """The chunk of `rank` in a full buffer; a shard is returned unchanged."""
    return array if len(array) == length else array[rank * length :][:length]


def unequal(
    have: Array | None, due: Array, where: tuple[str, Unit | None, int], step: int, rank: int, length: int = 0
) -> Divergence | None:
    """The first element that differs; one that is missing, or has a different shape or dtype, differs everywhere."""
    if have is None or have.shape != due.shape or have.dtype != due.dtype:
        have = np.full(due.shape, np.nan, due.dtype if due.dtype.kind == "f" else np.float64)
        due = due.astype(have.dtype)
    return first_element(have, due, where, step, rank, length)
