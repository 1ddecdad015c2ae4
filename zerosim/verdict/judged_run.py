"""Prepare, measure and judge: a whole run on every rank, in the local world and under MPI.

A row's outcome has the expected value of every figure, by the formulas.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.comm import Communicator
from zerosim.core.errors import LaunchError, UsageError
from zerosim.observe.ledger import MEMORY_KINDS
from zerosim.observe.process import traced
from zerosim.observe.resident import keep_freed, let_blas_allocate, limited, memory_limit, return_freed
from zerosim.scenario import Scenario
from zerosim.scenario.data import load_dataset
from zerosim.stages import STAGES
from zerosim.training.config import Config
from zerosim.training.experiment import NOTHING, Experiment, prepare
from zerosim.training.keeping import begin, with_checkpoints
from zerosim.training.measurement import Measurement, RankMemory, without_zeros
from zerosim.training.one_function import refuse_unequal_splits
from zerosim.training.program import Progress, measure
from zerosim.verdict.addresses import fragmentation
from zerosim.verdict.bounds import moved_between, operations_between, peaks_between, tensor_bytes_between
from zerosim.verdict.diagnosis import Divergence, first_divergence, orders_of_addition, row_differences
from zerosim.verdict.outcome import Outcome, RowOutcome
from zerosim.verdict.pipelines import faults
from zerosim.verdict.resting import needed_at_beginning, padding_bytes, resting_bytes, unit_bytes
from zerosim.verdict.shapes import expected
from zerosim.verdict.traffic import message_copies, most_messages, traffic_due, undeclared, volume
from zerosim.worlds.launcher import launched_rank
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World

MOST_THREADS = 4096


def judged(measured: Measurement, divergence: Divergence | None, *, in_processes: bool) -> RowOutcome:
    """The outcome of a row; `divergence` is the place of its first evidence. Processes copy their messages."""
    if not measured.fits:
        return what_it_needs(measured)
    config, updates = measured.config, measured.updates_here
    copies = message_copies(config) if in_processes else None
    ranks = range(len(measured.memory))
    return RowOutcome(
        measured=measured,
        due=Measurement(
            config,
            traffic=[traffic_due(config, rank, updates, measured.hosts) for rank in ranks],
            memory=[memory_due(config.of_rank(rank), rank, updates, copies) for rank in ranks]),
        equal=divergence is None if measured.compared else None,
        compared_with="one process" if measured.compared else None,
        first_divergence=divergence and replace(
            divergence, order_of_addition=orders_of_addition(config, divergence.chunk)),
        due_operations={what: sum(expected(part, updates).operations[what] for part in config.of_pipeline)
                        for what in expected(config.of_pipeline[0], updates).operations},
        operations_between=operations_between(config),
        sent_otherwise=undeclared(config),
        schedule_fault=next(faults(config, measured.passes), None) if measured.passes else None,
        volume=volume(config),
        most_messages=most_messages(config),
        fragmentation=fragmentation(measured.lifetimes) if measured.lifetimes else None,
        on_other_ranks={ranks: judged(other, None, in_processes=in_processes) if other.fits else RowOutcome(other)
                        for ranks, other in measured.on_other_ranks.items()},
    )


def what_it_needs(measured: Measurement) -> RowOutcome:
    """The memory that a row which did not fit would need, and the other stages whose states would fit."""
    config, allowed = measured.config, measured.config.memory_limit_mb * 10**6
    peaks = {stage: expected(replace(config, stage_key=stage)).peak_bytes
             for stage in STAGES if stage != config.stage_key}
    return RowOutcome(
        measured, needed_bytes=sum(resting_bytes(config).values()), allowed_bytes=allowed, would_fit=[
            stage for stage, peak in peaks.items() if sum(peak.get(kind, 0) for kind in MODEL_STATES) <= allowed])


def memory_due(config: Config, rank: int, updates: int, copies: int | None = None) -> RankMemory:
    """The memory due of one rank, in whose world copies of messages may have `copies` bytes; None if it makes none."""
    figures, resting, far = expected(config, updates), resting_bytes(config), resting_bytes(config, "host")
    peaks = {str(kind): figures.peak_bytes.get(kind, 0) for kind in MEMORY_KINDS}
    overlapped = 0 if copies is None else figures.overlapped_bytes + copies
    timed = {*figures.bounded, *([] if copies is None else ["buffers"])}
    peaks["buffers"] += overlapped
    ordered = not (timed or config.parallel.prefetch or config.parallel.overlap)
    peaks["total"] = figures.peak_total if ordered else sum(peaks.values())
    timed |= set() if ordered else {"total"}
    at_rest = {str(kind): (kept, kept) for kind, kept in resting.items()}
    return RankMemory(
        rank=rank,
        resting_bytes={str(kind): kept for kind, kept in resting.items()},
        peak_bytes=peaks,
        least_bytes={kind: least for kind, least in peaks.items() if config.steps_here > 0 and kind not in timed},
        padding_bytes=padding_bytes(config),
        host_resting_bytes=without_zeros(far),
        host_peak_bytes=without_zeros(figures.host_peak_bytes),
        moved_bytes=dict(figures.moved_bytes),
        owners={"activations": {}, "buffers": {"messages": copies or 0}} | {
            kind: {unit.name: unit_bytes(config, unit).get(kind, (0, 0))[0] for unit in config.model.units}
            for kind in MODEL_STATES},
        at_rest=at_rest | {"activations": (0, 0), "buffers": (0, copies or 0)} if config.steps_here > 0 else {},
        held_at_beginning=needed_at_beginning(config),
        between=peaks_between(config) | tensor_bytes_between(config) | moved_between(config, updates),
    )


def compared_with_each_other(rows: Sequence[RowOutcome]) -> list[RowOutcome]:
    """The rows compared with each other: without a reference a row is equal if it ends like the first of its order."""

    def ending(row: RowOutcome) -> tuple[object, ...]:
        measured = row.measured
        losses = b"".join(loss.tobytes() for loss in measured.losses)
        return losses, measured.weights_sha256, measured.optimizer_sha256

    firsts: dict[tuple[object, ...], RowOutcome] = {}
    outcomes = []
    for row in rows:
        first = firsts.setdefault(row.config.reference_key, row) if row.measured.fits else row
        outcomes.append(row if first is row else replace(
            row, equal=ending(row) == ending(first), compared_with=first.name))
    return outcomes


def prepare_run(
    scenario: Scenario, *, resume: str | None = None, accept_python: bool = False, keep_weights: bool = False,
    traced: range = NOTHING,
) -> Experiment:
    """The scenario ready to run: with its data and checkpoints, and each split model compared with that in one piece.

    `resume` is a folder of checkpoints; Python files must be those of the checkpoint, unless `accept_python` is set.
    Raises `ScenarioError` for errors in the scenario, `CheckpointError` for checkpoints of another training.
    """
    prepared = prepare(
        scenario, load_dataset(scenario), keep_weights=keep_weights, traced=traced, faulty=resume is None)
    experiment = with_checkpoints(prepared, resume, accept_python=accept_python)
    if launched_rank() <= 0:
        refuse_unequal_splits(experiment)
    return experiment


def local_world(scenario: Scenario) -> LocalWorld:
    """The local world of a scenario's ranks.

    Raises `LaunchError` for a limit of memory, which applies to a process, and here all ranks share one.
    """
    ranks = scenario.world.ranks
    if scenario.world.memory_limit_mb:
        raise LaunchError("world.memory_limit_mb limits each rank's process, but here all ranks share one process: run "
                          f"it with mpirun -n {ranks}")
    if ranks > MOST_THREADS:
        raise UsageError(f"a run has at most {MOST_THREADS} ranks in one process, and the scenario wants {ranks}: "
                         "zerosim plan is for more")
    return LocalWorld(ranks)


def run_locally(
    experiment: Experiment, progress: Progress = Progress(), *, limit_seconds: float | None = None  # noqa: B008 - no state
) -> Outcome:
    """Run in one process, a thread for each rank; `StillRunning` after `limit_seconds`, if there is a limit."""
    outcome = run_on(LocalWorld(experiment.scenario.world.ranks, limit_seconds=limit_seconds), experiment, progress)
    assert outcome is not None
    return outcome


def run_on(world: World, experiment: Experiment, progress: Progress) -> Outcome | None:
    """Run on every rank of `world`; the outcome in the process that has rank 0, None in others."""
    limit = experiment.scenario.world.memory_limit_mb * 10**6 if world.rank_is_process else 0
    overlapped = any(config.parallel.prefetch or config.parallel.overlap for config in experiment.rows)
    locks = begin(experiment) if launched_rank() <= 0 else nullcontext()

    def program(comm: Communicator) -> Outcome | None:
        second = world.channel() if overlapped else None
        if world.rank_is_process:
            (return_freed if limit else keep_freed)()
        with memory_limit(limit):
            measured = list(measure(
                comm, world, experiment, progress, second, step_bytes if limited() else None))
            return outcome_of(comm, world, experiment, measured)

    # One BLAS thread, since their number changes bits; no warnings, since overflows are results.
    tracing = traced() if experiment.scenario.check.process_memory else nullcontext()
    with locks, threadpool_limits(1), np.errstate(all="ignore"), tracing:
        let_blas_allocate()
        try:
            return world.run(program)[0]
        finally:
            progress.end()    # which gives the terminal its cursor back


def step_bytes(config: Config, held_bytes: int) -> int:
    """The memory of a step's peak beyond `held_bytes`, and a quarter more for gaps between arrays."""
    return max(expected(config).peak_total - held_bytes, 0) * 5 // 4


