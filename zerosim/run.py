"""A scenario in a world: train alone, train by each stage, compare.

`train_and_compare` is the program of every rank, in the local world and under MPI alike. What it does beside training
(publishing fingerprints, adding up losses, collecting results) goes over the bare communicator; only what a stage
does goes over the one that counts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from zerosim.allocation import Allocator, Array, Kind
from zerosim.bring_home import bring_home
from zerosim.collectives import ring
from zerosim.comm import Communicator
from zerosim.instruments.limit import MemoryLimit
from zerosim.instruments.memory import KINDS, Ledger
from zerosim.instruments.resident import resident_bytes
from zerosim.instruments.traffic import Traffic
from zerosim.optim import with_one_nan
from zerosim.outcome import Outcome, RankMemory, RanksDigest, RankTraffic, Shortage, StageOutcome
from zerosim.plan.peaks import messages, peak_bounds, would_fit
from zerosim.plan.resting import resting_bytes, unit_bytes
from zerosim.plan.traffic import due, most_messages, volume
from zerosim.proof import added
from zerosim.recipe import Recipe
from zerosim.sharding import split
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.terms import symbols
from zerosim.verdict import (
    Checker,
    Divergence,
    Evidence,
    Fingerprint,
    disagreement,
    fingerprint,
    locate,
    published,
)
from zerosim.worlds.first import First
from zerosim.worlds.local import spawn
from zerosim.worlds.objects import gather_objects


class Progress(Protocol):
    """Is told by rank 0 what is being trained, and may show it."""

    def begin(self, title: str, steps: int) -> None: ...
    def step(self, step: int, loss: float) -> None: ...
    def end(self) -> None: ...


class Silent:
    """Shows nothing."""

    def begin(self, title: str, steps: int) -> None: ...
    def step(self, step: int, loss: float) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Training:
    """What is run, on every rank: the recipe, who is told, and what the rank's world offers it."""

    recipe: Recipe
    progress: Progress
    keep_weights: bool = False
    ahead: Communicator | None = None
    """A second channel to the same ranks, for what is prefetched."""
    take_buffers_from: Callable[[Allocator], None] | None = None
    """Lets the world take its own buffers from a ledger, if it has any: a new one for each row."""
    idle_bytes: int = 0
    """What the process has in memory before the first stage."""


@contextmanager
def alike_everywhere() -> Iterator[None]:
    """One BLAS thread, because their number changes bits; and overflow is a result to compare, not to warn of."""
    with threadpool_limits(1), np.errstate(all="ignore"):
        yield


def run_locally(recipe: Recipe, progress: Progress, *, keep_weights: bool = False) -> Outcome:
    """Run in one process, a thread for each rank."""
    training = Training(recipe, progress, keep_weights)
    with alike_everywhere():
        outcome = spawn(lambda comm: train_and_compare(comm, training), recipe.scenario.world.ranks)[0]
    assert isinstance(outcome, Outcome)
    return outcome


def run_as_rank(comm: Communicator, training: Training) -> Outcome | None:
    """Run as one of the processes of `comm`; the outcome on rank 0, None on the others."""
    with alike_everywhere(), MemoryLimit(training.recipe.scenario.world.memory_limit_mb * 10**6):
        return train_and_compare(comm, training)


def train_and_compare(comm: Communicator, training: Training) -> Outcome | None:
    """The whole run, as every rank goes through it; the outcome on rank 0."""
    training = replace(training, idle_bytes=resident_bytes())
    if comm.rank != 0:
        training = replace(training, progress=Silent())
    outcomes: list[StageOutcome] = []
    shortages: dict[str, Shortage] = {}
    histories: dict[tuple[object, ...], list[Fingerprint]] = {}
    recipe = training.recipe
    for name, row in recipe.rows:
        if recipe.scenario.check.reference and row.arithmetic not in histories:
            histories[row.arithmetic] = train_alone(comm, row, training.progress)
        trained = train_by_stage(comm, replace(training, recipe=row), name, histories.get(row.arithmetic))
        if isinstance(trained, Shortage):
            shortages[row.stage] = trained
        elif trained is not None:
            outcomes.append(trained)
    digests = [
        digest for ranks in recipe.scenario.check.same_bits_on for digest in train_on_other_ranks(comm, training, ranks)
    ]
    if comm.rank != 0:
        return None
    if not recipe.scenario.check.reference:
        outcomes = compared_with_each_other(outcomes)
    return Outcome(recipe, outcomes, digests, shortages)


