"""The program that trains and measures a scenario in a world.

`measure` runs on every rank, in the local world and under MPI. Everything but training (fingerprints, losses,
results) goes over the bare communicator and is not counted; the stage's collectives go over the observed one.

Training knows no formula; `verdict` judges measurements and a row.

Every row has new instruments and new message buffers. The offsets between the ranks' clocks in a trace are measured
after the row has been trained.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from zerosim.collectives import ring, tree
from zerosim.core.allocation import MODEL_STATES, Array, allocate, allocate_on_host
from zerosim.core.bits import with_one_nan
from zerosim.core.comm import Communicator, among
from zerosim.core.errors import UsageError
from zerosim.core.sharding import split
from zerosim.observe.faults import Faults
from zerosim.observe.ledger import MEMORY_KINDS, Ledger
from zerosim.observe.observed import Observed, ObservedAllocator, carrying
from zerosim.observe.process import traced_bytes
from zerosim.observe.resident import resident_bytes
from zerosim.observe.trace import RankStep, Tracer, brought_together
from zerosim.observe.traffic import Traffic
from zerosim.scenario.fault import Fault
from zerosim.stages.adding import add_replicas
from zerosim.stages.replica import Batch
from zerosim.stages.storage import HostMemory
from zerosim.training.build import alone, initial_weights, on_rank, restored
from zerosim.training.collect import collected
from zerosim.training.comparison import Evidence, Fingerprint, compared, fingerprints, first_of, published
from zerosim.training.config import Config
from zerosim.training.experiment import NOTHING, Experiment
from zerosim.training.keeping import save
from zerosim.training.measurement import Measurement, RankMemory, without_zeros
from zerosim.worlds.here import HERE, NOWHERE, Location
from zerosim.worlds.objects import broadcast_object, gather_objects
from zerosim.worlds.world import World


class Progress:
    """A display of the training on rank 0; this one shows nothing."""

    def begin(self, title: str, steps: int) -> None: ...
    def step(self, step: int, loss: float) -> None: ...
    def end(self) -> None: ...


def measure(
    comm: Communicator, world: World, experiment: Experiment, progress: Progress,
    second_channel: Communicator | None = None, step_bytes: Callable[[Config, int], int] | None = None,
) -> Iterator[Measurement | None]:
    """Train every row, and its reference in one process; yield a measurement per row on rank 0, else None.

    Prefetches and overlapped reductions use `second_channel`. With `step_bytes`, the memory of a step is tried first.
    """
    shown = progress if comm.rank == 0 else Progress()
    run = partial(Run, world, idle_bytes=resident_bytes(), progress=shown, step_bytes=step_bytes)
    check, faults = experiment.scenario.check, experiment.scenario.fault if experiment.faulty else ()
    on_others = replace(experiment, keep_weights=False, traced=NOTHING, folders={})
    histories: dict[tuple[object, ...], dict[int, Fingerprint]] = {}
    for config in experiment.rows:
        if config.check.reference and config.reference_key not in histories:
            histories[config.reference_key] = train_alone(comm, experiment, config, shown)
        measured = run(comm, experiment, config, config.name, history=histories.get(config.reference_key), faults=[
            fault for fault in faults if fault.rank == comm.rank], second_channel=second_channel).train()
        elsewhere = {}
        for ranks in (number for number in check.same_bits_on if comm.rank < number):
            second = second_channel and among(second_channel, range(ranks))
            elsewhere[ranks] = run(among(comm, range(ranks)), on_others, config.on(ranks), f"{config.name} on {ranks}",
                                   second_channel=second).train()
        yield measured and replace(measured, on_other_ranks={
            ranks: other for ranks, other in elsewhere.items() if other is not None})


def train_alone(
    comm: Communicator, experiment: Experiment, config: Config, progress: Progress
) -> dict[int, Fingerprint]:
    """The fingerprints of every step of a training in one process on rank 0, on every rank."""
    in_one_process = (fingerprints(config, snapshots) for snapshots in alone(experiment, config))
    history: dict[int, Fingerprint] = {}
    place = config.directions.place(comm.rank)
    progress.begin("one process", config.train.steps)
    for places in published(comm, in_one_process if comm.rank == 0 else None):
        snapshot = places[place % len(places)]
        history[snapshot.step] = snapshot
        HERE.set(Location(snapshot.step + 1, "one process"))
        if snapshot.step:
            progress.step(snapshot.step, float(np.frombuffer(snapshot.loss, config.precision.losses)[0]))
    HERE.set(NOWHERE)
    progress.end()
    return history


@dataclass(eq=False)
class Run:
    """One row, trained on one rank and observed by instruments of its own, and what they have seen.

    `comm` is the bare communicator. Each step is compared with `history`, the fingerprints of one process.
    """

    world: World
    comm: Communicator
    experiment: Experiment
    config: Config
    title: str
    progress: Progress
    idle_bytes: int
    """The resident memory of the process before the first row."""
    history: Mapping[int, Fingerprint] | None = None
    faults: Sequence[Fault] = ()
    """The faults of this rank."""
    second_channel: Communicator | None = None
    step_bytes: Callable[[Config, int], int] | None = None
    """The memory that a row's steps take beyond what a rank holds."""

    def __post_init__(self) -> None:
        config, rank, per_host = self.config, self.comm.rank, self.config.ranks_per_host
        hosts = [rank // per_host for rank in range(config.directions.ranks)] if per_host else self.world.hosts
        self.hosts = hosts = [*hosts[: config.directions.ranks]]
        """The number of each rank's host, by the scenario or else by the world."""
        # No instrument refers to this run: in a circle its memory would outlive the row.
        world, comm = self.world, self.comm
        self.injected = Faults([*self.faults], lambda: world.kill(comm), lambda: world.stop(comm))
        self.traffic = Traffic(away=lambda to: hosts[to] != hosts[rank])
        self.ledger, self.host = Ledger(), Ledger()
        self.tracer = Tracer(rank) if self.experiment.traced else None
        tracers = [self.tracer] if self.tracer else []
        injected = [self.injected] if self.faults else []
        instruments = [*injected, self.traffic, self.ledger, *tracers]
        second = self.second_channel and Observed(self.injected.around(self.second_channel), *instruments)
        self.replica, self.step, self.passes = on_rank(
            config, Observed(self.injected.around(self.comm), *instruments),
            ObservedAllocator(allocate, self.ledger), second,
            HostMemory(ObservedAllocator(allocate_on_host, self.host), carrying(self.host, *tracers)))
        self.losses: list[Array] = []
        """The losses of all steps so far, including those before this run."""
        self.evidence: Evidence | None = None
        """The first bytes that differ from one process's."""
        self.misfit: str | None = None
        """The first missing state or differing counter, in words."""
        self.seconds = {"train": 0.0, "save": 0.0}
        self.steps: list[RankStep] = []
        """The traced steps."""
        self.at_rest: dict[str, tuple[int, int]] = {}
        """The least and greatest live bytes of each kind after a step."""
        self.process_bytes: list[int] = []
        self.began_ns = 0

    def train(self) -> Measurement | None:
        """Train the row; the measurement on rank 0, None on other ranks."""
        comm, config, replica, history = self.comm, self.config, self.replica, self.history
        if not self.begin():
            return Measurement(config, fits=False) if comm.rank == 0 else None
        try:
            memory = self.run_all()
        except MemoryError as error:
            why = str(error) or "out of memory"
            raise MemoryError(f"{self.title} did not fit, in step {len(self.losses) + 1}: {why}") from error
        operations = {what: replica.tape.operations[what] for what in ("forward", "backward", "recomputation")}
        ranks = gather_objects(comm, (self.misfit, self.evidence, self.traffic.counted(), memory, operations,
                                      self.passes, self.injected.missed))
        trace = brought_together(comm, self.steps) if self.tracer else None
        final = collected(comm, self.experiment, config, replica)
        if ranks is None:
            return None
        wrong, evidences, traffic, memories, every_operations, passes, missed = zip(*ranks, strict=True)
        evidence = first_of(evidences)
        last, pipelines = history[config.train.steps] if history else None, len(passes) // config.directions.pipeline
        disagreement = None
        if last is not None and evidence is None:
            digests = final["weights_sha256"], final["optimizer_sha256"]
            triples = zip(("weights", "optimizer state"), digests, last.sha256 or digests, strict=True)
            gathered = (f"{what} gathered on rank 0 are not one process's: SHA-256 {ours[:12]}; expected {due[:12]}"
                        for what, ours, due in triples if ours != due)
            disagreement = next(chain(filter(None, wrong), gathered), None)
        return Measurement(
            config=config,
            compared=history is not None,
            evidence=evidence,
            disagreement=disagreement,
            layout=config.layout,
            losses=self.losses,
            wire_errors={what: vars(error) for what, error in last.wire_errors.items()} if last else {},
            operations=[*every_operations],
            passes=[[*passes[first::pipelines]] for first in range(pipelines if pipelines < len(passes) else 0)],
            hosts=self.hosts,
            traffic=[*traffic],
            memory=[*memories],
            missed_faults=[str(fault) for of_rank in missed for fault in of_rank],
            trace=trace,
            updates=replica.state.updates,
            seconds=self.seconds,
            lifetimes=self.ledger.lifetimes if config.check.lifetimes else [],
            **final,
        )

    def begin(self) -> bool:
        """Allocate the model states; False if some rank lacks memory for them or for a step.

        Where memory is limited, what a step needs is allocated here once: within one, other ranks would already wait.
        """
        config, replica = self.config.of_rank(self.comm.rank), self.replica
        trial, place = None, self.config.directions.place(self.comm.rank)
        try:
            if config.resumed is None:
                replica.begin(initial_weights(config, place))
            else:
                self.losses = restored(config, config.resumed, replica, place)
            if self.step_bytes is not None:
                trial = np.empty(self.step_bytes(config, self.ledger.total), np.uint8)
            short = False
        except MemoryError:
            short = True
            replica.state.weights.clear()
            replica.state.optimizer.clear()
        fits = broadcast_object(self.comm, not any(gather_objects(self.comm, short) or ()))
        del trial    # only now: ranks may share a process
        return bool(fits)

    def run_all(self) -> RankMemory:
        """Train and check every step; return the memory figures."""
        config, progress = self.config, self.progress
        self.look_at_rest(config.done + 1)
        self.compare(config.done, None)
        self.world.take_buffers_from(self.replica.allocate)
        for ledger in (self.ledger, self.host):
            ledger.begin_peak()
        progress.begin(self.title, config.train.steps)
        for batch in self.experiment.of_rank(config, self.replica.comm.rank):
            HERE.set(Location(batch.step, self.config.name))
            partial_loss = self.run_one(batch)
            self.injected.end(batch.step, self.replica.state.weights.values())
            loss = self.total(partial_loss)
            del partial_loss
            self.losses.append(loss)
            self.compare(batch.step, loss)
            self.look_at_rest(batch.step)
            if config.check.process_memory:
                self.process_bytes.append(traced_bytes())
            progress.step(batch.step, float(loss[0]))
            self.save()
        HERE.set(NOWHERE)
        self.ledger.end_curve()
        progress.end()
        return self.memory()

    def compare(self, step: int, loss: Array | None) -> None:
        """Compare this rank's state after `step` with one process's; keep the first difference.

        Before the first step of a run there are no loss and no gradients.
        """
        if self.history is not None and self.evidence is None:
            misfit, self.evidence = compared(
                self.replica, self.comm.rank, self.history[step], self.config.model.units, loss,
                sums_everywhere=self.config.sums_everywhere)
            self.misfit = self.misfit or misfit

    def save(self) -> None:
        """Save the state after each of so many steps, and after the last, if the scenario requests it."""
        step, every = self.replica.state.step, self.experiment.scenario.checkpoint.every
        if self.experiment.folders and (not step % every or step == self.config.train.steps):
            started = time.perf_counter()
            self.world.take_buffers_from(allocate)    # these messages are no step's
            save(self.comm, self.experiment, self.config, self.replica, self.losses)
            self.world.take_buffers_from(self.replica.allocate)
            self.seconds["save"] += time.perf_counter() - started

    def run_one(self, batch: Batch) -> Any:
        """Train one step and return this rank's part of the loss; add up its time and collect its trace."""
        tracer = self.tracer if batch.step in self.experiment.traced else None
        if tracer:
            tracer.begin()
        if tracer or batch.step == self.config.train.steps:
            self.began_ns = self.ledger.begin_curve()
        self.injected.begin(batch.step)
        started = time.perf_counter()
        partial_loss = self.step(batch)
        self.seconds["train"] += time.perf_counter() - started
        if tracer:
            self.steps.append(replace(tracer.end(batch.step), memory=[*self.ledger.curve]))
        return partial_loss

    def look_at_rest(self, step: int) -> None:
        """Record the live bytes between this step and the next."""
        for kind in MEMORY_KINDS:
            now = self.ledger.now[kind]
            least, most = (now, now) if step == self.config.done + 1 else self.at_rest[kind]
            self.at_rest[kind] = min(least, now), max(most, now)

    def total(self, partial_loss: Any) -> Array:
        """The loss of the global batch, added in the declared order, on every rank; all NaNs have the same bits.

        Losses have 32 bits or more in every precision and are sent as they are. The last ranks of a pipeline add them.
        """
        pipeline = self.config.directions.along(self.comm, "pipeline")
        comm, loss = self.config.directions.data_ranks(self.comm), np.empty(1, self.config.precision.losses)
        addition, within = self.config.addition, self.replica.mesh.within(comm)
        if pipeline.rank == pipeline.size - 1 and not isinstance(partial_loss, np.ndarray | list):
            raise UsageError(f"the step returned {partial_loss!r:.60}; return the loss of tape.loss")
        if partial_loss is not None:
            full = addition.reduce_scatter(within, partial_loss, lambda loss: loss)
            if addition.collective is not None:
                add_replicas(addition.collective)(self.replica.mesh.across(comm), self.replica.own(full))
            ring.all_gather(within, split(full, within.size))
            loss = with_one_nan(full.copy())
        tree.broadcast(pipeline, loss, pipeline.size - 1)
        return loss

    def memory(self) -> RankMemory:
        """The memory figures of this rank."""
        ledger = self.ledger
        owners: dict[str, dict[str, int]] = {kind: ledger.owners(kind) for kind in MEMORY_KINDS}
        return RankMemory(
            rank=self.comm.rank,
            owners=owners,
            resting_bytes={kind: sum(owners[kind].values()) for kind in MODEL_STATES},
            at_rest=dict(self.at_rest),
            process_bytes=self.process_bytes,
            held_at_beginning={name: {**most} for name, most in ledger.held_at_beginning.items()},
            peak_bytes=dict([*((kind, ledger.peak[kind]) for kind in MEMORY_KINDS), ("total", ledger.peak_total)]),
            alive_bytes=ledger.total,
            resident_bytes=resident_bytes() - self.idle_bytes,
            curve=[(at - self.began_ns, now) for at, now in ledger.curve],
            host_resting_bytes=without_zeros(self.host.now),
            host_peak_bytes=without_zeros(self.host.peak),
            moved_bytes=dict(self.host.moved_bytes),
        )
