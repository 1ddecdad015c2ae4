"""The MPI world and its connection: one process for each rank, on one host or many. Only modules `mpi…` import mpi4py.

- The first rank to fail prints its traceback and ends the others.
- A process has one connection. A later `connect()` returns the first one's, because MPI has no more communicators
  after about a thousand. A `timeout_seconds` that a later call passes replaces the earlier one.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import ClassVar, NoReturn

from zerosim.core.allocation import Allocator
from zerosim.core.comm import Communicator
from zerosim.core.errors import ZerosimError
from zerosim.core.words import plural
from zerosim.worlds.launcher import has_company
from zerosim.worlds.mpi_communicator import MpiCommunicator, check_timeout
from zerosim.worlds.mpi_start import FirstFailure, fail_alone, join
from zerosim.worlds.world import Result, left_early


def connect(timeout_seconds: float | None = None) -> MpiCommunicator:
    """This process as one rank among all that the launcher started, or alone without a launcher.

    From here on an uncaught exception ends all ranks: the first rank to fail prints one line for a `ZerosimError`, its
    traceback for any other, and its exit code becomes the launcher's (3 for those others). At exit `close` is called.
    Waiting for a message longer than `timeout_seconds` raises `Deadlock`. A rank that fails before all are connected
    ends them by a signal.

    A process has one connection: a later call returns the first's, closed or not. If it passes `timeout_seconds`, that
    replaces the earlier value, which is 60 at first.

    Raises `LaunchError` without an MPI library, or when the launcher belongs to another one, and
    `CollectiveError` for a `timeout_seconds` that is not positive and finite.
    """
    if timeout_seconds is not None:
        check_timeout(timeout_seconds)
    comm = connection()
    if timeout_seconds is not None:
        comm.timeout_seconds = timeout_seconds
    return comm


@cache
def connection() -> MpiCommunicator:
    """The connection of this process, made by the first call of `connect`."""
    if not has_company():
        sys.excepthook = fail_alone
    first_failure, machine = join()
    from mpi4py import MPI  # noqa: PLC0415 - only once it is known to work

    comm = MpiCommunicator(MPI.COMM_WORLD.Dup())
    comm.machine = machine
    atexit.register(close_or_fail, comm, first_failure)
    threading.excepthook = partial(fail_in_thread, first_failure)
    return comm


def fail_in_thread(first_failure: FirstFailure, ended: threading.ExceptHookArgs) -> None:
    """A hook for threads that end by an exception: a `ZerosimError` ends all ranks, which wait for that thread."""
    if isinstance(ended.exc_value, ZerosimError):
        first_failure(ended.exc_type, ended.exc_value, ended.exc_traceback)
    else:
        threading.__excepthook__(ended)


def close_or_fail(comm: MpiCommunicator, first_failure: FirstFailure) -> None:
    """Close `comm`; an error in it ends all ranks, as an uncaught exception does. A forked child does nothing."""
    if first_failure.is_elsewhere():
        return
    try:
        comm.close()
    except ZerosimError as error:
        first_failure(type(error), error, error.__traceback__)


class MpiWorld:
    """The ranks that the launcher started, one of which is this process: a `World`."""

    kind: ClassVar[str] = "mpi"
    rank_is_process: ClassVar[bool] = True

    def __init__(self, comm: MpiCommunicator) -> None:
        self.ranks = comm.size
        self.library = comm.library
        self.shared_cores, self.hosts = comm.machine.shared_cores, comm.machine.hosts
        self._comm = comm
        self._channels = [comm]

    @property
    def words(self) -> str:
        return f"{plural(self.ranks, 'rank')}, one process each, over {self.library}"

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        try:
            return [program(self._comm)]
        except SystemExit as exit_:
            raise left_early(exit_, self._comm.rank, self.ranks) from None

    def channel(self) -> MpiCommunicator:
        """A second channel, as `MpiCommunicator.channel` makes it."""
        other = self._comm.channel()
        self._channels.append(other)
        return other

    def take_buffers_from(self, allocate: Allocator) -> None:
        for channel in self._channels:
            channel.take_buffers_from(allocate)

    def kill(self, comm: Communicator) -> NoReturn:
        """End this process by SIGKILL, as the operating system does when memory is short."""
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives SIGKILL")

    def stop(self, comm: Communicator) -> None:
        """Stop this process until it receives SIGCONT."""
        os.kill(os.getpid(), signal.SIGSTOP)
