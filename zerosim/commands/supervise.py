"""`zerosim run --restarts N`: starts the ranks itself, and restarts a broken run from its last complete checkpoint.

The job of many processes is one child of this process: it ends when this process does, and no process is left over.
Linux makes this process the parent of processes whose parents die (`PR_SET_CHILD_SUBREAPER`), so no rank survives a
launcher that was killed. Linux also signals the launcher when this process is killed.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from zerosim.core.errors import BROKE, INTERRUPTED, ScenarioError, UsageError
from zerosim.core.files import contents
from zerosim.core.words import plural
from zerosim.scenario import Scenario, load
from zerosim.training.state_file import steps_in
from zerosim.worlds.launcher import RESTARTS
from zerosim.worlds.mpi_start import zerosim_on
from zerosim.worlds.processes import children_of

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


ENDING = 5.0
"""The seconds that a launcher has to end its ranks, once it is asked to."""
LOOKOUT = 0.01
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end."""
PARENT_DEATH_SIGNAL, SUBREAPER = 1, 36  # options of Linux's prctl


def run_job(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a launcher; its exit code, 128 and more if a signal ended it.

    An interrupt, SIGTERM or SIGHUP here ends the job and raises `KeyboardInterrupt`. If this process is killed, Linux
    asks the launcher to end.

    >>> import sys
    >>> run_job([sys.executable, "-c", "import sys; sys.exit(7)"], os.environ)
    7
    """
    others = children_of(os.getpid())
    set_option(SUBREAPER, 1)  # a process whose parent dies becomes a child of this process
    with interrupted_by_signals():
        try:
            code = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock that another thread may hold
            ).wait()
        finally:
            ignore_signals()
            end_children(others)
            set_option(SUBREAPER, 0)
    return code if code >= 0 else 128 - code


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """A context in which a signal that asks this process to end raises `KeyboardInterrupt`."""
    if not hears_signals():
        yield
        return
    handlers = {number: signal.signal(number, interrupt) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore signals until the end of `interrupted_by_signals`: only the job is left to end."""
    if hears_signals():
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)


def hears_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def end_children(others: set[int]) -> None:
    """Ask all children except `others`, and their children, to end; kill those that have not ended after `ENDING`
    seconds."""
    deadline = time.monotonic() + ENDING
    asked: set[int] = set()
    while left := children_of(os.getpid()) - others:
        late = time.monotonic() > deadline
        for child in left if late else left - asked:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        for child in left:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(LOOKOUT)


def end_with_parent() -> None:
    """Let the operating system ask this child to end when its parent ends."""
    set_option(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def set_option(option: int, value: int) -> None:
    """Set one of Linux's options of this process; does nothing on other systems."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)
