"""The program that trains and measures a scenario in a world.

`measure` runs on every rank, in the local world and under MPI. Everything beside training (fingerprints, losses,
results) goes over the bare communicator and is not counted; the stage's collectives go over the observed one.

Training knows no formula; `verdict` judges measurements and a row.

Every row has new instruments and new message buffers. The offsets between the ranks' clocks in a trace are measured
after the row has been trained.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from zerosim.collectives import ring, tree
from zerosim.core.allocation import MODEL_STATES, Array, allocate
from zerosim.core.comm import Communicator, among
from zerosim.core.not_a_number import with_one_nan
from zerosim.core.sharding import split
from zerosim.observe.faults import Faults
from zerosim.observe.location import Locator
from zerosim.observe.memory import MEMORY_KINDS, Ledger, Lifetime
from zerosim.observe.resident import resident_bytes
from zerosim.observe.trace import RankStep, brought_together
from zerosim.stages.adding import add_replicas
from zerosim.stages.replica import Batch, Replica
from zerosim.training.build import alone, initial_weights, on_rank, restored
from zerosim.training.collect import collected
from zerosim.training.comparison import (
    Checker,
    Fingerprint,
    brought_home_otherwise,
    fingerprints,
    first_of,
    holdings,
    published,
)
from zerosim.training.config import Config
from zerosim.training.experiment import Batches, Experiment
from zerosim.training.measurement import (
    Measurement,
    Observers,
    RankMemory,
    by_pipeline,
    traffic_counts,
    without_zeros,
)
from zerosim.worlds.checked import Checked
from zerosim.worlds.objects import gather_objects
from zerosim.worlds.world import World


class Progress(Protocol):
    """A display of the training on rank 0."""

    def begin(self, title: str, steps: int) -> None: ...
    def step(self, step: int, loss: float) -> None: ...
    def end(self) -> None: ...


class Silent:
    """A progress display that shows nothing."""

    def begin(self, title: str, steps: int) -> None: ...
    def step(self, step: int, loss: float) -> None: ...
    def end(self) -> None: ...


class Keeping(Protocol):
    """Saves training states."""

    def save(self, comm: Communicator, config: Config, replica: Replica, losses: Sequence[Array]) -> None:
        """Save, if it is due; all ranks call it after every step."""


@dataclass(frozen=True)
class Run:
    """The arguments of a run on each rank: world, experiment, progress, and the world's resources for this rank."""

    world: World
    experiment: Experiment
    progress: Progress
    keep_weights: bool = False
    second_channel: Communicator | None = None
    """A second channel to the same ranks, for prefetches and overlapped reductions."""
    traced: range = range(0)
    """The steps to trace."""
    idle_bytes: int = 0
    """The resident memory of the process before the first row."""
    keeping: Keeping | None = None
    """The checkpoints of rows; None without checkpoints."""
    saves: bool = True
    """Whether checkpoints are saved."""
    restarts: int = 0
    """The number of restarts of this training."""
    room_bytes: Callable[[Config, int], int] | None = None
    """The memory that a row's steps take beyond what a rank holds, tried before them; None without a limit."""
    faulty: bool = True
    """Whether the scenario's [[fault]] entries apply."""

    def batches(self, config: Config) -> Batches:
        return Batches(config, self.experiment.dataset)


def measure(comm: Communicator, run: Run) -> Iterator[Measurement | None]:
    """Train every row, and its reference in one process; yield a measurement per row on rank 0, else None."""
    run = replace(run, idle_bytes=resident_bytes(), progress=run.progress if comm.rank == 0 else Silent())
    histories: dict[tuple[object, ...], dict[int, Fingerprint]] = {}
    for config in run.experiment.rows:
        if config.claims.reference and config.course not in histories:
            histories[config.course] = train_alone(comm, run, config)
        measured = train(comm, run, config, config.name, histories.get(config.course))
        elsewhere = {ranks: train_on(comm, run, config, ranks) for ranks in run.experiment.scenario.check.same_bits_on}
        found = {ranks: each for ranks, each in elsewhere.items() if each is not None}
        yield None if measured is None else replace(measured, on_other_ranks=found)