def train_on_other_ranks(comm: Communicator, training: Training, ranks: int) -> Iterator[RanksDigest]:
    """Train every row on the first `ranks` ranks alone; on rank 0, the digests."""
    for name, row in training.recipe.rows:
        if comm.rank < ranks:
            ahead = None if training.ahead is None else First(training.ahead, ranks)
            other = replace(training, recipe=row.on(ranks), keep_weights=False, ahead=ahead)
            trained = train_by_stage(First(comm, ranks), other, f"{name} on {ranks}", None)
            if isinstance(trained, StageOutcome):
                yield RanksDigest(ranks, name, trained.weights_sha256)


def train_alone(comm: Communicator, recipe: Recipe, progress: Progress) -> list[Fingerprint]:
    """The fingerprints of every step, on every rank, of what rank 0 computes by itself."""
    ranks, steps = recipe.scenario.world.ranks, recipe.scenario.train.steps
    snapshots = recipe.alone().train(recipe.global_batches())
    fingerprints = (
        fingerprint(recipe.model.units, snapshot, ranks, last=snapshot.step == steps) for snapshot in snapshots
    )
    history: list[Fingerprint] = []
    progress.begin("one process", steps)
    for found in published(comm, fingerprints if comm.rank == 0 else None):
        history.append(found)
        if found.step:
            progress.step(found.step, float(np.frombuffer(found.loss, np.float32)[0]))
    progress.end()
    return history


def train_by_stage(
    comm: Communicator, training: Training, name: str, history: list[Fingerprint] | None
) -> StageOutcome | Shortage | None:
    """Train one row and compare each step with `history`; the outcome on rank 0, None on the others."""
    recipe = training.recipe
    ledger, traffic = Ledger(), Traffic(comm)
    ahead = None if training.ahead is None else traffic.beside(training.ahead)
    replica = recipe.replica(traffic, ledger, ahead)
    if not fits(comm, replica, recipe):
        return shortage(recipe)

    checker = None if history is None else Checker(replica, history, recipe.sums_everywhere)
    steps = Steps(comm, training, name, replica, ledger, checker)
    memory = steps.run()
    disagreeing = None if checker else disagreement(comm, replica, recipe.sums_everywhere)
    divergence = first_divergence(comm, recipe, steps.checker.evidence if steps.checker else None)
    measured = gather_objects(comm, (
        rank_traffic(recipe, traffic, replica.updates), memory,
    ))
    final = bring_home(comm, recipe, replica, keep_weights=training.keep_weights)
    if measured is None:
        return None
    return StageOutcome(
        name=name,
        recipe=recipe,
        equal=None if history is None else divergence is None,
        compared_with=None if history is None else "one process",
        disagreement=disagreeing,
        first_divergence=divergence,
        order=None if divergence is None else orders_of_addition(recipe, divergence.chunk),
        losses=steps.losses,
        weights_sha256=final.weights_sha256,
        optimizer_sha256=final.optimizer_sha256,
        test=final.test,
        traffic=[traffic for traffic, _ in measured],
        memory=[memory for _, memory in measured],
        volume=volume(recipe),
        most_messages=most_messages(recipe),
        updates=replica.updates,
        seconds=steps.seconds,
        weights=final.weights,
    )


