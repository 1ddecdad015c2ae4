"""Measure and judge: the whole run on every rank, in the local world and under MPI.

A row's outcome has the expected value of every figure, by the formulas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zerosim.allocation import MODEL_STATES, Kind, Tier
from zerosim.comm import Communicator
from zerosim.figures.addresses import fragmentation
from zerosim.figures.pipelines import faults
from zerosim.figures.resting import Resting, far_resting, needed_as_began, resting_bytes, unit_bytes
from zerosim.figures.shapes import ExpectedMemory, expected
from zerosim.figures.traffic import message_copies, most_messages, traffic_due, volume
from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.instruments.resident import MemoryLimit, keep_freed, let_blas_allocate, limited, return_freed
from zerosim.stages import STAGES
from zerosim.training.alike import alike_everywhere
from zerosim.training.config import Config
from zerosim.training.experiment import Batches, Experiment
from zerosim.training.measurement import Measurement, MemoryCounts, MemoryFigures
from zerosim.training.program import Keeping, Progress, Run, measure
from zerosim.verdict.diagnosis import Divergence, first_divergence, orders_of_addition, row_differences
from zerosim.verdict.outcome import DoesNotFit, Outcome, RankMemory, RankTraffic, RowOutcome, TrainedRow
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World


def judged(measured: Measurement, divergence: Divergence | None) -> TrainedRow:
    """The outcome of a trained row; `divergence` is the place of its first evidence."""
    config = measured.config
    updates = measured.updates_here
    traffic = [RankTraffic(counts, traffic_due(config, counts.rank, updates, measured.hosts))
               for counts in measured.traffic]
    sent, messages = volume(config), most_messages(config)
    copies = message_copies(config) if any(figures.copies_messages for figures in measured.memory) else 0
    return TrainedRow(
        measured=measured,
        equal=divergence is None if measured.compared else None,
        compared_with="one process" if measured.compared else None,
        first_divergence=divergence,
        order=None if divergence is None else orders_of_addition(config, divergence.chunk),
        formula_operations={what: sum(expected(each, updates).operations[what] for each in config.of_pipeline)
                            for what in expected(config.of_pipeline[0], updates).operations},
        traffic=traffic,
        memory=[judged_memory(here, figures, expected(here, updates), copies) for figures in measured.memory
                for here in [config.of_rank(figures.rank)]],
        schedule_fault=next(faults(config, measured.passes), None) if measured.passes else None,
        volume=sent,
        most_messages=messages,
        fragmentation=fragmentation(measured.lifetimes) if measured.lifetimes else None,
    )


def what_it_needs(config: Config) -> DoesNotFit:
    """The memory that a row which did not fit would need, and the other stages whose states would fit."""
    allowed = config.row.memory_limit_mb * 10**6
    others = [stage for stage in STAGES if stage != config.row.stage and would_fit(config.by(stage), allowed)]
    return DoesNotFit(resting_bytes(config).total, allowed, others)


def would_fit(config: Config, allowed_bytes: int) -> bool:
    """Whether the model states, and the units that are full at a time, fit in `allowed_bytes`."""
    peak = expected(config).peak_bytes
    return sum(peak.get(kind, 0) for kind in MODEL_STATES) <= allowed_bytes


def judged_memory(config: Config, figures: MemoryFigures, due: ExpectedMemory, copies: int) -> RankMemory:
    """One rank's figures with those due; a world's copies of messages may have `copies` bytes."""
    resting, far, as_began = resting_bytes(config), far_resting(config), needed_as_began(config)
    bounds = {kind: due.peak_bytes.get(kind, 0) for kind in MEMORY_KINDS}
    most = bounds | {"buffers": bounds["buffers"] + (due.beside_bytes + copies if figures.copies_messages else 0)}
    timed = {*due.bounded, *(["buffers"] if figures.copies_messages else [])}
    return RankMemory(
        figures=figures,
        due=MemoryCounts(
            rank=figures.rank,
            resting_bytes={kind: getattr(resting, kind) for kind in MODEL_STATES},
            peak_bytes={str(kind): held for kind, held in most.items()},
            offloaded_bytes=due.offloaded_bytes,
            far_resting_bytes=without_zeros(far),
            far_peak_bytes=without_zeros(due.far_peak_bytes),
            moved_bytes=dict(due.moved_bytes),
        ),
        padding_bytes=resting.padding,
        least_bytes={str(kind): least for kind, least in bounds.items() if config.steps_here > 0 and kind not in timed},
        overweight=[*overweight(config, figures), *left_over(figures, copies),
                    *unsteady(config, figures, resting, copies)],
        lingering=lingering(figures, as_began),
    )


def without_zeros(tiers: Mapping[Tier, Mapping[Kind, int]]) -> dict[str, dict[str, int]]:
    return {str(tier): {str(kind): held for kind, held in kinds.items() if held} for tier, kinds in tiers.items()}


def unsteady(config: Config, figures: MemoryFigures, resting: Resting, copies: int) -> list[str]:
    """The kinds with more or fewer bytes alive after some step than after the last."""
    due: dict[str, tuple[int, int]] = {kind: (getattr(resting, kind),) * 2 for kind in MODEL_STATES}
    due |= {"activations": (0, 0), "buffers": (0, copies if figures.copies_messages else 0)}
    return [
        f"from {least:,} to {most:,} B of {kind} between steps"
        for kind, (least, most) in figures.at_rest.items()
        if config.steps_here > 0 and not due[kind][0] <= least <= most <= due[kind][1]
    ]


def lingering(figures: MemoryFigures, as_began: Mapping[str, Mapping[Kind, int]]) -> list[str]:
    """The memory that a step should have freed before it reduced a gradient, or updated weights, in words."""
    return [
        f"{held:,} B of {kind} as {words} begins; expected {due:,}"
        for name, words in (("reduce_scatter", "a reduce-scatter"), ("update", "an update"))
        for kind, due in as_began.get(name, {}).items()
        if (held := figures.held_as_began.get(name, {}).get(kind, 0)) > due
    ]


def overweight(config: Config, figures: MemoryFigures) -> list[str]:
    """The units with more bytes alive than should rest, in words."""
    found = []
    for kind in MODEL_STATES:
        owners = figures.owners[kind]
        for unit in config.model.units:
            due, _ = unit_bytes(config, unit).get(kind, (0, 0))
            if owners.get(unit.name, 0) > due:
                found.append(f"{owners[unit.name]:,} B of {unit.name}'s {kind}; expected {due:,}")
    return found


def left_over(figures: MemoryFigures, copies: int) -> list[str]:
    """The memory alive between steps that no step needs there, in words; a world's copies of messages are excepted."""
    owners = [(kind, *each) for kind in ("activations", "buffers") for each in figures.owners[kind].items()]
    allowed = {("buffers", "messages"): copies} if figures.copies_messages else {}
    return [
        f"{held:,} B of {kind} for {owner} after the step"
        for kind, owner, held in owners if held > allowed.get((kind, owner), 0)
    ]


