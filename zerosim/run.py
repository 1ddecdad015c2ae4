"""A scenario in a world: train alone, train by each stage, compare.

`train_and_compare` is the program of every rank, in the local world and under MPI alike. What it does beside training
(publishing fingerprints, adding up losses, collecting results) goes over the bare communicator; only what a stage
does goes over the one that counts.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from zerosim.allocation import Array, allocate
from zerosim.autograd.tape import Tape
from zerosim.collectives import ring
from zerosim.comm import Communicator
from zerosim.fingerprints import little_endian
from zerosim.instruments.traffic import Traffic
from zerosim.model import Unit
from zerosim.proof import summed
from zerosim.recipe import Recipe
from zerosim.sharding import padded, split
from zerosim.stages import STAGES, Stage
from zerosim.stages.replica import Replica
from zerosim.terms import Term
from zerosim.verdict import (
    Checker,
    Divergence,
    Fingerprint,
    Witness,
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
class StageOutcome:
    """What one stage computed, and whether it is what one process computes."""

    stage: str
    equal: bool | None
    """None when there was nothing to compare with."""
    first_divergence: Divergence | None
    order: dict[str, str] | None
    """Of the chunk that diverged: the order in which the collective adds it, and the declared one."""
    losses: list[float]
    weights_sha256: str
    optimizer_sha256: str
    test: float | None
    """Accuracy on the test split, or its mean squared error; None without a test split."""
    traffic: list[dict[str, Any]]
    volume: int
    """What the formula says a rank sends in a step, in units of P (N − 1)/N."""
    formula_bytes: int
    """The same for all steps, in bytes."""
    seconds: float
    weights: dict[Unit, Array] | None

    @property
    def traffic_holds(self) -> bool:
        return all(counts["sent_bytes"] == self.formula_bytes for counts in self.traffic)


@dataclass(frozen=True)
class Outcome:
    """All that a run found out, on rank 0."""

    recipe: Recipe
    stages: list[StageOutcome]
    on_other_ranks: "list[RanksDigest]" = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Each check that did not hold: the stage, and what is wrong with it."""
        wanted = self.recipe.scenario.check.test_accuracy
        failed = []
        for stage in self.stages:
            if stage.equal is False:
                failed.append((stage.stage, "bits differ"))
            if not stage.traffic_holds:
                failed.append((stage.stage, "bytes sent are not the formula's"))
            if wanted and stage.test is not None and stage.test < wanted:
                failed.append((stage.stage, f"test accuracy is below {wanted:.2%}"))
            differing = [
                str(other.ranks) for other in self.on_other_ranks
                if other.stage == stage.stage and other.weights_sha256 != stage.weights_sha256
            ]
            if differing:
                failed.append((stage.stage, f"other bits on {', '.join(differing)} ranks"))
        return failed

    @property
    def passed(self) -> bool:
        return not self.failures


@dataclass(frozen=True)
class RanksDigest:
    """What a stage came to on another number of ranks."""

    ranks: int
    stage: str
    weights_sha256: str


@contextmanager
def alike_everywhere() -> Iterator[None]:
    """One BLAS thread, because their number changes bits; and overflow is a result to compare, not to warn of."""
    with threadpool_limits(1), np.errstate(all="ignore"):
        yield


def run_locally(recipe: Recipe, progress: Progress, *, keep_weights: bool = False) -> Outcome:
    """Run in one process, a thread for each rank."""

    def program(comm: Communicator) -> Outcome | None:
        return train_and_compare(comm, recipe, progress, keep_weights=keep_weights)

    with alike_everywhere():
        outcome = spawn(program, recipe.scenario.world.ranks)[0]
    assert isinstance(outcome, Outcome)
    return outcome


def run_as_rank(
    comm: Communicator, recipe: Recipe, progress: Progress, *, keep_weights: bool = False
) -> Outcome | None:
    """Run as one of the processes of `comm`; the outcome on rank 0, None on the others."""
    with alike_everywhere():
        return train_and_compare(comm, recipe, progress, keep_weights=keep_weights)


