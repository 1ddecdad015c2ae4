"""`zerosim run`: a scenario, in the MPI world under a launcher, otherwise in the local one.

Rank 0 shows progress on standard error: live on a terminal, plain lines elsewhere.
"""

import argparse
import hashlib
import json
import shlex
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from safetensors.numpy import save

from zerosim.commands.arguments import NO_PYTHON, whole_number, whole_numbers
from zerosim.commands.output import RUN_WIDTH, check_writable, complain, conclude, console, standard_output
from zerosim.core.comm import Communicator
from zerosim.core.errors import LaunchError, UsageError, ZerosimError
from zerosim.core.files import write_bytes, write_text
from zerosim.core.words import duration
from zerosim.scenario import CollectiveScenario, Scenario, load, resolved
from zerosim.scenario.schema import parts_in
from zerosim.show.pictures import converter
from zerosim.show.prepared import Prepared, collectives, training
from zerosim.show.table import show_heading
from zerosim.show.trace_events import trace_events
from zerosim.training.program import Progress
from zerosim.worlds.launcher import launched
from zerosim.worlds.mpi import MpiWorld, connect
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.objects import broadcast_object, gather_objects
from zerosim.worlds.world import World, sharing


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
    parser.add_argument("--json", metavar="FILE", help="write the outcome as JSON; - is standard output")
    parser.add_argument("--weights", metavar="FILE", help="write the full final weights as safetensors")
    parser.add_argument(
        "--progress", choices=("auto", "live", "plain", "none"), default="auto",
        help="how to show progress on standard error; auto, the default, is live on a terminal, else plain lines")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with all results")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline of each rank as trace events, for Perfetto")
    parser.add_argument(
        "--trace-steps", metavar="FIRST..LAST", type=whole_numbers(1, 10**9),
        help="the steps to trace, 4 or 3..5, whose times the terminal shows; default the last, for a trace or a page")
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="show more: messages, bytes by kind and at the peak, padding, full digests")


def main(arguments: argparse.Namespace) -> int:
    """Run the scenario; 0 if every check held, 1 if one failed."""
    if launched() is not None:
        return run_as_one_of_many(connect(), arguments)
    prepared = requested(arguments)
    return run_and_show(prepared.local_world(), prepared, arguments) or 0


def run_as_one_of_many(comm: MpiCommunicator, arguments: argparse.Namespace) -> int:
    """Rank 0 reads the scenario first and prints its errors once; all ranks end alike."""
    prepared, refused = None, None
    if comm.rank == 0:
        try:
            prepared = requested(arguments)
            if (wanted := prepared.scenario.world.ranks) != comm.size:
                divides = ", which must divide train.micro_batches" * isinstance(prepared.scenario, Scenario)
                raise LaunchError(
                    f"the scenario wants {wanted} ranks and the launcher started {comm.size}: run it with mpirun -n "
                    f"{wanted}, or add --set world.ranks={comm.size}{divides}")
        except ZerosimError as error:
            refused = complain(error)
    refused = broadcast_object(comm, refused)
    if refused is not None:
        return int(refused)
    prepared = prepared or requested(arguments, comm.rank)
    if not have_read_the_same(comm, prepared):
        return LaunchError.exit_code
    if isinstance(prepared.scenario, Scenario):
        comm.timeout_seconds = prepared.scenario.world.timeout_seconds
    return int(broadcast_object(comm, run_and_show(MpiWorld(comm), prepared, arguments, rank=comm.rank)))


def run_and_show(world: World, prepared: Prepared, arguments: argparse.Namespace, rank: int = 0) -> int | None:
    """Run in a world, show the outcome, and write the requested files; the exit code on rank 0, None on others."""
    if rank == 0:
        show_heading(standard_output(arguments, RUN_WIDTH), prepared.scenario.title, prepared.scenario.caption,
                     f"{world.words}\n{prepared.setting}")
    outcome = prepared.run(world, progress(arguments, prepared.trainings), command_line(arguments, world.ranks))
    if outcome is None:
        return None
    try:
        if arguments.weights:
            weights = outcome.subject.trained[-1].measured.weights
            write_bytes(arguments.weights, save({
                name: view.copy() for unit, flat in weights.items() for name, view in unit.views(flat).items()}))
        if arguments.trace:
            traces = [(row.name, row.measured.trace) for row in outcome.subject.trained if row.measured.trace]
            write_text(arguments.trace, json.dumps(trace_events(traces, sharing(world.ranks, world.shared_cores))))
    finally:
        code = conclude(arguments, outcome)
    return code