def compared_with_each_other(rows: Sequence[RowOutcome]) -> list[RowOutcome]:
    """The rows compared with each other: without a reference a row is equal if it ends like the first with its order.
    """

    def ending(row: TrainedRow) -> tuple[object, ...]:
        found = row.measured
        losses = b"".join(loss.tobytes() for loss in found.losses)
        return losses, found.weights_sha256, found.optimizer_sha256, found.holdings_sha256

    firsts: dict[tuple[object, ...], TrainedRow] = {}
    found = []
    for row in rows:
        if row.trained is not None and firsts.setdefault(row.config.course, row.trained) is not row.trained:
            first = firsts[row.config.course]
            equal = ending(row.trained) == ending(first)
            found.append(replace(row, trained=replace(row.trained, equal=equal, compared_with=first.name)))
        else:
            found.append(row)
    return found


NOTHING = range(0)


def run_locally(
    experiment: Experiment, progress: Progress, *, keep_weights: bool = False, traced: range = NOTHING,
    keeping: Keeping | None = None, limit_seconds: float | None = None,
) -> Outcome:
    """Run in one process, a thread for each rank; `StillRunning` after `limit_seconds`, if there is a limit."""
    world = LocalWorld(experiment.scenario.world.ranks, limit_seconds=limit_seconds)
    outcome = run_on(world, experiment, progress, keep_weights=keep_weights, traced=traced, keeping=keeping)
    assert outcome is not None
    return outcome


