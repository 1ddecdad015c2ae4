"""The command line: `zerosim COMMAND`, also as `python -m zerosim`."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zerosim.errors import LaunchError, ScenarioError, ZerosimError

if TYPE_CHECKING:
    from rich.console import Console

    from zerosim.comm import Communicator
    from zerosim.recipe import Recipe
    from zerosim.run import Outcome, Progress

PASSED, FAILED, WRONG, BROKEN = 0, 1, 2, 3
"""Exit codes: every check held; one failed; the scenario or command line is wrong; the run itself broke."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parsed = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = parsed.command
    return command(parsed)


def parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    top = argparse.ArgumentParser(
        prog="zerosim",
        description="Train by DDP and ZeRO Stages I, II and III under MPI, every bit checked against one process.",
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_run(commands.add_parser("run", help="run a scenario file"))
    return top


def add_run(run: argparse.ArgumentParser) -> None:
    run.description = "Run a scenario: under mpirun or srun as one of its ranks, otherwise all ranks in this process."
    run.add_argument("scenario", help="a TOML file")
    run.add_argument(
        "--set", metavar="A.B=VALUE", action="append", default=[], dest="overrides",
        help="replace a key of the scenario; may be given several times",
    )
    run.add_argument("--json", metavar="FILE", help="write the whole outcome; - is standard output")
    run.add_argument("--weights", metavar="FILE", help="write the full final weights as safetensors")
    run.add_argument(
        "--progress", choices=("auto", "live", "plain", "none"), default="auto",
        help="how to show progress on standard error (default: live on a terminal, plain lines elsewhere)",
    )
    run.set_defaults(command=run_command)


def run_command(arguments: argparse.Namespace) -> int:
    """`zerosim run`: in the MPI world when a launcher started this process, otherwise in the local one."""
    from zerosim.worlds.mpi import connect, launched

    if launched() is None:
        return run_alone(arguments)
    return run_as_one_rank(connect(), arguments)


def run_alone(arguments: argparse.Namespace) -> int:
    from zerosim.run import run_locally

    try:
        recipe = load_recipe(arguments)
        world = {"kind": "local", "ranks": recipe.scenario.world.ranks, "library": "threads"}
        announce(arguments, recipe, world)
        outcome = run_locally(recipe, progress(arguments), keep_weights=bool(arguments.weights))
        return conclude(arguments, outcome, world)
    except ZerosimError as error:
        return complain(error)


def run_as_one_rank(comm: Any, arguments: argparse.Namespace) -> int:
    """Rank 0 reads the scenario, speaks and writes; what it cannot read ends all ranks without a word more."""
    from zerosim.run import run_as_rank
    from zerosim.worlds.objects import broadcast_object

    recipe, refused = None, None
    if comm.rank == 0:
        try:
            recipe = load_recipe(arguments)
            check_ranks(recipe, comm)
        except ZerosimError as error:
            refused = complain(error)
    refused = broadcast_object(comm, refused)
    if refused is not None:
        return refused
    recipe = recipe or load_recipe(arguments)

    world = {"kind": "mpi", "ranks": comm.size, "library": comm.library}
    if comm.rank == 0:
        announce(arguments, recipe, world)
    outcome = run_as_rank(comm, recipe, progress(arguments), keep_weights=bool(arguments.weights))
    code = conclude(arguments, outcome, world) if outcome is not None else None
    return int(broadcast_object(comm, code))


def load_recipe(arguments: argparse.Namespace) -> "Recipe":
    """The scenario with its data, after making sure that what is to be written can be."""
    from zerosim.recipe import prepare
    from zerosim.scenario import load
    from zerosim.scenario.dataset import load_dataset

    for flag in ("json", "weights"):
        check_writable(f"--{flag}", getattr(arguments, flag))
    scenario = load(arguments.scenario, arguments.overrides)
    return prepare(scenario, load_dataset(scenario))


def check_writable(flag: str, path: str | None) -> None:
    if path is None or (flag == "--json" and path == "-"):
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ScenarioError(f"cannot write {path}: name a file in a folder that exists", file=flag)


def check_ranks(recipe: "Recipe", comm: "Communicator") -> None:
    wanted = recipe.scenario.world.ranks
    if wanted != comm.size:
        raise LaunchError(
            f"the scenario wants {wanted} ranks and the launcher started {comm.size}: "
            f"run it with mpirun -n {wanted}, or add --set world.ranks={comm.size}"
        )


def announce(arguments: argparse.Namespace, recipe: "Recipe", world: dict[str, Any]) -> None:
    from zerosim.report.table import show_heading

    scenario = recipe.scenario
    ranks = f"{world['ranks']} ranks" if world["ranks"] != 1 else "1 rank"
    place = (
        f"{ranks}, one process each, over {world['library']}"
        if world["kind"] == "mpi"
        else f"{ranks} in this process (local world; mpirun -n {world['ranks']} makes them real)"
    )
    model = "-".join(map(str, [recipe.model.inputs, *scenario.model.hidden, recipe.model.outputs]))
    setting = f"{place}\n{model} MLP, {recipe.model.count:,} parameters, {scenario.train.optimizer}"
    show_heading(standard_output(arguments), scenario.title, scenario.caption, setting)


def conclude(arguments: argparse.Namespace, outcome: "Outcome", world: dict[str, Any]) -> int:
    """Show the outcome, write what was asked for, and give the exit code."""
    from zerosim.report.document import document
    from zerosim.report.table import show_outcome

    show_outcome(standard_output(arguments), outcome)
    if arguments.weights:
        write_weights(arguments.weights, outcome)
    if arguments.json:
        text = json.dumps(document(outcome, world), indent=1, allow_nan=False) + "\n"
        if arguments.json == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            with open(arguments.json, "w", encoding="utf-8") as file:
                file.write(text)
    return PASSED if outcome.passed else FAILED


def write_weights(path: str, outcome: "Outcome") -> None:
    """The last stage's final weights as safetensors, a tensor for each parameter."""
    from safetensors.numpy import save_file

    weights = outcome.stages[-1].weights
    assert weights is not None
    tensors = {}
    for unit, flat in weights.items():
        tensors |= {name: view.copy() for name, view in unit.views(flat).items()}
    save_file(tensors, path)


def complain(error: ZerosimError) -> int:
    """One line on standard error; the exit code that belongs to it."""
    print(f"zerosim: {error}" if not isinstance(error, ScenarioError) else error, file=sys.stderr)
    return error.exit_code


def standard_output(arguments: argparse.Namespace) -> "Console":
    """Where the table goes: standard output, unless the JSON document goes there."""
    return console(arguments, stderr=arguments.json == "-")


def progress(arguments: argparse.Namespace) -> "Progress":
    """The manner that was asked for, or the one that suits rank 0's standard error."""
    from zerosim.report.progress import Live, Plain
    from zerosim.run import Silent

    if arguments.progress == "none":
        return Silent()
    target = console(arguments, stderr=True)
    live = arguments.progress == "live" or (arguments.progress == "auto" and target.is_terminal)
    return Live(target) if live else Plain(target)


def console(arguments: argparse.Namespace, *, stderr: bool) -> "Console":
    from rich.console import Console

    forced = True if arguments.progress == "live" else None
    found = Console(stderr=stderr, force_terminal=forced)
    return found if found.is_terminal else Console(stderr=stderr, width=max(found.width, WIDTH))


WIDTH = 100
"""Columns of a table that goes to a file or a pipe."""
