"""The errors of zerosim. Each message is one line: what was found, what is allowed, how to fix it."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class ZerosimError(Exception):
    """Any error that zerosim raises on purpose; `exit_code` is what the command line returns for it."""

    exit_code = 3


class ScenarioError(ZerosimError):
    """A scenario, its data or the command line is wrong: `file:line:column: what, and how to fix it`."""

    exit_code = 2

    def __init__(self, message: str, *, file: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}")
        self.file, self.line, self.column = file, line, column


class LaunchError(ZerosimError):
    """The launcher, the MPI library, the scenario and the files that the ranks have read are inconsistent."""

    exit_code = 2


class CollectiveError(ZerosimError):
    """A collective or an exchange was called with ranks, lengths or dtypes that cannot work."""


class Unlike(CollectiveError):
    """The ranks of a lockstep world would act differently."""


class LengthError(CollectiveError):
    """A message has a different length or dtype than its destination; `arrived` is the message."""

    def __init__(self, message: str, arrived: Any) -> None:
        super().__init__(message)
        self.arrived = arrived


class Runaway(CollectiveError):
    """A program has exceeded the number of operations that any terminating program needs."""


class MessageError(ZerosimError):
    """A message was changed on its way, lost, or received twice."""


class OffloadError(ZerosimError):
    """The file of offloaded arrays cannot be written or read."""


class Deadlock(ZerosimError):
    """No rank can proceed, or one has waited too long; the message says which rank waits for which."""


class UsageError(ZerosimError):
    """The command line names a thing that does not exist or has the wrong type."""

    exit_code = 2


class CheckpointError(ZerosimError):
    """A checkpoint is missing, incomplete, or belongs to another training."""

    exit_code = 2


def did_you_mean(name: str, names: Iterable[str], *, alike: float = 0.6) -> str:
    """A suffix for an error message that suggests the nearest of `names`; empty if none is at least `alike` similar.

    >>> did_you_mean("zero_3", ["zero2", "zero3"]), did_you_mean("mine", ["zero3"])
    ("; did you mean 'zero3'?", '')
    """
    near = get_close_matches(name, list(names), n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""
