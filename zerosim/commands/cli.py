"""The command line: `zerosim COMMAND`, also as `python -m zerosim`.

Exit codes: 0, every check held; 1, a check failed; 2, the scenario or the command line is wrong; 3, the run broke;
130, it was interrupted.
"""

import argparse
import importlib
import importlib.metadata
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from zerosim.commands.output import abandon_full_streams, check_writable, complain, open_streams
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError, UsageError, did_you_mean
from zerosim.worlds.launcher import has_company, launched_rank
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import broadcast_object, gather_objects

COMMANDS = {
    "run": ("zerosim.commands.run", "train by a scenario file and compare every bit"),
    "scenarios": ("zerosim.commands.scenarios", "list the scenarios that come with the package"),
    "report": ("zerosim.commands.report", "print or draw a run once more, from its outcome"),
    "checkpoint": ("zerosim.commands.checkpoint", "show the checkpoints of a run, each checked against its digest"),
    "show": ("zerosim.commands.show", "draw the rounds of a collective, a step of stages or the passes of a pipeline"),
    "prove": ("zerosim.commands.prove", "prove a collective on symbols, a shipped one or yours"),
    "check": ("zerosim.commands.check", "check the parts in your Python file: gradients, formulas, stages, "
                                        "collectives"),
    "lessons": ("zerosim.commands.copies", "list or copy the lessons that come with the package"),
    "exercises": ("zerosim.commands.copies", "list or copy the exercises, functions with empty bodies"),
    "memory": ("zerosim.commands.memory", "memory of model states, by formula"),
    "plan": ("zerosim.commands.plan", "plan a scenario on a cluster: memory and time, on shapes alone"),
    "torch": ("zerosim.torch.command", "run a PyTorch script over zerosim's collectives"),
    "bench": ("zerosim.commands.bench", "benchmark: measure ratios of times within one run"),
    "completion": ("zerosim.commands.completion", "print a script of bash, zsh or fish that completes commands"),
}
"""The module and the purpose of each command. Only the module of the called command is imported."""

NEXT = """\
zerosim run compare
    trains by DDP and ZeRO Stages I, II and III, and compares every bit, byte and peak
mpirun -n 2 zerosim torch --check {script}
    finds the published bug in this PyTorch script; needs pip install torch (0.2 to 3 GB)
zerosim plan --model {config} --ranks 8,16
    says which stage of an 8B model fits on 8 and 16 devices, and how fast
zerosim --help
    lists all commands
"""
"""The next commands of a user, printed if none is given; each runs as printed."""

PARALLEL = ("run", "torch", "bench")
"""The commands that all ranks run; rank 0 alone runs the others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code.

    No exception of a command leaves this function, except one that must end other ranks too. Ranks are connected first:
    a rank that fails later then ends all others.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        open_streams()
        if has_company():
            agree(connect(), given)
        parsed = parse(given)
        if parsed.command not in PARALLEL:
            if launched_rank() > 0:
                return 0
            check_writable(parsed)
        try:
            code = int(importlib.import_module(COMMANDS[parsed.command][0]).main(parsed))
        except SystemExit as exit_:
            if parsed.command == "torch":
                raise
            raise CollectiveError(f"a part has called sys.exit({exit_.code!r}); end it by returning") from None
        sys.stdout.flush()
        return code
    except SystemExit:
        raise
    except BaseException as error:
        if has_company():
            raise
        return complain(error)
    finally:
        abandon_full_streams()


def agree(comm: Communicator, given: list[str]) -> None:
    """Refuse command lines that differ between ranks, before any rank acts."""
    for rank, other in enumerate(gather_objects(comm, given) or []):
        if other != given:
            raise UsageError(
                f"rank 0 was started with {shlex.join(given)!r} and rank {rank} with {shlex.join(other)!r}: "
                "give all ranks one command line")
    broadcast_object(comm, None)


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The command and its flags; exits with code 2 if they are wrong."""
    top = Parser(
        prog="zerosim",
        description="Train by DDP and ZeRO Stages I, II and III under MPI, every bit checked against one process.",
    )
    top.add_argument("--version", action="version", version=f"zerosim {importlib.metadata.version('zerosim')}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, (module, purpose) in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if name in given[:1]:
            importlib.import_module(module).add_arguments(command)
    try:
        if not given:
            top.exit(2, NEXT.format(script=shipped_path("docs/pytorch/nanogpt_sync.py"),
                                    config=shipped_path("scenarios/plans/llama_8b_config.json")))
        parsed, unknown = top.parse_known_args(given)
        if unknown and given[0] not in COMMANDS:
            top.error(f"found {given[0]!r} before the command; give the command first, and then its flags")
        if unknown:
            commands.choices[parsed.command].refuse_unknown(unknown)
        return parsed
    finally:
        sys.stdout.flush()


def shipped_path(name: str) -> str:
    """The path of a file that comes with the package, relative if it is below this folder."""
    path = (Path(__file__).parents[1] / "scenario" / "shipped" / name).resolve()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


ELSEWHERE = {("zerosim run", "--ranks"): "; mpirun -n N starts N ranks, and --set world.ranks=N asks for them"}
"""Flags of other commands, and the replacement in this one."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: what was found, what is allowed, and which command prints help."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print on rank 0 alone."""
        if launched_rank() == 0:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line, without the usage."""
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help says more)\n")

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Exit because `words` are unknown flags or surplus arguments."""
        flag = words[0].partition("=")[0]
        flags = re.findall(r"--[\w-]+", self.format_usage())
        mend = ELSEWHERE.get((self.prog, flag)) or did_you_mean(flag, flags, alike=0.8) or "; leave it out"
        self.error(f"found {' '.join(words)!r}, which is not an argument of this command{mend}")