def train_on(comm: Communicator, run: Run, config: Config, ranks: int) -> Measurement | None:
    """Train one row on the first `ranks` ranks without a comparison; the measurement on rank 0."""
    if comm.rank >= ranks:
        return None
    second = None if run.second_channel is None else among(run.second_channel, range(ranks))
    run = replace(
        run, keep_weights=False, traced=range(0), second_channel=second,
        saves=False, faulty=False,
    )
    return train(among(comm, range(ranks)), run, config.on(ranks), f"{config.name} on {ranks}", None)


def train_alone(comm: Communicator, run: Run, config: Config) -> dict[int, Fingerprint]:
    """The fingerprints of every step of a training in one process on rank 0, on every rank."""
    found_alone = (fingerprints(config, snapshots) for snapshots in alone(run.batches(config)))
    history: dict[int, Fingerprint] = {}
    place = config.directions.place(comm.rank)
    locator = Locator("one process")
    run.progress.begin("one process", config.steps)
    for places in published(comm, found_alone if comm.rank == 0 else None):
        found = places[place % len(places)]
        history[found.step] = found
        locator.begin(found.step + 1)
        if found.step:
            run.progress.step(found.step, float(np.frombuffer(found.loss, config.precision.state)[0]))
    locator.begin(0)
    run.progress.end()
    return history


def train(
    comm: Communicator, run: Run, config: Config, title: str, history: dict[int, Fingerprint] | None
) -> Measurement | None:
    """Train one row and compare each step with `history`; the measurement on rank 0, None on other ranks."""
    faults = faults_of(comm, run)
    hosts = hosts_of(run, config)
    seen = Observers(
        config.name, comm.rank, hosts, faults, lifetimes=config.claims.fragmentation, traced=bool(run.traced))
    comm = carrier(comm, run, faults)
    directions, observed, units = config.directions, seen.observed(comm), config.model.units
    second = None if run.second_channel is None else seen.observed(carrier(run.second_channel, run, faults))
    mine, step, passes = on_rank(
        config, observed, seen.allocator(), second, seen.host_memory())
    earlier = begun(comm, run, mine, config.of_rank(comm.rank), seen.ledger)
    if earlier is None:
        return Measurement(config, fits=False) if comm.rank == 0 else None
    updates_before = mine.state.updates
    checker = None if history is None else Checker(
        mine, comm.rank, history, units, config.sums_everywhere)
    steps = Steps(comm, run, config, title, mine, step, seen, checker, earlier)
    try:
        memory = steps.run_all()
    except MemoryError as error:
        raise MemoryError(f"{title} did not fit, in step {len(steps.losses) + 1}: {error}") from error
    held = None if checker else holdings(
        comm, directions.place(comm.rank) % directions.side_by_side, mine, units, config.sums_everywhere)
    misfits = gather_objects(comm, checker.misfit if checker else None) or []
    evidence = first_of(gather_objects(comm, checker.evidence if checker else None))
    measured = gather_objects(
        comm, (traffic_counts(comm.rank, seen.traffic), memory, operations(mine), passes, faults.missed))
    trace = brought_together(comm, steps.traced) if seen.tracer else None
    final = collected(comm, run.batches(config), mine, keep_weights=run.keep_weights)
    if measured is None:
        return None
    disagreeing = held.disagreement if held else None
    last = history[config.steps] if history else None
    if last is not None and evidence is None:
        home = brought_home_otherwise((final["weights_sha256"], final["optimizer_sha256"]), last.sha256)
        disagreeing = next((misfit for misfit in misfits if misfit), home)
    return Measurement(
        config=config,
        compared=checker is not None,
        evidence=evidence,
        disagreement=disagreeing,
        layout=config.layout,
        holdings_sha256=held.sha256 if held else None,
        losses=steps.losses,
        wire_errors={what: vars(error) for what, error in last.wire_errors.items()} if last else {},
        operations=[found for _, _, found, *_ in measured],
        passes=by_pipeline([found for *_, found, _ in measured], directions.pipeline),
        hosts=hosts,
        traffic=[traffic for traffic, *_ in measured],
        memory=[memory for _, memory, *_ in measured],
        missed_faults=[str(fault) for *_, missed in measured for fault in missed],
        trace=trace,
        updates=mine.state.updates,
        updates_before=updates_before,
        seconds=steps.seconds,
        lifetimes=steps.taken,
        **final,
    )


