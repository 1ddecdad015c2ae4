"""`zerosim run --restarts N`: starts the ranks itself, and restarts a broken run from its last complete checkpoint."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zerosim.checkpoint.folders import steps_in
from zerosim.errors import ScenarioError, UsageError
from zerosim.files import contents
from zerosim.scenario import Scenario, load
from zerosim.words import plural
from zerosim.worlds.job import run_job
from zerosim.worlds.last_words import BROKE, INTERRUPTED
from zerosim.worlds.launcher import RESTARTS
from zerosim.worlds.mpi_start import zerosim_on

FINAL = (0, 1, 2, INTERRUPTED)
"""The exit codes of runs that a restart would not change, or that were told to end."""


def supervise(arguments: argparse.Namespace, scenario: Scenario) -> int:
    """Run `scenario` under MPI, and again up to the allowed number if it breaks; the exit code of the last run."""
    saved = folder_of(scenario)
    if arguments.min_ranks is not None and arguments.min_ranks > scenario.world.ranks:
        raise UsageError(
            f"--min-ranks {arguments.min_ranks} is more than the {plural(scenario.world.ranks, 'rank')} of the "
            f"scenario; give at most as many")
    if arguments.json == "-":
        raise UsageError("--restarts: launchers write their errors to standard output too; give --json a file")
    ranks, resume = scenario.world.ranks, arguments.resume
    for number in range(arguments.restarts + 1):
        code = run_job(
            [*zerosim_on(ranks, "--restarts"), *command(arguments, ranks, resume)],
            os.environ | {RESTARTS: str(number)})
        if code in FINAL or number == arguments.restarts:
            break
        ranks = fewer(arguments, scenario, ranks)
        step = last_step(saved)
        resume = str(saved) if step else arguments.resume
        print(
            f"zerosim: the run broke, with exit code {code}; restart {number + 1} of {arguments.restarts} on "
            f"{plural(ranks, 'rank')}, {f'after step {step}, from {saved}' if step else 'where it began'}",
            file=sys.stderr, flush=True)
    return code if code in FINAL else BROKE


def folder_of(scenario: Scenario) -> Path:
    """The folder in which its rows are saved."""
    if not scenario.checkpoint.folder:
        raise UsageError("--restarts resumes from checkpoints; add --checkpoint DIR")
    return scenario.origin.folder(("checkpoint", "folder")) / scenario.checkpoint.folder


def last_step(saved: Path) -> int:
    """The highest step of any row's checkpoint; 0 if there is none."""
    with suppress(UsageError):
        return max((step for row in contents(saved) for step in steps_in(row)), default=0)
    return 0


def fewer(arguments: argparse.Namespace, scenario: Scenario, ranks: int) -> int:
    """The next number of ranks: unchanged or, with --min-ranks, the next lower on which the scenario can run."""
    if arguments.min_ranks is None:
        return ranks
    for lower in range(ranks - 1, arguments.min_ranks - 1, -1):
        with suppress(ScenarioError):
            load(arguments.scenario, [*arguments.overrides, f"world.ranks={lower}"],
                 python=not arguments.no_python)
            return lower
    return ranks


def command(arguments: argparse.Namespace, ranks: int, resume: str | None) -> Iterator[str]:
    """The command line of a supervised run with this number of ranks, resumed from `resume`."""
    yield from ("run", arguments.scenario)
    for override in [*arguments.overrides, f"world.ranks={ranks}"]:
        yield f"--set={override}"
    for flag in ("checkpoint", "every", "json", "weights", "progress", "report", "trace"):
        if getattr(arguments, flag) is not None:
            yield f"--{flag}={getattr(arguments, flag)}"
    if resume is not None:
        yield f"--resume={resume}"
    if arguments.trace_steps is not None:
        yield "--trace-steps={}..{}".format(*arguments.trace_steps)
    yield from (f"--{flag.replace('_', '-')}" for flag in ("timeline", "verbose", "no_python", "accept_python")
                if getattr(arguments, flag))
