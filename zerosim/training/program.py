"""A scenario in a world: train alone, train by each row, and measure.

`measure` is the program of every rank, in the local world and under MPI alike. What it does beside training
(publishing fingerprints, adding up losses, collecting results) goes over the bare communicator; only what a stage
does goes over the one that counts.

What trains knows no formula, and what judges takes measurements and a row. Fingerprints, losses and results travel
over the bare communicator and do not count.

Every row has fresh instruments and fresh memory for messages. The trace's offsets between clocks are measured after a
row has been trained.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from zerosim.allocation import Array
from zerosim.collectives import ring
from zerosim.comm import Communicator, among
from zerosim.instruments.clocks import brought_together
from zerosim.instruments.faults import Faults
from zerosim.instruments.lifetimes import Lifetime
from zerosim.instruments.location import Locator
from zerosim.instruments.memory import KINDS
from zerosim.instruments.resident import resident_bytes
from zerosim.instruments.trace import RankStep
from zerosim.instruments.traffic import Traffic
from zerosim.numerics.not_a_number import with_one_nan
from zerosim.sharding import split
from zerosim.stages.adding import add_replicas
from zerosim.stages.replica import Batch, Replica
from zerosim.training.alone import alone
from zerosim.training.batches import Batches
from zerosim.training.build import initial_weights, replica
from zerosim.training.collect import collected
from zerosim.training.comparison import (
    Checker,
    Fingerprint,
    brought_home_otherwise,
    fingerprint,
    first_of,
    holdings,
    of_an_earlier_leg,
    published,
)
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.measurement import Measurement, MemoryFigures, TrafficCounts
from zerosim.training.observers import Observers, observers
from zerosim.worlds.checked import Checked
from zerosim.worlds.objects import gather_objects
from zerosim.worlds.world import World


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


class Keeping(Protocol):
    """Puts training states away, and brings them back."""

    def restore(self, config: Config, replica: Replica) -> list[Array]:
        """Let `replica` have the state from which its row goes on; the losses of the steps before."""

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        """Called after every step on all ranks, which save if it is time to."""


@dataclass(frozen=True)
class Run:
    """What is run, on every rank: the world, the experiment, who is told, and what the world offers this rank."""

    world: World
    experiment: Experiment
    progress: Progress
    keep_weights: bool = False
    second_channel: Communicator | None = None
    """To the same ranks, for what is prefetched."""
    traced: range = range(0)
    """The steps of which a trace is wanted."""
    idle_bytes: int = 0
    """What the process has in memory before the first row."""
    keeping: Keeping | None = None
    """Saves rows, and knows those that go on from where they were saved."""
    restarts: int = 0
    """How often this training has been begun anew."""
    faulty: bool = True
    """Whether what the scenario has in [[fault]] befalls the ranks."""

    def batches(self, config: Config) -> Batches:
        return Batches(config, self.experiment.dataset)


@contextmanager
def alike_everywhere() -> Iterator[None]:
    """One BLAS thread, because their number changes bits; and overflow is a result to compare, not to warn of."""
    with threadpool_limits(1), np.errstate(all="ignore"):
        yield


def measure(comm: Communicator, run: Run) -> Iterator[Measurement | None]:
    """Train every row, and alone what they are compared with: a measurement for each row on rank 0, else None."""
    run = replace(run, idle_bytes=resident_bytes(), progress=run.progress if comm.rank == 0 else Silent())
    histories: dict[tuple[object, ...], list[Fingerprint]] = {}
    for config in run.experiment.rows:
        if config.row.claims.reference and config.course not in histories:
            histories[config.course] = train_alone(comm, run, config)
        measured = train(comm, run, config, config.name, histories.get(config.course))
        elsewhere = {ranks: train_on(comm, run, config, ranks) for ranks in run.experiment.scenario.check.same_bits_on}
        found = {ranks: each for ranks, each in elsewhere.items() if each is not None}
        yield None if measured is None else replace(measured, on_other_ranks=found)


def train_on(comm: Communicator, run: Run, config: Config, ranks: int) -> Measurement | None:
    """Train one row on the first `ranks` ranks alone, compared with nothing; on rank 0."""
    if comm.rank >= ranks:
        return None
    second = None if run.second_channel is None else among(run.second_channel, range(ranks))
    run = replace(
        run, keep_weights=False, traced=range(0), second_channel=second,
        keeping=run.keeping and RestoringOnly(run.keeping), faulty=False,
    )
    return train(among(comm, range(ranks)), run, config.on(ranks), f"{config.name} on {ranks}", None)


def train_alone(comm: Communicator, run: Run, config: Config) -> list[Fingerprint]:
    """The fingerprints of every step, on every rank, of what rank 0 computes by itself."""
    fingerprints = (
        fingerprint(config.model.units, snapshot, config.ranks, last=snapshot.step == config.steps)
        if leg is config else of_an_earlier_leg(snapshot)
        for leg, snapshot in alone(run.batches(config))
    )
    history: list[Fingerprint] = []
    locator = Locator("one process")
    run.progress.begin("one process", config.steps)
    for found in published(comm, fingerprints if comm.rank == 0 else None):
        history[found.step :] = [found]
        locator.begin(found.step + 1)
        if found.step:
            run.progress.step(found.step, float(np.frombuffer(found.loss, config.precision.state)[0]))
    locator.begin(0)
    run.progress.end()
    return history


def train(
    comm: Communicator, run: Run, config: Config, title: str, history: list[Fingerprint] | None
) -> Measurement | None:
    """Train one row and compare each step with `history`; what was measured on rank 0, None on the others."""
    faults = faults_of(comm, run)
    hosts = hosts_of(run, config)
    seen = observers(
        config.name, comm.rank, hosts, faults, lifetimes=config.row.claims.fragmentation, traced=bool(run.traced))
    comm = carrier(comm, run, faults)
    second = None if run.second_channel is None else seen.observed(carrier(run.second_channel, run, faults))
    tiers = seen.tiers(config.row.parallel.offload_folder)
    mine = replica(config, seen.observed(comm), seen.allocator(), second, tiers=tiers)
    with closing(mine.tape.shelf), closing(mine.storage):
        earlier = begun(comm, run, mine, config)
        if earlier is None:
            return Measurement(config, fits=False) if comm.rank == 0 else None
        updates_before = mine.state.updates
        checker = None if history is None else Checker(mine, history, config.sums_everywhere)
        steps = Steps(comm, run, config, title, mine, seen, checker, earlier)
        memory = steps.run_all()
    held = None if checker else holdings(comm, mine, config.sums_everywhere)
    misfits = gather_objects(comm, checker.misfit if checker else None) or []
    evidence = first_of(gather_objects(comm, checker.evidence if checker else None))
    measured = gather_objects(comm, (counts(comm.rank, seen.traffic), memory, operations(mine), faults.missed))
    trace = brought_together(comm, steps.traced) if seen.tracer else None
    final = collected(comm, run.batches(config), mine, keep_weights=run.keep_weights)
    if measured is None:
        return None
    disagreeing = held.disagreement if held else None
    if history is not None and evidence is None:
        home = brought_home_otherwise((final.weights_sha256, final.optimizer_sha256), history[-1].sha256)
        disagreeing = next((misfit for misfit in misfits if misfit), home)
    return Measurement(
        config=config,
        compared=checker is not None,
        evidence=evidence,
        disagreement=disagreeing,
        holdings_sha256=held.sha256 if held else None,
        losses=steps.losses,
        weights_sha256=final.weights_sha256,
        optimizer_sha256=final.optimizer_sha256,
        test=final.test,
        sample=final.sample,
        wire_errors={what: vars(error) for what, error in (history[-1].wire_errors if history else {}).items()},
        operations=[found for _, _, found, _ in measured],
        hosts=hosts,
        traffic=[traffic for traffic, *_ in measured],
        memory=[memory for _, memory, *_ in measured],
        missed_faults=[str(fault) for *_, missed in measured for fault in missed],
        trace=trace,
        updates=mine.state.updates,
        updates_before=updates_before,
        seconds=steps.seconds,
        weights=final.weights,
        lifetimes=steps.taken,
    )


def hosts_of(run: Run, config: Config) -> list[int]:
    """The number of each rank's host: as the scenario says, else where the world has put it."""
    per_host = config.row.ranks_per_host
    return [rank // per_host for rank in range(config.ranks)] if per_host else [*run.world.hosts[: config.ranks]]


def faults_of(comm: Communicator, run: Run) -> Faults:
    """What is to befall this rank in a row."""
    due = run.experiment.scenario.faults_after(run.restarts) if run.faulty else []
    mine = [fault for fault in due if fault.rank == comm.rank]
    return Faults(mine, lambda: run.world.kill(comm), lambda: run.world.stop(comm))


def carrier(comm: Communicator, run: Run, faults: Faults) -> Communicator:
    """What carries a row's messages: with checksums, if the scenario asks for them, and above what may befall them."""
    faulty = faults.around(comm)
    return Checked(faulty) if run.experiment.scenario.check.checksums else faulty


@dataclass(frozen=True)
class RestoringOnly:
    """Brings states back as another keeping does, and saves none."""

    keeping: Keeping

    def restore(self, config: Config, replica: Replica) -> list[Array]:
        return self.keeping.restore(config, replica)

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        """Nothing is saved."""


def begun(comm: Communicator, run: Run, mine: Replica, config: Config) -> list[Array] | None:
    """Allocate the model states; the losses of the steps before, or None where there was no memory on some rank."""
    losses: list[Array] = []
    try:
        if config.resumed is None:
            mine.begin(initial_weights(config))
        else:
            assert run.keeping is not None
            losses = run.keeping.restore(config, mine)
        short = False
    except MemoryError:
        short = True
        mine.state.weights.clear()
        mine.state.optimizer.clear()
        mine.state.residuals.clear()
    return None if any(agreed(comm, short)) else losses


def agreed(comm: Communicator, mine: bool) -> list[bool]:
    """What every rank says, on every rank."""
    said = np.zeros(comm.size, np.bool_)
    said[comm.rank] = mine
    ring.all_gather(comm, split(said, comm.size))
    return [bool(each) for each in said]


@dataclass(eq=False)
class Steps:
    """The steps of one row on one rank, with everything that is noticed of them."""

    comm: Communicator
    run: Run
    config: Config
    title: str
    replica: Replica
    observers: Observers
    checker: Checker | None
    losses: list[Array]
    """The losses of all steps so far, those before this run among them."""
    began_ns: int = 0

    def __post_init__(self) -> None:
        self.seconds = {"train": 0.0, "save": 0.0}
        self.taken: list[Lifetime] = []
        """In the last step, if it was written down."""
        self.traced: list[RankStep] = []
        self.at_rest = {str(kind): (self.observers.ledger.now[kind], self.observers.ledger.now[kind]) for kind in KINDS}
        """The least and the most of each kind after a step."""

    def run_all(self) -> MemoryFigures:
        """Train and check every step; what the ledger says between steps."""
        progress = self.run.progress
        if self.checker is not None:
            self.checker.check_earlier(self.losses)
            self.checker.check(self.config.done, None)
        self.run.world.take_buffers_from(self.replica.allocate)
        for ledger in (self.observers.ledger, *self.observers.far.values()):
            ledger.begin_peak()
        self.observers.moves.begin()
        progress.begin(self.title, self.config.steps)
        for batch in self.run.batches(self.config).of_rank(self.comm.rank):
            self.observers.locator.begin(batch.step)
            partial_loss = self.run_one(batch)
            self.observers.faults.end(batch.step, self.replica.state.weights.values())
            loss = self.total(partial_loss)
            del partial_loss
            self.losses.append(loss)
            if self.checker is not None:
                self.checker.check(batch.step, loss)
            self.look_at_rest(batch.step)
            progress.step(batch.step, float(loss[0]))
            self.save()
        self.observers.locator.begin(0)
        self.observers.ledger.end_curve()
        if self.observers.lifetimes:
            self.taken = self.observers.lifetimes.end()
        progress.end()
        return self.memory()

    def save(self) -> None:
        """Put the state away, if it is time to."""
        if self.run.keeping is not None:
            started = time.perf_counter()
            self.run.keeping.save(self.comm, self.config, self.replica, self.losses)
            self.seconds["save"] += time.perf_counter() - started

    def run_one(self, batch: Batch) -> Any:
        """Train one step: this rank's part of the loss. Its time is added, and what is traced is noted."""
        tracer = self.observers.tracer if batch.step in self.run.traced else None
        if tracer:
            tracer.begin()
        if tracer or batch.step == self.config.steps:
            self.began_ns = self.observers.ledger.begin_curve()
        if self.observers.lifetimes and batch.step == self.config.steps:
            self.observers.lifetimes.begin()
        self.observers.faults.begin(batch.step)
        started = time.perf_counter()
        partial_loss = self.config.stage.step(self.replica, batch)
        self.replica.storage.settle()
        self.seconds["train"] += time.perf_counter() - started
        if tracer:
            self.traced.append(replace(tracer.end(batch.step), memory=self.observers.ledger.curve_so_far()))
        return partial_loss

    def look_at_rest(self, step: int) -> None:
        """Note what is alive between this step and the next."""
        for kind in KINDS:
            now = self.observers.ledger.now[kind]
            least, most = (now, now) if step == self.config.done + 1 else self.at_rest[kind]
            self.at_rest[kind] = min(least, now), max(most, now)

    def total(self, partial_loss: Any) -> Array:
        """The loss of the global batch, added in the declared order; not a number, it is the one NaN there is."""
        addition, within = self.config.addition, self.replica.mesh.within(self.comm)
        loss = addition.reduce_scatter(within, partial_loss, as_it_is)
        if addition.collective is not None:
            add_replicas(addition.collective)(self.replica.mesh.across(self.comm), self.replica.own(loss))
        ring.all_gather(within, split(loss, within.size))
        return with_one_nan(loss.copy())

    def memory(self) -> MemoryFigures:
        """What this rank's ledger says."""
        self.replica.storage.settle()
        ledger = self.observers.ledger
        return MemoryFigures(
            rank=self.comm.rank,
            owners={kind: ledger.owners(kind) for kind in KINDS},
            at_rest=dict(self.at_rest),
            offloaded_bytes=self.replica.tape.shelf.most_bytes,
            held_as_began={name: {**most} for name, most in self.observers.held.most.items()},
            peak_bytes=dict([*((kind, ledger.peak[kind]) for kind in KINDS), ("total", ledger.peak_total)]),
            alive_bytes=ledger.total,
            resident_bytes=resident_bytes() - self.run.idle_bytes,
            curve=[(at - self.began_ns, now) for at, now in ledger.curve_so_far()],
            copies_messages=self.run.world.copies_messages,
            far_resting_bytes=self.observers.beside_the_device(lambda ledger: ledger.now),
            far_peak_bytes=self.observers.beside_the_device(lambda ledger: ledger.peak),
            moved_bytes=dict(self.observers.moves.moved_bytes),
        )


def operations(mine: Replica) -> dict[str, int]:
    """What this rank's tape has counted."""
    return {what: mine.tape.operations[what] for what in ("forward", "backward", "recomputation")}


def as_it_is(loss: Array) -> Array:
    """Losses have 32 bits or more in every precision, and so they travel."""
    return loss


def counts(rank: int, traffic: Traffic) -> TrafficCounts:
    """What one rank's ledger says."""
    return TrafficCounts(
        rank=rank,
        sent_bytes=traffic.sent_bytes,
        received_bytes=traffic.received_bytes,
        messages=traffic.messages,
        by_collective={each: dict(vars(count)) for each, count in traffic.by_collective.items()},
        largest_message_bytes=traffic.largest_bytes,
        inside_bytes=traffic.sent_bytes - traffic.between_bytes,
        between_bytes=traffic.between_bytes,
    )
