"""`zerosim run`: a scenario, in the MPI world under a launcher, otherwise in the local one.

Rank 0 shows progress on standard error: live on a terminal, plain lines elsewhere.
"""

import argparse
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from safetensors.numpy import save

from zerosim.commands.arguments import NO_PYTHON, steps_in_order, whole_number
from zerosim.commands.output import (
    RUN_WIDTH,
    check_writable,
    complain,
    console,
    files_of_scenario,
    standard_output,
    write_json,
)
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import LaunchError, UsageError, ZerosimError
from zerosim.core.files import write_bytes, write_text
from zerosim.proofs.programs import collectives_world, programs_of, run_collectives
from zerosim.scenario import CollectiveScenario, Scenario, load, resolved
from zerosim.scenario.schema import parts_in, python_run
from zerosim.show.collectives import collectives_document, described_values, show_collectives
from zerosim.show.document import RunDocument, document, sharing, world_document, written
from zerosim.show.pictures import converter
from zerosim.show.table import show_heading, show_run
from zerosim.show.trace_events import trace_events
from zerosim.training.keeping import resumptions
from zerosim.training.program import Progress, Silent
from zerosim.verdict.judged_run import local_world, prepare_run, run_on
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
    parser.add_argument("--json", metavar="FILE", help="write the outcome as JSON; - is standard output")
    parser.add_argument("--weights", metavar="FILE", help="write the full final weights as safetensors")
    parser.add_argument(
        "--progress", choices=("auto", "live", "plain", "none"), default="auto",
        help="how to show progress on standard error; auto, the default, is live on a terminal, else plain lines")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with all results")
    parser.add_argument("--trace", metavar="FILE", help="write a timeline of each rank as trace events, for Perfetto")
    parser.add_argument(
        "--trace-steps", metavar="FIRST..LAST", type=steps_in_order,
        help="the steps to trace, 4 or 3..5, whose times the terminal shows; default the last, for a trace or a page")
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="show more: messages, bytes by kind and at the peak, padding, full digests")


@dataclass(frozen=True)
class Prepared:
    """A scenario ready to run, and what differs between training and collectives."""

    scenario: Scenario | CollectiveScenario
    inputs_sha256: str
    """SHA-256 of the resolved scenario, of users' code and of the data, which must be equal on all ranks."""
    setting: str
    """The description of the run, in a few lines."""
    files: Mapping[str, Path]
    """The input files, by purpose."""
    run: Callable[[World, Progress], Any]
    """The outcome in the process that has rank 0, None in others."""
    show: Callable[[Console, Any, Any], None]
    """Prints an outcome, whose document is given too."""
    document: Callable[[Any, World, str], Any]
    """The outcome as a `RunDocument`, or as a dict in JSON's own types."""


def main(arguments: argparse.Namespace) -> int:
    """Run the scenario; 0 if every check held, 1 if one failed."""
    return run_alone(arguments) if launched() is None else run_as_one_of_many(connect(), arguments)


def run_alone(arguments: argparse.Namespace) -> int:
    """Run with all ranks in this process."""
    prepared = prepare(arguments)
    scenario = prepared.scenario
    world = local_world(scenario) if isinstance(scenario, Scenario) else collectives_world(scenario)
    announce(arguments, prepared, world)
    return conclude(arguments, prepared, prepared.run(world, progress(arguments)), world)


def prepare(arguments: argparse.Namespace) -> Prepared:
    """The scenario ready to run; outputs that cannot be written, and a page that cannot be made, are refused first."""
    check_writable(arguments, {"the scenario": arguments.scenario})
    if arguments.report:
        converter()
    prepared = requested(arguments)
    check_writable(arguments, prepared.files)
    return prepared


