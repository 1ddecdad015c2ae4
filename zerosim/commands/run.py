"""`zerosim run`: a scenario, in the MPI world under a launcher, otherwise in the local one."""

import argparse
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from safetensors.numpy import save

from zerosim.allocation import Array
from zerosim.checkpoint.keeping import keeper
from zerosim.comm import Communicator
from zerosim.commands.arguments import steps_in_order, whole_number
from zerosim.commands.output import (
    check_writable,
    complain,
    console,
    standard_output,
    write_bytes,
    write_json,
    write_text,
)
from zerosim.commands.supervise import supervise
from zerosim.data import load_dataset
from zerosim.errors import LaunchError, UsageError, ZerosimError
from zerosim.report.collectives import collectives_document, described_values, show_collectives
from zerosim.report.document import document
from zerosim.report.figures import plural
from zerosim.report.page.page import page
from zerosim.report.page.run import runs_of
from zerosim.report.page.vega import converter
from zerosim.report.progress import Live, Plain
from zerosim.report.table import show_heading, show_outcome
from zerosim.report.trace_events import trace_events
from zerosim.scenario import CollectiveScenario, Scenario, load, resolved
from zerosim.scenario.reading import files_read
from zerosim.training.experiment import Experiment, prepare
from zerosim.training.run import Progress, Silent
from zerosim.verdict.collectives import programs_of, run_collectives_on
from zerosim.verdict.outcome import Outcome
from zerosim.verdict.run import run_on
from zerosim.worlds.launcher import launched, launched_rank, restarts
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.mpi import MpiCommunicator, MpiWorld, connect
from zerosim.worlds.objects import broadcast_object, gather_objects
from zerosim.worlds.world import World


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim run`."""
    parser.add_argument("scenario", help="a TOML file")
    parser.add_argument(
        "--set", metavar="A.B=VALUE", action="append", default=[], dest="overrides",
        help="replace a key of the scenario; may be given several times")
    parser.add_argument("--checkpoint", metavar="DIR", help="save the training state in this folder as rows train")
    parser.add_argument(
        "--every", metavar="STEPS", type=whole_number(1, 10**9), help="how many steps lie between two checkpoints; 1")
    parser.add_argument("--resume", metavar="DIR", help="go on from the last checkpoint in this folder")
    parser.add_argument(
        "--restarts", metavar="N", type=whole_number(0, 1000),
        help="start mpiexec, and if the run breaks, start it again so many times from the last checkpoint")
    parser.add_argument(
        "--min-ranks", metavar="N", type=whole_number(1, 10**6),
        help="let every restart have fewer ranks, the next number that the scenario allows, down to this")
    parser.add_argument("--json", metavar="FILE", help="write the whole outcome; - is standard output")
    parser.add_argument("--weights", metavar="FILE", help="write the full final weights as safetensors")
    parser.add_argument(
        "--progress", choices=("auto", "live", "plain", "none"), default="auto",
        help="how to show progress on standard error; auto, the default, is live on a terminal, else plain lines")
    parser.add_argument("--report", metavar="FILE", help="write a page of HTML with everything the run found out")
    parser.add_argument(
        "--timeline", action="store_true", help="draw below the table what ranks compute, send and receive in a step")
    parser.add_argument("--trace", metavar="FILE", help="write what each rank did when as trace events, for Perfetto")
    parser.add_argument(
        "--trace-steps", metavar="FIRST..LAST", type=steps_in_order,
        help="the steps to trace, 4 or 3..5; default the last, for --timeline alone the last 5")
    parser.add_argument(
        "-v", "--verbose", action="store_true",
        help="show what the table leaves out too: messages, bytes by kind and at the peak, padding, whole digests")


MOST_THREADS = 4096
WIDTH = 80
"""Columns of what a run shows where nobody says: launchers pipe it to terminals that may have no more."""


TIMELINE_STEPS = 5
"""So many of the last are traced for a timeline, which shows the one of median length."""


@dataclass(frozen=True)
class Job:
    """A scenario made ready: what runs it in a world, and what is said of it before and after."""

    scenario: Scenario | CollectiveScenario
    inputs_sha256: str
    """Of the scenario as resolved and of the data: what all ranks must have read alike."""
    run: Callable[[World], Any]
    setting: str
    show: Callable[[Console, Any], None]
    document: Callable[[Any, dict[str, Any]], dict[str, Any]]


def main(arguments: argparse.Namespace) -> int:
    """Run the scenario; 0 if every check held, 1 if one failed."""
    if arguments.min_ranks is not None and arguments.restarts is None:
        raise UsageError("--min-ranks is for restarts; add --restarts N")
    if launched() is None:
        return run_alone(arguments) if arguments.restarts is None else run_supervised(arguments)
    if arguments.restarts is not None:
        raise UsageError("--restarts starts the ranks itself: run it without mpirun")
    return run_as_one_of_many(connect(), arguments)


def run_alone(arguments: argparse.Namespace) -> int:
    check_outputs_of(arguments)
    job = prepared(arguments)
    check_writable(arguments, files_read(job.scenario))
    refuse_limit(job.scenario)
    world = local_world(job.scenario)
    announce(arguments, job, world)
    return conclude(arguments, job, job.run(world), world)


def run_supervised(arguments: argparse.Namespace) -> int:
    """Start the ranks, once all that can be known before is known to be right."""
    check_outputs_of(arguments)
    scenario = prepared(arguments).scenario
    check_writable(arguments, files_read(scenario))
    if not isinstance(scenario, Scenario):
        raise UsageError("a scenario of collectives has nothing to go on from; leave out --restarts")
    return supervise(arguments, scenario)


def local_world(scenario: Scenario | CollectiveScenario) -> LocalWorld:
    """A world in this process as the scenario wants it."""
    if isinstance(scenario, CollectiveScenario):
        sends: Any = scenario.world.sends
        return LocalWorld(scenario.world.ranks, sends=sends)
    if scenario.world.ranks > MOST_THREADS:
        raise UsageError(
            f"a run has at most {MOST_THREADS} ranks in one process, and the scenario wants {scenario.world.ranks}: "
            "zerosim plan is for more")
    return LocalWorld(scenario.world.ranks)


def refuse_limit(scenario: Scenario | CollectiveScenario) -> None:
    """A limit is on a process, and here all ranks share one."""
    if isinstance(scenario, Scenario) and scenario.world.memory_limit_mb:
        raise LaunchError(
            f"world.memory_limit_mb limits each rank's process, and here all ranks are in this one: "
            f"run it with mpirun -n {scenario.world.ranks}"
        )


def check_outputs_of(arguments: argparse.Namespace) -> None:
    """Refuse, before anything is read, what could not be written, and a page that could not be made."""
    check_writable(arguments, {"the scenario": arguments.scenario})
    if arguments.report:
        converter()


def run_as_one_of_many(comm: MpiCommunicator, arguments: argparse.Namespace) -> int:
    """Rank 0 reads the scenario first; what it cannot read it says once, and all ranks end alike."""
    job, refused = None, None
    if comm.rank == 0:
        try:
            check_outputs_of(arguments)
            job = prepared(arguments)
            check_writable(arguments, files_read(job.scenario))
            check_fits(job.scenario, comm, arguments)
        except ZerosimError as error:
            refused = complain(error)
    refused = broadcast_object(comm, refused)
    if refused is not None:
        return int(refused)
    job = job or prepared(arguments)
    if not have_read_the_same(comm, job):
        return LaunchError.exit_code

    if isinstance(job.scenario, Scenario):
        comm.timeout_seconds = job.scenario.world.timeout_seconds
    world = MpiWorld(comm)
    if comm.rank == 0:
        announce(arguments, job, world)
    outcome = job.run(world)
    code = conclude(arguments, job, outcome, world) if outcome is not None else None
    return int(broadcast_object(comm, code))


def prepared(arguments: argparse.Namespace) -> Job:
    """The scenario ready to run."""
    scenario = load(arguments.scenario, arguments.overrides)
    if isinstance(scenario, CollectiveScenario):
        return collective_job(scenario, arguments)
    saving = list(checkpoint_overrides(arguments))
    if saving:
        scenario = load(arguments.scenario, [*arguments.overrides, *saving])
    assert isinstance(scenario, Scenario)
    return training_job(scenario, arguments)


def checkpoint_overrides(arguments: argparse.Namespace) -> Iterator[str]:
    """The keys that flags stand for."""
    if arguments.checkpoint is not None:
        yield f"checkpoint.folder={json.dumps(arguments.checkpoint)}"
    if arguments.every is not None:
        yield f"checkpoint.every={arguments.every}"


def gone_on(experiment: Experiment) -> list[str]:
    """From which checkpoint each row goes on, if it does, in words."""
    return [
        f"{row.name} goes on after step {row.done} of {row.steps}, from {row.resumed.folder}, "
        f"saved by {row.resumed.last.stage.title} on {plural(row.resumed.last.ranks, 'rank')}"
        for row in experiment.rows if row.resumed is not None
    ]


def training_job(scenario: Scenario, arguments: argparse.Namespace) -> Job:
    if arguments.every is not None and not scenario.checkpoint.folder:
        raise UsageError("--every says how often to save, and nothing says where; add --checkpoint DIR")
    experiment, keeping = keeper(prepare(scenario, load_dataset(scenario)), arguments.resume)
    begun_before = restarts(resumes=arguments.resume is not None)
    scenario.faults_after(begun_before)
    whole = experiment.rows[0].model
    shown, keep_weights, traced = progress(arguments), bool(arguments.weights), traced_steps(arguments, scenario)

    def run(world: World) -> Outcome | None:
        with ended(shown):
            if keeping is not None and launched_rank() <= 0:
                keeping.begin()
            return run_on(
                world, experiment, shown, keep_weights=keep_weights, traced=traced, keeping=keeping,
                restarts=begun_before)

    return Job(
        scenario,
        inputs_digest(scenario, experiment.data_sha256, *gone_on(experiment)),
        run,
        "\n".join([f"{whole.words}, {whole.count:,} parameters, {scenario.train.optimizer}", *gone_on(experiment)]),
        partial(
            show_outcome, verbose=arguments.verbose, timed=launched() is not None, timeline=arguments.timeline),
        partial(document, command=command_line(arguments, scenario)),
    )


def command_line(arguments: argparse.Namespace, scenario: Scenario) -> str:
    """What runs this scenario once more, without the files that it writes."""
    launcher = [] if launched() is None else ["mpirun", "-n", str(scenario.world.ranks)]
    overrides = [word for each in arguments.overrides for word in ("--set", each)]
    resume = [] if arguments.resume is None else ["--resume", arguments.resume]
    return shlex.join([*launcher, "zerosim", "run", arguments.scenario, *overrides, *resume])


def traced_steps(arguments: argparse.Namespace, scenario: Scenario) -> range:
    """The steps to trace: those named, otherwise the last if a trace is asked for, a few if it is only a timeline."""
    steps, named = scenario.train.steps, arguments.trace_steps
    if named is None:
        count = 1 if arguments.trace or arguments.report else TIMELINE_STEPS * arguments.timeline
        return range(max(steps + 1 - count, 1), steps + 1)
    if named[-1] > steps:
        raise UsageError(f"--trace-steps: there is no step {named[-1]}; train.steps = {steps}")
    return range(named[0], named[-1] + 1)


@contextmanager
def ended(shown: Progress) -> Iterator[None]:
    """However a training ends, its bar does not outlive it, and the terminal has its cursor again."""
    try:
        yield
    finally:
        shown.end()


def collective_job(scenario: CollectiveScenario, arguments: argparse.Namespace) -> Job:
    for flag in ("weights", "checkpoint", "every", "resume"):
        if getattr(arguments, flag):
            raise UsageError(f"a scenario of collectives has no weights; leave out --{flag}")
    if arguments.trace or arguments.trace_steps or arguments.timeline:
        raise UsageError(
            "a scenario of collectives has no steps to trace; leave out --trace, --trace-steps and --timeline")
    if arguments.report:
        raise UsageError("a scenario of collectives has no page; leave out --report, and draw it with zerosim show")
    programs = programs_of(scenario)
    return Job(
        scenario,
        inputs_digest(scenario),
        lambda world: run_collectives_on(world, scenario, programs),
        described_values(scenario),
        show_collectives,
        collectives_document,
    )


def inputs_digest(scenario: Scenario | CollectiveScenario, *others: str) -> str:
    """SHA-256 of every key's value, and of what else was read."""
    return hashlib.sha256(json.dumps([resolved(scenario), *others]).encode()).hexdigest()


def have_read_the_same(comm: Communicator, job: Job) -> bool:
    """Whether every rank has the scenario and the data of rank 0, which complains if not."""
    digests = gather_objects(comm, job.inputs_sha256) or []
    others = [rank for rank, found in enumerate(digests) if found != job.inputs_sha256]
    if others:
        complain(LaunchError(
            f"rank {others[0]} has read another scenario or other data than rank 0; give all ranks the same files "
            "and the same --set"
        ))
    return bool(broadcast_object(comm, not others))


def check_fits(scenario: Scenario | CollectiveScenario, comm: Communicator, arguments: argparse.Namespace) -> None:
    """Refuse a scenario that wants another number of ranks, or what only the local world has."""
    if isinstance(scenario, CollectiveScenario) and scenario.world.sends != "buffered":
        raise scenario.origin.error(
            f"world.sends {scenario.world.sends} is for the local world; run it without mpirun", ("world", "sends")
        )
    wanted = scenario.world.ranks
    if wanted != comm.size:
        others = advice(scenario, comm.size, arguments)
        raise LaunchError(
            f"the scenario wants {wanted} ranks and the launcher started {comm.size}: "
            f"run it with mpirun -n {wanted}{f', or add {others}' if others else ''}"
        )


def advice(scenario: Scenario | CollectiveScenario, ranks: int, arguments: argparse.Namespace) -> str:
    """The flags with which the scenario runs on so many ranks, which has been tried; nothing if none were found."""
    tried = [[f"world.ranks={ranks}"]]
    if isinstance(scenario, Scenario):
        nearest = max(1, round(scenario.train.micro_batches / ranks)) * ranks
        tried.append([*tried[0], f"train.micro_batches={nearest}"])
    for overrides in tried:
        with suppress(ZerosimError):
            prepared(argparse.Namespace(**(vars(arguments) | {"overrides": [*arguments.overrides, *overrides]})))
            return " ".join(f"--set {each}" for each in overrides)
    return ""


def announce(arguments: argparse.Namespace, job: Job, world: World) -> None:
    place = f"{world.words}\n{job.setting}"
    show_heading(standard_output(arguments, WIDTH), job.scenario.title, job.scenario.caption, place)


def conclude(arguments: argparse.Namespace, job: Job, outcome: Any, world: World) -> int:
    """Show the outcome, write what was asked for, and give the exit code."""
    job.show(standard_output(arguments, WIDTH), outcome)
    if arguments.weights:
        write_weights(arguments.weights, outcome)
    if arguments.trace:
        traces = [(stage.name, stage.trace) for stage in outcome.stages if stage.trace]
        write_text(arguments.trace, json.dumps(trace_events(traces)))
    if arguments.json or arguments.report:
        found = job.document(outcome, {"kind": world.kind, "ranks": world.ranks, "library": world.library})
        if arguments.json:
            write_json(arguments.json, found)
        if arguments.report:
            write_text(arguments.report, page(runs_of([found], ["this run"])))
    return 0 if outcome.passed else 1


def write_weights(path: str, outcome: Outcome) -> None:
    """The final weights of the last row that was trained as safetensors, a tensor for each parameter."""
    weights = outcome.stages[-1].weights
    assert weights is not None
    tensors: dict[str, Array] = {}
    for unit, flat in weights.items():
        tensors |= {name: view.copy() for name, view in unit.views(flat).items()}
    write_bytes(path, save(tensors))


def progress(arguments: argparse.Namespace) -> Progress:
    """The manner that was asked for, or the one that suits rank 0's standard error."""
    if arguments.progress == "none":
        return Silent()
    target = console(arguments, stderr=True, width=WIDTH)
    live = arguments.progress == "live" or (arguments.progress == "auto" and target.is_terminal)
    return Live(target) if live else Plain(target)