def hosts_of(run: Run, config: Config) -> list[int]:
    """The number of each rank's host, by the scenario or else by the world."""
    per_host, ranks = config.ranks_per_host, config.all_ranks
    return [rank // per_host for rank in range(ranks)] if per_host else [*run.world.hosts[:ranks]]


def faults_of(comm: Communicator, run: Run) -> Faults:
    """This rank's faults in a row."""
    due = run.experiment.scenario.faults_after(run.restarts) if run.faulty else []
    mine = [fault for fault in due if fault.rank == comm.rank]
    return Faults(mine, lambda: run.world.kill(comm), lambda: run.world.stop(comm))


def carrier(comm: Communicator, run: Run, faults: Faults) -> Communicator:
    """The channel of a row's messages, with injected faults and, if the scenario requests them, checksums."""
    faulty = faults.around(comm)
    return Checked(faulty) if run.experiment.scenario.check.checksums else faulty


def begun(comm: Communicator, run: Run, mine: Replica, config: Config, ledger: Ledger) -> list[Array] | None:
    """Allocate the model states; the losses of earlier steps, or None if some rank lacks memory for them or for a step.

    Where memory is limited, what a step needs is allocated here once: within one, other ranks would already wait.
    """
    losses: list[Array] = []
    room, place = None, config.directions.place(comm.rank)
    try:
        if config.resumed is None:
            mine.begin(initial_weights(config, place))
        else:
            losses = restored(config, config.resumed, mine, place)
        if run.room_bytes is not None:
            room = np.empty(run.room_bytes(config, ledger.total), np.uint8)
        short = False
    except MemoryError:
        short = True
        mine.state.weights.clear()
        mine.state.optimizer.clear()
    lacking = any(agreed(comm, short))
    del room    # only now: ranks may share a process
    return None if lacking else losses


def agreed(comm: Communicator, mine: bool) -> list[bool]:
    """The values of `mine` of all ranks, on every rank."""
    flags = np.zeros(comm.size, np.bool_)
    flags[comm.rank] = mine
    ring.all_gather(comm, split(flags, comm.size))
    return [bool(each) for each in flags]


@dataclass(eq=False)
class Steps:
    """The steps of one row on one rank, and their observations."""

    comm: Communicator
    run: Run
    config: Config
    title: str
    replica: Replica
    step: Callable[[Batch], Any]
    """Trains one step; this rank's part of the loss, None if it computes none."""
    observers: Observers
    checker: Checker | None
    losses: list[Array]
    """The losses of all steps so far, including those before this run."""
    began_ns: int = 0

    def __post_init__(self) -> None:
        self.seconds = {"train": 0.0, "save": 0.0}
        self.taken: list[Lifetime] = []
        """The allocations in the last step, if they are recorded."""
        self.traced: list[RankStep] = []
        self.at_rest: dict[str, tuple[int, int]] = {}
        """The least and greatest live bytes of each kind after a step."""
        self.look_at_rest(self.config.done + 1)

    def run_all(self) -> RankMemory:
        """Train and check every step; return the memory figures."""
        progress = self.run.progress
        if self.checker is not None:
            self.checker.check(self.config.done, None)
        self.run.world.take_buffers_from(self.replica.allocate)
        for ledger in (self.observers.ledger, self.observers.host):
            ledger.begin_peak()
        self.observers.moves.begin()
        progress.begin(self.title, self.config.steps)
        for batch in self.run.batches(self.config).of_rank(self.replica.comm.rank):
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
        """Save the state, if it is due."""
        if self.run.keeping is not None and self.run.saves:
            started = time.perf_counter()
            self.run.world.take_buffers_from(allocate)    # these messages are no step's
            self.run.keeping.save(self.comm, self.config, self.replica, self.losses)
            self.run.world.take_buffers_from(self.replica.allocate)
            self.seconds["save"] += time.perf_counter() - started

    def run_one(self, batch: Batch) -> Any:
        """Train one step and return this rank's part of the loss; add up its time and collect its trace."""
        tracer = self.observers.tracer if batch.step in self.run.traced else None
        if tracer:
            tracer.begin()
        if tracer or batch.step == self.config.steps:
            self.began_ns = self.observers.ledger.begin_curve()
        if self.observers.lifetimes and batch.step == self.config.steps:
            self.observers.lifetimes.begin()
        self.observers.faults.begin(batch.step)
        started = time.perf_counter()
        partial_loss = self.step(batch)
        self.seconds["train"] += time.perf_counter() - started
        if tracer:
            self.traced.append(replace(tracer.end(batch.step), memory=self.observers.ledger.curve_so_far()))
        return partial_loss

    def look_at_rest(self, step: int) -> None:
        """Record the live bytes between this step and the next."""
        for kind in MEMORY_KINDS:
            now = self.observers.ledger.now[kind]
            least, most = (now, now) if step == self.config.done + 1 else self.at_rest[kind]
            self.at_rest[kind] = min(least, now), max(most, now)

    def total(self, partial_loss: Any) -> Array:
        """The loss of the global batch, on every rank; the last of a pipeline compute it."""
        pipeline = self.config.directions.along(self.comm, "pipeline")
        loss = np.empty(1, self.config.precision.state) if partial_loss is None else self.added(partial_loss)
        tree.broadcast(pipeline, loss, pipeline.size - 1)
        return loss

    def added(self, partial_loss: Any) -> Array:
        """The loss of the global batch, added in the declared order; all NaNs have the same bits."""
        comm = self.config.directions.data_ranks(self.comm)
        addition, within = self.config.addition, self.replica.mesh.within(comm)
        loss = addition.reduce_scatter(within, partial_loss, as_it_is)
        if addition.collective is not None:
            add_replicas(addition.collective)(self.replica.mesh.across(comm), self.replica.own(loss))
        ring.all_gather(within, split(loss, within.size))
        return with_one_nan(loss.copy())

    def memory(self) -> RankMemory:
        """The memory figures of this rank."""
        ledger = self.observers.ledger
        owners: dict[str, dict[str, int]] = {kind: ledger.owners(kind) for kind in MEMORY_KINDS}
        return RankMemory(
            rank=self.comm.rank,
            owners=owners,
            resting_bytes={kind: sum(owners[kind].values()) for kind in MODEL_STATES},
            at_rest=dict(self.at_rest),
            held_as_began={name: {**most} for name, most in self.observers.held.most.items()},
            peak_bytes=dict([*((kind, ledger.peak[kind]) for kind in MEMORY_KINDS), ("total", ledger.peak_total)]),
            alive_bytes=ledger.total,
            resident_bytes=resident_bytes() - self.run.idle_bytes,
            curve=[(at - self.began_ns, now) for at, now in ledger.curve_so_far()],
            copies_messages=self.run.world.copies_messages,
            host_resting_bytes=without_zeros(self.observers.host.now),
            host_peak_bytes=without_zeros(self.observers.host.peak),
            moved_bytes=dict(self.observers.moves.moved_bytes),
        )


def operations(mine: Replica) -> dict[str, int]:
    return {what: mine.tape.operations[what] for what in ("forward", "backward", "recomputation")}


def as_it_is(loss: Array) -> Array:
    """Return the loss unchanged: losses have 32 bits or more in every precision and are sent as they are."""
    return loss