def train_and_compare(
    comm: Communicator, recipe: Recipe, progress: Progress, *, keep_weights: bool = False
) -> Outcome | None:
    if comm.rank != 0:
        progress = Silent()
    history = train_alone(comm, recipe, progress) if recipe.scenario.check.reference else None
    outcomes = []
    for name in recipe.scenario.parallel.stages:
        outcome = train_by_stage(comm, recipe, name, history, progress, keep_weights=keep_weights)
        if outcome is not None:
            outcomes.append(outcome)
    digests = [
        digest
        for ranks in recipe.scenario.check.same_bits_on
        for digest in train_on_fewer(comm, recipe, ranks, progress)
    ]
    if comm.rank != 0:
        return None
    if history is None:
        outcomes = compared_with_first(outcomes)
    return Outcome(recipe, outcomes, digests)


def train_on_fewer(
    comm: Communicator, recipe: Recipe, ranks: int, progress: Progress
) -> Iterator[RanksDigest]:
    """Train by every stage on the first `ranks` ranks alone; on rank 0, the digests."""
    fewer = recipe.on(ranks)
    for name in recipe.scenario.parallel.stages:
        if comm.rank < ranks:
            outcome = train_by_stage(First(comm, ranks), fewer, name, None, progress, keep_weights=False)
            if outcome is not None:
                yield RanksDigest(ranks, name, outcome.weights_sha256)


def train_alone(comm: Communicator, recipe: Recipe, progress: Progress) -> list[Fingerprint]:
    """The fingerprints of every step, on every rank, of what rank 0 computes by itself."""
    ranks = recipe.scenario.world.ranks
    snapshots = recipe.alone().train(recipe.global_batches())
    fingerprints = (fingerprint(recipe.model.units, snapshot, ranks) for snapshot in snapshots)
    history: list[Fingerprint] = []
    progress.begin("one process", recipe.scenario.train.steps)
    for found in published(comm, fingerprints if comm.rank == 0 else None):
        history.append(found)
        if found.step:
            progress.step(found.step, float(np.frombuffer(found.loss, np.float32)[0]))
    progress.end()
    return history


def train_by_stage(
    comm: Communicator,
    recipe: Recipe,
    name: str,
    history: list[Fingerprint] | None,
    progress: Progress,
    *,
    keep_weights: bool,
) -> StageOutcome | None:
    """Train by one stage and compare each step with `history`; the outcome on rank 0, None on the others."""
    stage = STAGES[name]
    traffic = Traffic(comm)
    replica = recipe.replica(traffic, allocate)
    checker = Checker(replica, history) if history is not None else None
    stage.keep(replica, recipe.initial)
    if checker is not None:
        checker.check(0, None)

    seconds, losses = 0.0, []
    progress.begin(stage.title, recipe.scenario.train.steps)
    for batch in recipe.batches(comm.rank):
        started = time.perf_counter()
        partial_loss = stage.step(replica, batch)
        seconds += time.perf_counter() - started
        loss = recipe.addition.reduce_scatter(comm, partial_loss)
        ring.all_gather(comm, split(loss, comm.size))
        losses.append(float(loss[0]))
        if checker is not None:
            checker.check(batch.step, loss)
        progress.step(batch.step, losses[-1])
    progress.end()

    divergence = first_divergence(comm, recipe, checker.witness if checker is not None else None)
    counts = gather_objects(comm, counted(traffic))
    final = collect(comm, recipe, replica, keep_weights=keep_weights)
    if comm.rank != 0:
        return None
    assert counts is not None
    return StageOutcome(
        stage=name,
        equal=None if checker is None else divergence is None,
        first_divergence=divergence,
        order=None if divergence is None else orders_of_addition(recipe, divergence.chunk),
        losses=losses,
        weights_sha256=final.weights_sha256,
        optimizer_sha256=final.optimizer_sha256,
        test=final.test,
        traffic=counts,
        volume=volume(recipe, stage),
        formula_bytes=formula_bytes(recipe, stage),
        seconds=seconds,
        weights=final.weights,
    )


def volume(recipe: Recipe, stage: Stage) -> int:
    """The stage's volume; one of it is the reduce-scatter of gradients, which an order-free sum makes larger."""
    return stage.volume - 1 + recipe.addition.sent_share


def formula_bytes(recipe: Recipe, stage: Stage) -> int:
    """volume · P · (N − 1)/N in each step, P being the bytes of all weights, padded."""
    ranks = recipe.scenario.world.ranks
    total = sum(padded(unit.count, ranks) for unit in recipe.model.units) * np.float32().itemsize
    return volume(recipe, stage) * total // ranks * (ranks - 1) * recipe.scenario.train.steps


