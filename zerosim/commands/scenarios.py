"""`zerosim scenarios`: lists the scenarios that come with the package, by name."""

import argparse
from typing import Any

from rich.text import Text

from zerosim.commands.output import standard_output, write_json
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
    """Print two lines or more for each scenario, its name and its ranks, its title; 0."""
    entries, console = list[dict[str, Any]](), standard_output(arguments)
    for name, path in scenarios().items():
        scenario = load(path)
        entries.append({
            "name": name, "command": "plan" if path.parent.name == "plans" else "run",
            "kind": "training" if scenario.kind == "training" else "collectives",
            "ranks": scenario.world.ranks, "title": scenario.title, "caption": scenario.caption, "file": str(path)})
    for command, words in COMMANDS.items():
        console.print(Text(words, style="bold"), soft_wrap=True)
        for entry in entries:
            if entry["command"] == command:
                console.print(Text(f"{entry['name']}, {plural(entry['ranks'], 'rank')}"), soft_wrap=True)
                show_words(console, entry["title"], key="    ")
    if arguments.json:
        write_json(arguments.json, {"schema": "zerosim.scenarios/1", "scenarios": entries})
    return 0