def requested(arguments: argparse.Namespace, *overrides: str) -> Prepared:
    """The scenario ready to run, after these overrides too."""
    overrides = (*arguments.overrides, *overrides)
    scenario = load(arguments.scenario, overrides, python=not arguments.no_python)
    if isinstance(scenario, CollectiveScenario):
        return collectives(scenario, arguments)
    if saving := [f"checkpoint.{key}={json.dumps(value)}" for key, value in (
            ("folder", arguments.checkpoint), ("every", arguments.every)) if value is not None]:
        scenario = load(arguments.scenario, (*overrides, *saving), python=not arguments.no_python)
    assert isinstance(scenario, Scenario)
    return training(scenario, arguments)


def training(scenario: Scenario, arguments: argparse.Namespace) -> Prepared:
    """A scenario of training ready to run, with its data loaded and its checkpoint found."""
    if arguments.every is not None and not scenario.checkpoint.folder:
        raise UsageError("--every needs a folder for checkpoints; add --checkpoint DIR")
    experiment = prepare_run(
        scenario, resume=arguments.resume, accept_python=arguments.accept_python,
        keep_weights=bool(arguments.weights), traced=traced_steps(scenario.train.steps, arguments))
    whole, begins = experiment.rows[0].in_one_piece, resumptions(experiment)
    about = f"{whole.words}, {whole.count:,} parameters, {scenario.train.optimizer}"
    return Prepared(
        scenario, inputs_digest(scenario, experiment.data_sha256, *begins),
        "\n".join([about, *python_run(scenario), *begins]), files_of_scenario(scenario),
        run=lambda world, progress: run_on(world, experiment, progress),
        show=lambda console, _, run: show_run(console, run, verbose=arguments.verbose),
        document=lambda outcome, world, command: document(outcome, world_document(world), command))


def collectives(scenario: CollectiveScenario, arguments: argparse.Namespace) -> Prepared:
    """A scenario of collectives ready to run; `UsageError` for flags that only trainings have."""
    for flag in ("weights", "checkpoint", "every", "resume"):
        if getattr(arguments, flag):
            raise UsageError(f"a scenario of collectives has no weights; remove --{flag}")
    if arguments.trace or arguments.trace_steps:
        raise UsageError("a scenario of collectives has no steps to trace; remove --trace and --trace-steps")
    if arguments.report:
        raise UsageError("a scenario of collectives has no page; remove --report, and draw it with zerosim show")
    if scenario.world.sends != "buffered" and launched() is not None:
        raise scenario.origin.error(
            f"world.sends {scenario.world.sends} is for the local world; run it without mpirun", ("world", "sends"))
    programs, files = programs_of(scenario), {"the scenario": Path(scenario.origin.file)}
    for p, program in enumerate(scenario.program):
        for c, call in enumerate(program.calls):
            if file := call.rpartition(":")[0]:
                files[file] = scenario.origin.folder(("program", p, "calls", c)) / file
    return Prepared(
        scenario, inputs_digest(scenario), described_values(scenario), files,
        run=lambda world, _: world.run(lambda comm: run_collectives(comm, scenario, programs))[0],
        show=lambda console, outcome, _: show_collectives(console, outcome),
        document=lambda outcome, world, _: collectives_document(outcome, world_document(world)))


def traced_steps(steps: int, arguments: argparse.Namespace) -> range:
    """The steps to trace: the named ones, or the last if a trace or a page is asked for."""
    named: range | None = arguments.trace_steps
    if named is None:
        return range(max(steps, 1), steps + 1) if arguments.trace or arguments.report else range(0)
    if named[-1] > steps:
        raise UsageError(f"--trace-steps: there is no step {named[-1]}; train.steps = {steps}")
    return range(named[0], named[-1] + 1)


def inputs_digest(scenario: Scenario | CollectiveScenario, *others: str) -> str:
    """SHA-256 of every key's value, of the Python files that keys name, and of other inputs."""
    code = {where: part.sha256 for where, part in parts_in(scenario)}
    return hashlib.sha256(json.dumps([resolved(scenario), code, *others]).encode()).hexdigest()