def outcome_of(
    comm: Communicator, world: World, experiment: Experiment, measured: Sequence[Measurement | None]
) -> Outcome | None:
    """The outcome on rank 0, None on the others, which take part until all rows are judged."""
    rows = []
    for config, measurement in zip(experiment.rows, measured, strict=True):
        divergence = first_divergence(comm, experiment, config, measurement.evidence if measurement else None)
        if measurement is not None:
            rows.append(judged(measurement, divergence, in_processes=world.rank_is_process))
    differences = row_differences(comm, experiment, different_rows(rows) if comm.rank == 0 else None)
    if comm.rank != 0:
        return None
    compares = experiment.scenario.check.reference
    return Outcome(experiment, rows if compares else compared_with_each_other(rows), differences)


def different_rows(rows: Sequence[RowOutcome]) -> list[tuple[Config, Config]]:
    """The first row paired with each row that ends with different weights, where both equal their references.

    Rows with equal references count as one. Rows that split the model in different ways are not paired: their sums have
    different terms.
    """
    trained = {row.config.reference_key: row for row in reversed(rows) if row.equal}
    first, *others = [*reversed(trained.values())] or [*rows[:1]]
    return [(first.config, other.config) for other in others
            if first.measured.weights_sha256 != other.measured.weights_sha256
            and first.config.model.task.parallel == other.config.model.task.parallel]