def requested(arguments: argparse.Namespace, rank: int = 0) -> Prepared:
    """The scenario ready to run, with its data loaded and its checkpoint found. Rank 0 first refuses outputs that
    cannot be written, and a page that cannot be made."""
    if rank == 0:
        check_writable(arguments)
    if rank == 0 and arguments.report:
        converter()
    saving = [f"checkpoint.{key}={json.dumps(value)}" for key, value in (
        ("folder", arguments.checkpoint), ("every", arguments.every)) if value is not None]
    scenario = load(arguments.scenario, [*arguments.overrides, *saving], python=not arguments.no_python)
    if isinstance(scenario, CollectiveScenario):
        for flag in ("weights", "resume", "trace", "trace_steps", "report"):
            if getattr(arguments, flag):
                raise UsageError(f"a scenario of collectives trains nothing; remove --{flag.replace('_', '-')}")
        if scenario.world.sends != "buffered" and launched() is not None:
            raise scenario.origin.error(
                f"world.sends {scenario.world.sends} is for the local world; run it without mpirun", ("world", "sends"))
        return collectives(scenario)
    if arguments.every is not None and not scenario.checkpoint.folder:
        raise UsageError("--every needs a folder for checkpoints; add --checkpoint DIR")
    steps = scenario.train.steps
    traced = arguments.trace_steps or [steps] * bool(steps and (arguments.trace or arguments.report))
    first, last = min(traced, default=1), max(traced, default=0)
    if last > steps:
        raise UsageError(f"--trace-steps: there is no step {last}; train.steps = {steps}")
    if last - first != len(traced) - 1:
        raise UsageError(f"--trace-steps: {traced} has a gap; give one step or a range, {first}..{last}")
    return training(
        scenario, resume=arguments.resume, accept_python=arguments.accept_python, verbose=arguments.verbose,
        keep_weights=bool(arguments.weights), times=True,
        traced=range(first, last + 1))


def have_read_the_same(comm: Communicator, prepared: Prepared) -> bool:
    """Whether every rank has rank 0's scenario, Python files, data and checkpoints, by digest; rank 0 says if not."""
    code = {where: part.sha256 for where, part in parts_in(prepared.scenario)}
    own = hashlib.sha256(json.dumps([resolved(prepared.scenario), code, *prepared.inputs]).encode()).hexdigest()
    others = [rank for rank, digest in enumerate(gather_objects(comm, own) or []) if digest != own]
    if others:
        complain(LaunchError(
            f"rank {others[0]} read a different scenario or different data than rank 0; give all ranks the same files "
            f"and the same --set"))
    return bool(broadcast_object(comm, not others))


def command_line(arguments: argparse.Namespace, ranks: int) -> str:
    """The command line that runs this scenario once more, without the files that it writes."""
    launcher = [] if launched() is None else ["mpirun", "-n", str(ranks)]
    overrides = [word for override in arguments.overrides for word in ("--set", override)]
    resume = [] if arguments.resume is None else ["--resume", arguments.resume]
    return shlex.join([*launcher, "zerosim", "run", arguments.scenario, *overrides, *resume])


def progress(arguments: argparse.Namespace, trainings: int) -> Progress:
    """The requested display of so many trainings, or the one that suits rank 0's standard error."""
    if arguments.progress == "none":
        return Progress()
    target = console(arguments, stderr=True, width=RUN_WIDTH)
    live = arguments.progress == "live" or (arguments.progress == "auto" and target.is_terminal)
    return (LiveProgress if live else Plain)(target, trainings)


class Plain(Progress):
    """A few lines for each training, at evenly spaced steps, and one after `SECONDS` without, with the time left."""

    SECONDS = 5.0

    def __init__(self, console: Console, trainings: int) -> None:
        self._console, self._trainings, self._done = console, trainings, 0
        self._began = self._said = monotonic()

    def begin(self, title: str, steps: int) -> None:
        self._title, self._steps = title, steps

    def step(self, step: int, loss: float) -> None:
        self._done, now = self._done + 1, monotonic()
        late, whole = now - self._said >= self.SECONDS, max(self._trainings * self._steps, self._done)
        if not late and step not in {max(1, self._steps * third // 3) for third in range(4)}:
            return
        left = (now - self._began) / self._done * (whole - self._done)
        words = f"{self._title:<12} step {step:>{len(str(self._steps))}}/{self._steps}   loss {loss:.4f}"
        more = f"   {self._done / whole:.0%} of all, {duration(left)} left" if late else ""
        self._console.print(words + more, markup=False)
        self._said = now


class LiveProgress(Progress):
    """A bar of all steps, named after the present training, with the time left."""

    def __init__(self, console: Console, trainings: int) -> None:
        self._trainings = trainings
        self._bars = Bars(
            TextColumn("{task.description:<12}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"), TimeRemainingColumn(compact=True), console=console)

    def begin(self, title: str, steps: int) -> None:
        if not self._bars.task_ids:
            self._all = self._bars.add_task("", total=self._trainings * steps, words="loss …")
        self._bars.update(self._all, description=title)
        self._bars.start()

    def step(self, step: int, loss: float) -> None:
        self._bars.update(self._all, advance=1, words=f"loss {loss:.4f}")

    def end(self) -> None:
        """Stop the bar; may be called again, and before `begin`."""
        self._bars.stop()