def run_as_one_of_many(comm: MpiCommunicator, arguments: argparse.Namespace) -> int:
    """Rank 0 reads the scenario first and prints its errors once; all ranks end alike."""
    prepared, refused = None, None
    if comm.rank == 0:
        try:
            prepared = prepare(arguments)
            check_ranks(prepared.scenario, comm.size, arguments)
        except ZerosimError as error:
            refused = complain(error)
    refused = broadcast_object(comm, refused)
    if refused is not None:
        return int(refused)
    prepared = prepared or requested(arguments)
    if not have_read_the_same(comm, prepared.inputs_sha256):
        return LaunchError.exit_code

    if isinstance(prepared.scenario, Scenario):
        comm.timeout_seconds = prepared.scenario.world.timeout_seconds
    world = MpiWorld(comm)
    if comm.rank == 0:
        announce(arguments, prepared, world)
    outcome = prepared.run(world, progress(arguments))
    code = conclude(arguments, prepared, outcome, world) if outcome is not None else None
    return int(broadcast_object(comm, code))


def command_line(arguments: argparse.Namespace, ranks: int) -> str:
    """The command line that runs this scenario once more, without the files that it writes."""
    launcher = [] if launched() is None else ["mpirun", "-n", str(ranks)]
    overrides = [word for each in arguments.overrides for word in ("--set", each)]
    resume = [] if arguments.resume is None else ["--resume", arguments.resume]
    return shlex.join([*launcher, "zerosim", "run", arguments.scenario, *overrides, *resume])


def have_read_the_same(comm: Communicator, mine: str) -> bool:
    """Whether every rank has the scenario and the data of rank 0, by their digest; rank 0 prints an error if not."""
    digests = gather_objects(comm, mine) or []
    others = [rank for rank, theirs in enumerate(digests) if theirs != mine]
    if others:
        complain(LaunchError(
            f"rank {others[0]} read a different scenario or different data than rank 0; give all ranks the same files "
            f"and the same --set"
        ))
    return bool(broadcast_object(comm, not others))


def check_ranks(scenario: Scenario | CollectiveScenario, size: int, arguments: argparse.Namespace) -> None:
    """Refuse a scenario with a different number of ranks than were launched; names overrides that would mend it."""
    wanted, mended = scenario.world.ranks, [f"world.ranks={size}"]
    if wanted == size:
        return
    choices = [mended]
    if isinstance(scenario, Scenario):
        nearest = max(1, round(scenario.train.micro_batches / size)) * size
        choices.append([*mended, f"train.micro_batches={nearest}"])
    others = ""
    for more in reversed(choices):
        with suppress(ZerosimError):
            requested(arguments, *more)
            others = f", or add {' '.join(f'--set {each}' for each in more)}"
    raise LaunchError(f"the scenario wants {wanted} ranks and the launcher started {size}: run it with mpirun -n "
                      f"{wanted}{others}")


def announce(arguments: argparse.Namespace, prepared: Prepared, world: World) -> None:
    place, scenario = f"{world.words}\n{prepared.setting}", prepared.scenario
    show_heading(standard_output(arguments, RUN_WIDTH), scenario.title, scenario.caption, place)


def conclude(arguments: argparse.Namespace, prepared: Prepared, outcome: Any, world: World) -> int:
    """Show the outcome, write the requested files, and return the exit code."""
    found = prepared.document(outcome, world, command_line(arguments, world.ranks))
    prepared.show(standard_output(arguments, RUN_WIDTH), outcome, found)
    if arguments.weights:
        write_weights(arguments.weights, outcome)
    if arguments.trace:
        traces = [(row.name, row.measured.trace) for row in outcome.trained if row.measured.trace]
        write_text(arguments.trace, json.dumps(trace_events(traces, sharing(world.ranks, world.shared_cores))))
    if arguments.json:
        write_json(arguments.json, written(found) if isinstance(found, RunDocument) else found)
    if arguments.report:
        from zerosim.show.page import page  # noqa: PLC0415 - a quarter of a run's imports

        write_text(arguments.report, page([found]))
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