def counted(traffic: Traffic) -> dict[str, Any]:
    """One rank's counts, as reports show them."""
    return {
        "rank": traffic.rank,
        "sent_bytes": traffic.sent_bytes,
        "received_bytes": traffic.received_bytes,
        "messages": traffic.messages,
        "by_collective": {name: vars(count) for name, count in traffic.by_collective.items()},
    }


def first_divergence(
    comm: Communicator, recipe: Recipe, witness: Witness | None
) -> Divergence | None:
    """The earliest difference that any rank witnessed, located by training alone once more."""
    gathered = gather_objects(comm, witness)
    witnesses = [found for found in gathered or [] if found is not None]
    first = min(witnesses, key=lambda found: found.place, default=None)
    replayed = list(published(comm, replay(recipe, first) if comm.rank == 0 else None))
    return replayed[-1] if replayed else None


def replay(recipe: Recipe, witness: Witness | None) -> Iterator[int | Divergence]:
    """Train alone up to the step of `witness`, a number for each step, the divergence last."""
    if witness is None:
        return
    for snapshot in recipe.alone().train(recipe.global_batches()):
        if snapshot.step == witness.step:
            ranks = recipe.scenario.world.ranks
            yield locate(recipe.model.units, witness, snapshot, ranks)
            return
        yield snapshot.step


def orders_of_addition(recipe: Recipe, chunk: int) -> dict[str, str]:
    """How the stages' reduce-scatter adds `chunk`, seen by running it on symbols, and what was declared."""
    ranks = recipe.scenario.world.ranks
    if recipe.addition.collective is None or recipe.order.across is None:
        return {"ours": recipe.order.words, "reference": recipe.order.words}
    declared = recipe.order.across([Term(rank, chunk) for rank in range(ranks)], chunk)
    return {"ours": str(summed(recipe.addition.collective, ranks)[chunk]), "reference": str(declared)}


@dataclass(frozen=True)
class Final:
    """What is left on rank 0 when a stage has trained."""

    weights_sha256: str
    optimizer_sha256: str
    test: float | None
    weights: dict[Unit, Array] | None


def collect(
    comm: Communicator, recipe: Recipe, replica: Replica, *, keep_weights: bool
) -> Final:
    """Bring the model to rank 0, one unit at a time: digest it, test it and, if asked to, keep it."""
    weights_digest, optimizer_digest = hashlib.sha256(), hashlib.sha256()
    kept: dict[Unit, Array] = {}
    x_test = recipe.dataset.x_test
    outputs = [x_test] if comm.rank == 0 and x_test is not None else []
    tape = Tape()
    for unit in recipe.model.units:
        weights = whole(comm, unit, replica.weights[unit])
        weights_digest.update(little_endian(weights))
        outputs = tape.forward(unit, weights, outputs)
        if keep_weights:
            kept[unit] = weights.copy()
        for state in replica.optimizer[unit].values():
            optimizer_digest.update(little_endian(whole(comm, unit, state)))
    return Final(
        weights_digest.hexdigest(),
        optimizer_digest.hexdigest(),
        recipe.test(outputs[0]) if outputs else None,
        kept if keep_weights else None,
    )


def whole(comm: Communicator, unit: Unit, buffer: Array) -> Array:
    """On rank 0 the unpadded contents of `unit`, of which every rank passes its full buffer or its shard."""
    if len(buffer) == padded(unit.count, comm.size):
        return buffer[: unit.count]
    full = np.empty(padded(unit.count, comm.size), buffer.dtype)
    if comm.rank == 0:
        chunks = split(full, comm.size)
        chunks[0][:] = buffer
        for source in range(1, comm.size):
            comm.recv(into=chunks[source], source=source)
    else:
        comm.send(buffer, to=0)
    return full[: unit.count]


def compared_with_first(outcomes: list[StageOutcome]) -> list[StageOutcome]:
    """Without a reference, a stage is equal when it ends as the first one did; alone it has no equal."""
    first = outcomes[0]
    return [first] + [
        replace(
            outcome,
            equal=(outcome.losses, outcome.weights_sha256, outcome.optimizer_sha256)
            == (first.losses, first.weights_sha256, first.optimizer_sha256),
        )
        for outcome in outcomes[1:]
    ]
