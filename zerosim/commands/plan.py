"""`zerosim plan`: what a scenario would take on a cluster, by its stages' own text on shapes."""

import argparse
import itertools
from collections.abc import Iterator, Sequence

from zerosim.commands.arguments import cluster_sizes
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.data import load_dataset
from zerosim.errors import UsageError
from zerosim.models.units import Task
from zerosim.plan.planning import Plan, plan, task_in_words
from zerosim.report.plan_table import show_plan
from zerosim.report.table import show_heading
from zerosim.scenario import Scenario, load

MOST_ROWS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim plan`."""
    parser.add_argument("scenario", help="a TOML file; its machine is [cluster]")
    parser.add_argument(
        "--ranks", type=cluster_sizes, default=[], metavar="N,N",
        help="numbers of ranks to plan for, each with as many micro-batches as in the scenario; default the scenario's")
    parser.add_argument(
        "--set", metavar="A.B=VALUE", action="append", default=[], dest="overrides",
        help="replace a key of the scenario; may be given several times")
    parser.add_argument(
        "--sweep", metavar="A.B=V,V", nargs="+", default=[], help="plan for every combination of these values of keys")
    parser.add_argument("--json", metavar="FILE", help="write the plan; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Show the plan; 0 if every claim held, 1 if one did not."""
    check_writable(arguments)
    scenario, found = planned(arguments.scenario, arguments.overrides, arguments.ranks, arguments.sweep)
    console = standard_output(arguments)
    show_heading(console, scenario.title, scenario.caption, "")
    show_plan(console, found)
    if arguments.json:
        write_json(arguments.json, found.document())
    return 0 if found.passed else 1


def planned(
    path: str, overrides: Sequence[str], ranks: Sequence[int], sweep: Sequence[str]
) -> tuple[Scenario, Plan]:
    """The scenario in a file, and its plan."""
    scenario = training(path, overrides)
    if len(list(combinations(sweep))) * max(len(ranks), 1) * len(scenario.rows) > MOST_ROWS:
        raise UsageError(f"--sweep and --ranks make more than {MOST_ROWS} rows; ask for fewer at a time")
    swept = [(names, training(path, [*overrides, *names])) for names in combinations(sweep) if names]
    return scenario, plan(scenario, swept, ranks, task_of)


def training(path: str, overrides: Sequence[str]) -> Scenario:
    """The scenario of training in a file."""
    found = load(path, overrides)
    if not isinstance(found, Scenario):
        raise UsageError(f"{path} is a scenario of collectives, which have no plan; give one of training")
    return found


def combinations(sweep: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Overrides for every combination of the values of some keys.

    >>> list(combinations(["a=1,2", "b=x"]))
    [('a=1', 'b=x'), ('a=2', 'b=x')]
    """
    keys = []
    for each in sweep:
        key, equals, values = each.partition("=")
        if not (key and equals and all(values.split(","))):
            raise UsageError(f"--sweep {each!r}: give section.key=value,value")
        keys.append([f"{key}={value}" for value in values.split(",")])
    return itertools.product(*keys)


def task_of(scenario: Scenario) -> Task:
    """What its data ask of a model; data are read only where the scenario does not say it itself."""
    said = task_in_words(scenario)
    if said is not None:
        return said
    dataset = load_dataset(scenario)
    return Task(dataset.inputs, dataset.outputs, dataset.loss, tokens=dataset.kind == "tokens")
