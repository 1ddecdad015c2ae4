"""The first failure of a rank ends all ranks of the MPI world, and only that rank prints its traceback.

The ranks of a host race for a lock on a file whose name has been removed. The winner prints its traceback; the others
are silent.
"""

import fcntl
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import NoReturn, Protocol

from zerosim.errors import ZerosimError
from zerosim.worlds.board import Board
from zerosim.worlds.last_words import exit_code, say
from zerosim.worlds.launcher import FORWARDING, LAST_WORDS, Watcher


class Fellows(Protocol):
    """An mpi4py communicator of which this process is a rank: that of the whole run, or of a host."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def bcast(self, name: str, /) -> str: ...
    def Barrier(self) -> None: ...  # noqa: N802 - the name is MPI's
    def Free(self) -> None: ...  # noqa: N802 - the name is MPI's
    def Abort(self, code: int, /) -> NoReturn: ...  # noqa: N802 - the name is MPI's


class FirstFailure:
    """An excepthook for all ranks: the first rank that fails prints the reason, and ends the others.

    Ranks often fail together, one because of the other. The ranks of a host share a file whose name has been removed;
    the first to lock it prints. On several hosts, ranks that fail at the same time can thus print once for each host.
    """

    def __init__(self, world: Fellows) -> None:
        self._world, self._pid = world, os.getpid()
        self._floor: int | None = None
        self.board: Board | None = None

    def is_elsewhere(self) -> bool:
        """Whether this is a child that was forked from a rank."""
        return os.getpid() != self._pid

    def share_the_floor(self, host: Fellows, watcher: Watcher) -> None:
        """Open one file for all ranks of this `host`, to lock and to write on; if none can be made, each failing rank
        prints.

        The first of these ranks keeps a watcher for as long as they live.
        """
        created, name = temporary_file() if host.rank == 0 else (None, "")
        with suppress(OSError, ValueError):
            self._floor = os.open(host.bcast(name), os.O_RDWR)
            self.board = Board(self._floor, self._world.size)
            self.board.arrive(self._world.rank)
        host.Barrier()
        if created is not None:
            with suppress(OSError):
                os.close(created)
                os.unlink(name)
            if self._floor is not None and host.size > 1:
                watcher.stay(self._floor, self._world.size)
        host.Free()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self.board is not None and in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self.end_as_told)
        if in_main_thread:
            heard = signal.getsignal(signal.SIGHUP)
            signal.signal(signal.SIGHUP, self.end_hung_up if heard is signal.SIG_DFL else heard)

    def end_as_told(self, number: int, frame: FrameType | None) -> None:
        """A handler for a signal that ends all ranks: another process prints the reason, so none is printed here."""
        assert self.board is not None
        if not self.is_elsewhere():
            self.board.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def end_hung_up(self, number: int, frame: FrameType | None) -> None:
        """A handler for SIGHUP that ends all ranks directly: an exception could be raised where it is ignored, as in a
        destructor.

        Without a handler SIGHUP would not end a rank: UCX uses the signal for its debugger.
        """
        error = ZerosimError("hung up (SIGHUP): the terminal was closed; start the command with nohup to keep it "
                             "running")
        self(ZerosimError, error, None)

    def __call__(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        if self.is_elsewhere():
            sys.__excepthook__(kind, error, trace)
            return
        try:
            if self._has_the_floor():
                if self.board is not None:
                    self.board.end()
                say(error, self._world.rank)
                time.sleep(FORWARDING)
            else:
                time.sleep(LAST_WORDS)
        finally:
            self._world.Abort(exit_code(error))

    def _has_the_floor(self) -> bool:
        if self._floor is None:
            return True
        try:
            fcntl.flock(self._floor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


def temporary_file() -> tuple[int | None, str]:
    """A new file and its name; None and an empty name if no folder is writable."""
    try:
        return tempfile.mkstemp(prefix="zerosim-")
    except OSError:
        return None, ""