def fits(comm: Communicator, replica: Replica, recipe: Recipe) -> bool:
    """Allocate the model states; whether there was memory for them on every rank."""
    try:
        STAGES[recipe.stage].keep(replica, recipe.initial)
        short = False
    except MemoryError:
        short = True
        replica.weights.clear()
        replica.optimizer.clear()
    return not any(agreed(comm, short))


def agreed(comm: Communicator, mine: bool) -> list[bool]:
    """What every rank says, on every rank."""
    said = np.zeros(comm.size, np.bool_)
    said[comm.rank] = mine
    ring.all_gather(comm, split(said, comm.size))
    return [bool(each) for each in said]


def shortage(recipe: Recipe) -> Shortage:
    """What a stage that did not fit would need, and which stages would do."""
    needed = resting_bytes(recipe)
    allowed = recipe.scenario.world.memory_limit_mb * 10**6
    return Shortage(needed.total, allowed, [other for other in STAGES if would_fit(recipe, other, allowed)])


@dataclass(eq=False)
class Steps:
    """The steps of one stage on one rank, with everything that is noticed of them."""

    comm: Communicator
    training: Training
    name: str
    replica: Replica
    ledger: Ledger
    checker: Checker | None
    seconds: float = 0.0
    began_ns: int = 0

    def __post_init__(self) -> None:
        self.losses: list[Array] = []

    def run(self) -> RankMemory:
        """Train and check every step; what the ledger says between steps."""
        recipe, progress, stage = self.training.recipe, self.training.progress, STAGES[self.training.recipe.stage]
        steps = recipe.scenario.train.steps
        if self.checker is not None:
            self.checker.check(0, None)
        if self.training.take_buffers_from is not None:
            self.training.take_buffers_from(self.ledger)
        self.ledger.begin_peak()
        progress.begin(self.name, steps)
        for batch in recipe.batches(self.comm.rank):
            if batch.step == steps:
                self.began_ns = self.ledger.begin_curve()
            started = time.perf_counter()
            partial_loss = stage.step(self.replica, batch)
            self.seconds += time.perf_counter() - started
            loss = recipe.addition.reduce_scatter(self.comm, partial_loss, as_it_is)
            ring.all_gather(self.comm, split(loss, self.comm.size))
            self.losses.append(with_one_nan(loss).copy())
            del partial_loss
            if self.checker is not None:
                self.checker.check(batch.step, loss)
            progress.step(batch.step, float(loss[0]))
            del loss
        self.ledger.end_curve()
        progress.end()
        return rank_memory(self)


def as_it_is(loss: Array) -> Array:
    """Losses are float32 in every precision, and so they travel."""
    return loss


def rank_traffic(recipe: Recipe, traffic: Traffic, updates: int) -> RankTraffic:
    """One rank's counts beside the formula."""
    formula = due(recipe, traffic.rank, updates)
    return RankTraffic(
        rank=traffic.rank,
        sent_bytes=traffic.sent_bytes,
        received_bytes=traffic.received_bytes,
        messages=traffic.messages,
        by_collective={each: dict(vars(count)) for each, count in traffic.by_collective.items()},
        formula_bytes=sum(each.sent_bytes for each in formula.values()),
        formula_received_bytes=sum(each.received_bytes for each in formula.values()),
        formula_messages=sum(each.messages for each in formula.values()),
        formula_by_collective={
            name: {"calls": each.calls, "sent_bytes": each.sent_bytes, "messages": each.messages}
            for name, each in formula.items()
        },
    )


def rank_memory(steps: "Steps") -> RankMemory:
    """One rank's ledger beside the formulas."""
    recipe, ledger = steps.training.recipe, steps.ledger
    resting = resting_bytes(recipe)
    states: tuple[Kind, ...] = ("parameters", "gradients", "optimizer")
    copies_messages = steps.training.take_buffers_from is not None
    return RankMemory(
        rank=steps.comm.rank,
        resting_bytes={kind: ledger.now[kind] for kind in states},
        formula_bytes={kind: getattr(resting, kind) for kind in states},
        padding_bytes=resting.padding,
        peak_bytes=dict([*((kind, ledger.peak[kind]) for kind in KINDS), ("total", ledger.peak_total)]),
        bound_bytes={str(kind): most for kind, most in peak_bounds(recipe, copies_messages=copies_messages).items()},
        alive_bytes=ledger.total,
        resident_bytes=resident_bytes() - steps.training.idle_bytes,
        overweight=[*overweight(recipe, ledger), *left_over(recipe, ledger, copies_messages=copies_messages)],
        curve=[(at - steps.began_ns, {str(kind): held for kind, held in now.items()}) for at, now in ledger.curve],
    )


