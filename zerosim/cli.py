"""The command line: `zerosim COMMAND`, also as `python -m zerosim`.

Exit codes: 0, every check held; 1, a check failed; 2, the scenario or the command line is wrong; 3, the run broke.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from zerosim.commands.output import complain
from zerosim.errors import ZerosimError

COMMANDS = {
    "run": ("zerosim.commands.run", "train by a scenario file and compare every bit"),
    "show": ("zerosim.commands.show", "draw what a collective does, round by round, or list them all"),
    "prove": ("zerosim.commands.prove", "prove a collective, ours or yours, on symbols"),
    "grade": ("zerosim.commands.grade", "grade a learner's functions against proofs and laws"),
    "memory": ("zerosim.commands.memory", "memory of model states, by formula"),
    "bench": ("zerosim.commands.bench", "measure ratios of times within one run"),
}
"""The module of each command, and what it is for. Only the one that is called is imported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    top = argparse.ArgumentParser(
        prog="zerosim",
        description="Train by DDP and ZeRO Stages I, II and III under MPI, every bit checked against one process.",
    )
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, (module, purpose) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose.capitalize() + ".")
        if name in given[:1]:
            importlib.import_module(module).add_arguments(command)
    parsed = top.parse_args(given)
    try:
        return int(importlib.import_module(COMMANDS[parsed.command][0]).main(parsed))
    except ZerosimError as error:
        return complain(error)