def run_on(
    world: World, experiment: Experiment, progress: Progress, *, keep_weights: bool = False, traced: range = NOTHING,
    keeping: Keeping | None = None, restarts: int = 0,
) -> Outcome | None:
    """Run on every rank of `world`; the outcome in the process that has rank 0, None in others.

    The steps in `traced`, counted from 1, are traced. `restarts` is the number of earlier starts of this training.
    """
    limit = experiment.scenario.world.memory_limit_mb * 10**6 if world.rank_is_process else 0
    beside = any(config.row.parallel.prefetch or config.row.parallel.overlap for config in experiment.rows)

    def program(comm: Communicator) -> Outcome | None:
        second = world.channel() if beside else None
        if world.rank_is_process:
            (return_freed if limit else keep_freed)()
        with MemoryLimit(limit):
            run = Run(world, experiment, progress, keep_weights, second, traced, keeping=keeping, restarts=restarts,
                      room_bytes=room_bytes if limited() else None)
            return measure_and_judge(comm, run)

    with alike_everywhere():
        let_blas_allocate()
        return world.run(program)[0]


def room_bytes(config: Config, held_bytes: int) -> int:
    """The memory of a step's peak beyond `held_bytes`, and a quarter more for gaps between arrays."""
    return max(expected(config).peak_total - held_bytes, 0) * 5 // 4


def measure_and_judge(comm: Communicator, run: Run) -> Outcome | None:
    """The outcome on rank 0, None on the others, which take part until all rows are judged."""
    measured = list(measure(comm, run))
    rows = []
    for config, found in zip(run.experiment.rows, measured, strict=True):
        divergence = first_divergence(comm, run.batches(config), found.evidence if found else None)
        if found is not None:
            rows.append(row_outcome(found, divergence))
    differences = row_differences(comm, parted(run, rows) if comm.rank == 0 else None)
    if comm.rank != 0:
        return None
    compares = run.experiment.scenario.check.reference
    return Outcome(run.experiment, rows if compares else compared_with_each_other(rows), differences)


def parted(run: Run, rows: Sequence[RowOutcome]) -> list[tuple[Batches, Batches]]:
    """The first row paired with each row that ends with different weights, where both equal their references.

    Rows with equal references count as one. Rows that split the model in different ways are not paired: their sums have
    different terms.
    """
    trained = {row.trained.config.course: row.trained for row in reversed(rows) if row.trained and row.trained.equal}
    different = [*reversed(trained.values())]
    others = [other for other in different[1:] if different[0].measured.weights_sha256 != other.measured.weights_sha256
              and different[0].config.model.task.parallel == other.config.model.task.parallel]
    return [(run.batches(different[0].config), run.batches(other.config)) for other in others]


def row_outcome(measured: Measurement, divergence: Divergence | None) -> RowOutcome:
    """The outcome of a row, on all numbers of ranks on which it was trained."""
    if not measured.fits:
        return RowOutcome(measured.config, None, what_it_needs(measured.config))
    elsewhere = {ranks: judged(each, None) if each.fits else None for ranks, each in measured.on_other_ranks.items()}
    return RowOutcome(measured.config, judged(measured, divergence), on_other_ranks=elsewhere)
