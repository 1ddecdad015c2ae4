"""Measure and judge: the whole run on every rank, in the local world and under MPI."""

from collections.abc import Sequence

from zerosim.comm import Communicator
from zerosim.figures.shapes import expected
from zerosim.instruments.resident import MemoryLimit, keep_freed, let_blas_allocate, limited, return_freed
from zerosim.training.alike import alike_everywhere
from zerosim.training.batches import Batches
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.measurement import Measurement
from zerosim.training.program import Keeping, Progress, Run, measure
from zerosim.verdict.diagnosis import Divergence, first_divergence
from zerosim.verdict.judge import compared_with_each_other, judged, what_it_needs
from zerosim.verdict.outcome import Outcome, RowOutcome
from zerosim.verdict.row_difference import row_differences
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World

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
