"""`zerosim scenarios`: lists the scenarios that come with the package, by name."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.core.words import plural
from zerosim.scenario import load
from zerosim.scenario.shipped import scenarios
from zerosim.show.grid import show_words

COMMANDS = {"run": "zerosim run NAME, or mpirun -n RANKS zerosim run NAME", "plan": "zerosim plan NAME"}
"""The commands that run the scenarios."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim scenarios`."""
    parser.add_argument("--json", metavar="FILE", help="write the list with captions and files as JSON; - is standard "
                                                       "output")


def main(arguments: argparse.Namespace) -> int:
    """List the scenarios; 0."""
    check_writable(arguments)
    found = [listed(name, path) for name, path in scenarios().items()]
    show(standard_output(arguments), found)
    if arguments.json:
        write_json(arguments.json, {"schema": "zerosim.scenarios/1", "scenarios": found})
    return 0


def listed(name: str, path: Path) -> dict[str, Any]:
    """The entry of one scenario: its command, its number of ranks, and its texts."""
    scenario = load(path)
    command = "plan" if path.parent.name == "plans" else "run"
    kind = "training" if scenario.kind == "training" else "collectives"
    return {"name": name, "command": command, "kind": kind, "ranks": scenario.world.ranks, "title": scenario.title,
            "caption": scenario.caption, "file": str(path)}


def show(console: Console, found: Sequence[dict[str, Any]]) -> None:
    """Print two lines or more for each scenario: its name and its ranks, its title."""
    for command, words in COMMANDS.items():
        console.print(Text(words, style="bold"), soft_wrap=True)
        for each in found:
            if each["command"] == command:
                console.print(Text(f"{each['name']}, {plural(each['ranks'], 'rank')}"), soft_wrap=True)
                show_words(console, str(each["title"]), key="    ")
