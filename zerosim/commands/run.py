"""`zerosim run`: a scenario, in the MPI world under a launcher, otherwise in the local one.

Rank 0 shows progress on standard error: live on a terminal, plain lines elsewhere.
"""

import argparse
import json
import shlex
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from safetensors.numpy import save

from zerosim.commands.arguments import NO_PYTHON, steps_in_order, whole_number
from zerosim.commands.output import RUN_WIDTH, check_writable, complain, console, standard_output, write_json
from zerosim.commands.supervise import supervise
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import LaunchError, UsageError, ZerosimError
from zerosim.core.files import write_bytes, write_text
from zerosim.jobs import Job, Request, load_job, overrides_for
from zerosim.scenario import Scenario
from zerosim.show.page.pictures import converter
from zerosim.show.run_document import runs_of, sharing
from zerosim.show.table import show_heading
from zerosim.show.trace_events import trace_events
from zerosim.training.program import Progress, Silent
from zerosim.verdict.outcome import Outcome
from zerosim.worlds.launcher import launched
from zerosim.worlds.mpi import MpiWorld, connect
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.objects import broadcast_object, gather_objects
from zerosim.worlds.world import World


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim run`."""
    parser.add_argument("scenario", help="a TOML file, or a name that zerosim scenarios lists")
    parser.add_argument(
        "--set", metavar="A.B=VALUE", action="append", default=[], dest="overrides",
        help="replace a key of the scenario; may be given several times")
    parser.add_argument("--checkpoint", metavar="DIR", help="save checkpoints in this folder")
    parser.add_argument(
        "--every", metavar="STEPS", type=whole_number(1, 10**9), help="steps between two checkpoints; default 1")
    parser.add_argument("--resume", metavar="DIR", help="resume from the last checkpoint in this folder")
    parser.add_argument(
        "--accept-python", action="store_true", help="resume even if a Python file that the scenario names has changed")
    parser.add_argument("--no-python", action="store_true", help=NO_PYTHON)
    parser.add_argument(
        "--restarts", metavar="N", type=whole_number(0, 1000),
        help="start mpiexec, and after a failure restart from the last checkpoint, up to so many times")
    parser.add_argument(
        "--min-ranks", metavar="N", type=whole_number(1, 10**6),
        help="with --restarts: restart on fewer ranks each time, down to this number")
    parser.add_argument("--json", metavar="FILE", help="write the outcome as JSON; - is standard output")
    parser.add_argument("--weights", metavar="FILE", help="write the full final weights as safetensors")
    parser.add_argument(
        "--progress", choices=("auto", "live", "plain", "none"), default="auto",
        help="how to show progress on standard error; auto, the default, is live on a terminal, else plain lines")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with all results")
    parser.add_argument(
        "--timeline", action="store_true", help="draw a step of each row below the table: computation and messages of "
                                                "each rank")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline of each rank as trace events, for Perfetto")
    parser.add_argument(
        "--trace-steps", metavar="FIRST..LAST", type=steps_in_order,
        help="the steps to trace, 4 or 3..5; default the last, for --timeline alone the last 5")
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="show more: messages, bytes by kind and at the peak, padding, full digests")


def main(arguments: argparse.Namespace) -> int:
    """Run the scenario; 0 if every check held, 1 if one failed."""
    if arguments.min_ranks is not None and arguments.restarts is None:
        raise UsageError("--min-ranks is for restarts; add --restarts N")
    if launched() is None:
        return run_alone(arguments) if arguments.restarts is None else run_supervised(arguments)
    if arguments.restarts is not None:
        raise UsageError("--restarts starts the ranks itself; run it without mpirun")
    return run_as_one_of_many(connect(), arguments)


def run_alone(arguments: argparse.Namespace) -> int:
    """Run with all ranks in this process."""
    job = prepared(arguments)
    job.check_local()
    world = job.local_world()
    announce(arguments, job, world)
    return conclude(arguments, job, job.run(world, progress(arguments)), world)


def run_supervised(arguments: argparse.Namespace) -> int:
    """Start the ranks, after all checks that need no ranks."""
    job = prepared(arguments)
    job.check_resumable()
    assert isinstance(job.scenario, Scenario)
    return supervise(arguments, job.scenario)


def prepared(arguments: argparse.Namespace) -> Job:
    """The scenario ready to run; outputs that cannot be written, and a page that cannot be made, are refused first."""
    check_writable(arguments, {"the scenario": arguments.scenario})
    if arguments.report:
        converter()
    job = requested(arguments)
    check_writable(arguments, job.files)
    return job


def run_as_one_of_many(comm: MpiCommunicator, arguments: argparse.Namespace) -> int:
    """Rank 0 reads the scenario first and prints its errors once; all ranks end alike."""
    job, refused = None, None
    if comm.rank == 0:
        try:
            job = prepared(arguments)
            job.check_launched()
            check_ranks(job, comm.size, arguments)
        except ZerosimError as error:
            refused = complain(error)
    refused = broadcast_object(comm, refused)
    if refused is not None:
        return int(refused)
    job = job or requested(arguments)
    if not have_read_the_same(comm, job):
        return LaunchError.exit_code

    if job.timeout_seconds is not None:
        comm.timeout_seconds = job.timeout_seconds
    world = MpiWorld(comm)
    if comm.rank == 0:
        announce(arguments, job, world)
    outcome = job.run(world, progress(arguments))
    code = conclude(arguments, job, outcome, world) if outcome is not None else None
    return int(broadcast_object(comm, code))


def request(arguments: argparse.Namespace) -> Request:
    """The flags as a `Request`."""
    return Request(
        checkpoint=arguments.checkpoint, every=arguments.every, resume=arguments.resume,
        weights=bool(arguments.weights), report=bool(arguments.report), trace=bool(arguments.trace),
        trace_steps=arguments.trace_steps, timeline=arguments.timeline,
        python=not arguments.no_python, accept_python=arguments.accept_python)


def requested(arguments: argparse.Namespace) -> Job:
    """The scenario ready to run."""
    return load_job(arguments.scenario, arguments.overrides, request(arguments))


def command_line(arguments: argparse.Namespace, ranks: int) -> str:
    """The command line that runs this scenario once more, without the files that it writes."""
    launcher = [] if launched() is None else ["mpirun", "-n", str(ranks)]
    overrides = [word for each in arguments.overrides for word in ("--set", each)]
    resume = [] if arguments.resume is None else ["--resume", arguments.resume]
    return shlex.join([*launcher, "zerosim", "run", arguments.scenario, *overrides, *resume])


def have_read_the_same(comm: Communicator, job: Job) -> bool:
    """Whether every rank has the scenario and the data of rank 0, which prints an error if not."""
    mine = job.inputs_sha256
    digests = gather_objects(comm, mine) or []
    others = [rank for rank, found in enumerate(digests) if found != mine]
    if others:
        complain(LaunchError(
            f"rank {others[0]} read a different scenario or different data than rank 0; give all ranks the same files "
            f"and the same --set"
        ))
    return bool(broadcast_object(comm, not others))


def check_ranks(job: Job, size: int, arguments: argparse.Namespace) -> None:
    """Refuse a scenario with a different number of ranks than were launched."""
    wanted = job.scenario.world.ranks
    if wanted != size:
        more = overrides_for(size, arguments.scenario, arguments.overrides, request(arguments), job)
        others = " ".join(f"--set {each}" for each in more)
        raise LaunchError(
            f"the scenario wants {wanted} ranks and the launcher started {size}: run it with mpirun -n "
            f"{wanted}{f', or add {others}' if others else ''}"
        )


def announce(arguments: argparse.Namespace, job: Job, world: World) -> None:
    place = f"{world.words}\n{job.setting}"
    show_heading(standard_output(arguments, RUN_WIDTH), job.scenario.title, job.scenario.caption, place)


def conclude(arguments: argparse.Namespace, job: Job, outcome: Any, world: World) -> int:
    """Show the outcome, write the requested files, and return the exit code."""
    found = job.document(outcome, world, command_line(arguments, world.ranks))
    job.show(standard_output(arguments, RUN_WIDTH), outcome, found, verbose=arguments.verbose,
             timeline=arguments.timeline)
    if arguments.weights:
        write_weights(arguments.weights, outcome)
    if arguments.trace:
        traces = [(row.name, row.measured.trace) for row in outcome.trained if row.measured.trace]
        write_text(arguments.trace, json.dumps(trace_events(traces, sharing(world.ranks, world.shared_cores))))
    if arguments.json:
        write_json(arguments.json, found)
    if arguments.report:
        from zerosim.show.page.page import page  # noqa: PLC0415 - a quarter of a run's imports

        write_text(arguments.report, page(runs_of([found], ["this run"])))
    return 0 if outcome.passed else 1


def write_weights(path: str, outcome: Outcome) -> None:
    """Write the final weights of the last trained row as safetensors, a tensor for each parameter."""
    weights = outcome.trained[-1].measured.weights
    assert weights is not None
    tensors: dict[str, Array] = {}
    for unit, flat in weights.items():
        tensors |= {name: view.copy() for name, view in unit.views(flat).items()}
    write_bytes(path, save(tensors))


def progress(arguments: argparse.Namespace) -> Progress:
    """The requested display of progress, or the one that suits rank 0's standard error."""
    if arguments.progress == "none":
        return Silent()
    target = console(arguments, stderr=True, width=RUN_WIDTH)
    live = arguments.progress == "live" or (arguments.progress == "auto" and target.is_terminal)
    return LiveProgress(target) if live else Plain(target)


PLAIN_LINES = 3


class Plain:
    """A few lines for each training, at evenly spaced steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title, self._steps = "", 0

    def begin(self, title: str, steps: int) -> None:
        self._title, self._steps = title, steps

    def step(self, step: int, loss: float) -> None:
        marks = {max(1, self._steps * mark // PLAIN_LINES) for mark in range(PLAIN_LINES + 1)}
        if step in marks:
            self._console.print(
                f"{self._title:<12} step {step:>{len(str(self._steps))}}/{self._steps}   loss {loss:.4f}",
                markup=False,
            )

    def end(self) -> None: ...


class LiveProgress:
    """A bar for each training, which stays when it has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._task = TaskID(0)

    def begin(self, title: str, steps: int) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            console=self._console,
        )
        self._task = self._bars.add_task(title, total=steps, loss="…")
        self._bars.start()

    def step(self, step: int, loss: float) -> None:
        assert self._bars is not None
        self._bars.update(self._task, completed=step, loss=f"{loss:.4f}")

    def end(self) -> None:
        """Stop the bar; may be called again, and before `begin`."""
        if self._bars is not None:
            self._bars.stop()
