"""`zerosim run`: a scenario, in the MPI world under a launcher, otherwise in the local one."""

import argparse
import os
from typing import Any

from safetensors.numpy import save_file

from zerosim.allocation import Array
from zerosim.comm import Communicator
from zerosim.commands.output import complain, console, standard_output, write_json
from zerosim.errors import LaunchError, ScenarioError, ZerosimError
from zerosim.recipe import Recipe, prepare
from zerosim.report.document import document
from zerosim.report.progress import Live, Plain
from zerosim.report.table import show_heading, show_outcome
from zerosim.run import Outcome, Progress, Silent, run_as_rank, run_locally
from zerosim.scenario import load, load_dataset
from zerosim.worlds.mpi import MpiCommunicator, connect, launched
from zerosim.worlds.objects import broadcast_object


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim run`."""
    parser.add_argument("scenario", help="a TOML file")
    parser.add_argument(
        "--set", metavar="A.B=VALUE", action="append", default=[], dest="overrides",
        help="replace a key of the scenario; may be given several times")
    parser.add_argument("--json", metavar="FILE", help="write the whole outcome; - is standard output")
    parser.add_argument("--weights", metavar="FILE", help="write the full final weights as safetensors")
    parser.add_argument(
        "--progress", choices=("auto", "live", "plain", "none"), default="auto",
        help="how to show progress on standard error; auto, the default, is live on a terminal, else plain lines")


def main(arguments: argparse.Namespace) -> int:
    """Run the scenario; 0 if every check held, 1 if one failed."""
    if launched() is None:
        return run_alone(arguments)
    return run_as_one_of_many(connect(), arguments)


def run_alone(arguments: argparse.Namespace) -> int:
    recipe = load_recipe(arguments)
    world = {"kind": "local", "ranks": recipe.scenario.world.ranks, "library": "threads"}
    announce(arguments, recipe, world)
    outcome = run_locally(recipe, progress(arguments), keep_weights=bool(arguments.weights))
    return conclude(arguments, outcome, world)


def run_as_one_of_many(comm: MpiCommunicator, arguments: argparse.Namespace) -> int:
    """Rank 0 reads the scenario first; what it cannot read it says once, and all ranks end alike."""
    recipe, refused = None, None
    if comm.rank == 0:
        try:
            recipe = load_recipe(arguments)
            check_ranks(recipe, comm)
        except ZerosimError as error:
            refused = complain(error)
    refused = broadcast_object(comm, refused)
    if refused is not None:
        return int(refused)
    recipe = recipe or load_recipe(arguments)

    world = {"kind": "mpi", "ranks": comm.size, "library": comm.library}
    if comm.rank == 0:
        announce(arguments, recipe, world)
    outcome = run_as_rank(comm, recipe, progress(arguments), keep_weights=bool(arguments.weights))
    code = conclude(arguments, outcome, world) if outcome is not None else None
    return int(broadcast_object(comm, code))


def load_recipe(arguments: argparse.Namespace) -> Recipe:
    """The scenario with its data, after making sure that what is to be written can be."""
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


def check_ranks(recipe: Recipe, comm: Communicator) -> None:
    wanted = recipe.scenario.world.ranks
    if wanted != comm.size:
        raise LaunchError(
            f"the scenario wants {wanted} ranks and the launcher started {comm.size}: "
            f"run it with mpirun -n {wanted}, or add --set world.ranks={comm.size}"
        )


def announce(arguments: argparse.Namespace, recipe: Recipe, world: dict[str, Any]) -> None:
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


def conclude(arguments: argparse.Namespace, outcome: Outcome, world: dict[str, Any]) -> int:
    """Show the outcome, write what was asked for, and give the exit code."""
    show_outcome(standard_output(arguments), outcome)
    if arguments.weights:
        write_weights(arguments.weights, outcome)
    if arguments.json:
        write_json(arguments.json, document(outcome, world))
    return 0 if outcome.passed else 1


def write_weights(path: str, outcome: Outcome) -> None:
    """The last stage's final weights as safetensors, a tensor for each parameter."""
    weights = outcome.stages[-1].weights
    assert weights is not None
    tensors: dict[str, Array] = {}
    for unit, flat in weights.items():
        tensors |= {name: view.copy() for name, view in unit.views(flat).items()}
    save_file(tensors, path)


def progress(arguments: argparse.Namespace) -> Progress:
    """The manner that was asked for, or the one that suits rank 0's standard error."""
    if arguments.progress == "none":
        return Silent()
    target = console(arguments, stderr=True)
    live = arguments.progress == "live" or (arguments.progress == "auto" and target.is_terminal)
    return Live(target) if live else Plain(target)