def overweight(recipe: Recipe, ledger: Ledger) -> list[str]:
    """The units of which more is alive than should rest."""
    found = []
    for kind in ("parameters", "gradients", "optimizer"):
        owners = ledger.owners(kind)
        for unit in recipe.model.units:
            due, _ = unit_bytes(recipe, unit).get(kind, (0, 0))
            if owners.get(unit.name, 0) > due:
                found.append(f"{owners[unit.name]:,} B of {unit.name}'s {kind}, where {due:,} are due")
    return found


def left_over(recipe: Recipe, ledger: Ledger, *, copies_messages: bool) -> list[str]:
    """What is alive between steps although nothing needs it there: all but a world's copies of messages."""
    owners = [(kind, owner, held) for kind in ("activations", "buffers") for owner, held in ledger.owners(kind).items()]
    allowed = {("buffers", "messages"): messages(recipe)} if copies_messages else {}
    return [
        f"{held:,} B of {kind} for {owner} after the step"
        for kind, owner, held in owners if held > allowed.get((kind, owner), 0)
    ]


def first_divergence(
    comm: Communicator, recipe: Recipe, evidence: Evidence | None
) -> Divergence | None:
    """The earliest difference that any rank holds, located by training alone once more."""
    gathered = gather_objects(comm, evidence)
    pieces = [found for found in gathered or [] if found is not None]
    first = min(pieces, key=lambda found: found.place, default=None)
    replayed = list(published(comm, replay(recipe, first) if comm.rank == 0 else None))
    return replayed[-1] if replayed else None


def replay(recipe: Recipe, evidence: Evidence | None) -> Iterator[int | Divergence]:
    """Train alone up to the step of `evidence`, a number for each step, the divergence last."""
    if evidence is None:
        return
    for snapshot in recipe.alone().train(recipe.global_batches()):
        if snapshot.step == evidence.step:
            ranks = recipe.scenario.world.ranks
            yield locate(recipe.model.units, evidence, snapshot, ranks)
            return
        yield snapshot.step


def orders_of_addition(recipe: Recipe, chunk: int) -> dict[str, str]:
    """How the stages add micro-batches g0, g1, … in `chunk`, seen by doing it with symbols, and what was declared."""
    ranks = recipe.scenario.world.ranks
    block = 1 if recipe.part_by_part else recipe.parts
    if recipe.order.within is None:
        return {"ours": recipe.order.words, "reference": recipe.order.words}
    declared = recipe.order.total([symbols(number, ranks) for number in range(ranks * block)], ranks)
    return {"ours": str(added(recipe.addition, ranks, block)[chunk]), "reference": str(declared[chunk])}


def compared_with_each_other(outcomes: Sequence[StageOutcome]) -> list[StageOutcome]:
    """Without a reference a row is equal when it ends with the bytes of the first that adds in the same order."""

    def ending(outcome: StageOutcome) -> tuple[bytes, str, str]:
        return b"".join(loss.tobytes() for loss in outcome.losses), outcome.weights_sha256, outcome.optimizer_sha256

    firsts: dict[tuple[object, ...], StageOutcome] = {}
    found = []
    for outcome in outcomes:
        first = firsts.setdefault(outcome.recipe.arithmetic, outcome)
        equal = None if first is outcome else ending(outcome) == ending(first)
        found.append(replace(outcome, equal=equal, compared_with=None if first is outcome else first.name))
    return found
