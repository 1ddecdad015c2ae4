"""The errors a user of zerosim can meet: each one line that says what was found, what is allowed, how to mend it."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class ZerosimError(Exception):
    """Any error that zerosim raises on purpose; `exit_code` is what the command line returns for it."""

    exit_code = 3


class ScenarioError(ZerosimError):
    """A scenario, its data or the command line is wrong: `file:line:column: what, and how to mend it`."""

    exit_code = 2

    def __init__(self, message: str, *, file: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}")
        self.file, self.line, self.column = file, line, column


class LaunchError(ZerosimError):
    """The launcher, the MPI library, the scenario, and what the ranks have read do not go together."""

    exit_code = 2


class CollectiveError(ZerosimError):
    """A collective or an exchange was called with ranks, lengths or dtypes that cannot work."""


class Unlike(CollectiveError):
    """The ranks of a lockstep world would do different things."""


class LengthError(CollectiveError):
    """A message has another length or dtype than the memory it is to fill; `arrived` is the message."""

    def __init__(self, message: str, arrived: Any) -> None:
        super().__init__(message)
        self.arrived = arrived


class Runaway(CollectiveError):
    """A program has done more than any that ends."""


class MessageError(ZerosimError):
    """A message did not come as it was sent: it was changed on the way, lost, or came twice."""


class OffloadError(ZerosimError):
    """What a rank offloads cannot be written to its file, or read."""


class Deadlock(ZerosimError):
    """No rank can go on, or one waited too long; the message says who waits for whom."""


class UsageError(ZerosimError):
    """The command line names something that is not there or cannot be what it is said to be."""

    exit_code = 2


class CheckpointError(ZerosimError):
    """A checkpoint is not there, not whole, or not of this training."""

    exit_code = 2


def did_you_mean(name: str, names: Iterable[str], *, alike: float = 0.6) -> str:
    """Which of `names` may have been meant, to be put at the end of a complaint; nothing where none is so much `alike`.

    >>> did_you_mean("zero_3", ["zero2", "zero3"]), did_you_mean("mine", ["zero3"])
    ("; did you mean 'zero3'?", '')
    """
    near = get_close_matches(name, list(names), n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""
