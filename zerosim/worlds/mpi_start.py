"""The start of MPI in a process: its errors are one line, and it cannot hang for ever.

The first failure of a rank ends all ranks of the MPI world, and only that rank prints its traceback.

The ranks of a host race for a lock on a file whose name has been removed. The winner prints its traceback; the others
are silent.
"""

import atexit
import fcntl
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from zerosim.errors import LaunchError, ZerosimError, exit_code, say
from zerosim.worlds.board import Board
from zerosim.worlds.launcher import FORWARDING, LAST_WORDS, Watcher, first_number, has_company, launched, watched

if TYPE_CHECKING:
    from mpi4py import MPI

MPICH_BYTES, UCX_BYTES = 1_100_000, 16_000_000
"""The shared memory for each rank of a host that MPICH needs to start, and that UCX may need in addition."""
STARTING = 60.0  # seconds for all ranks to start MPI
APART = 5.0  # seconds between the first and the last of them, usually


@dataclass(frozen=True)
class Machine:
    """The number of each rank's host, and the number of cores that this host's ranks share, or 0."""

    hosts: list[int]
    shared_cores: int


class FirstFailure:
    """An excepthook for all ranks: the first rank that fails prints the reason, and ends the others.

    Ranks often fail together, one because of the other. The ranks of a host share a file whose name has been removed;
    the first to lock it prints. On several hosts, ranks that fail at the same time can thus print once for each host.
    """

    def __init__(self, world: "MPI.Comm") -> None:
        self._world, self._pid = world, os.getpid()
        self._floor: int | None = None
        self.board: Board | None = None

    def is_elsewhere(self) -> bool:
        """Whether this is a child that was forked from a rank."""
        return os.getpid() != self._pid

    def share_the_floor(self, host: "MPI.Comm", watcher: Watcher) -> None:
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


def join() -> tuple[FirstFailure, Machine]:
    """The handler that ends all ranks if one fails, and the machine; starts MPI if it has not been started."""
    with watched() as watcher, hang_ups_held():
        with ended_by_signals(STARTING, watcher):
            start_mpi()
            from mpi4py import MPI  # noqa: PLC0415 - only once it is known to work

            first_failure = FirstFailure(MPI.COMM_WORLD)
            sys.excepthook = first_failure
        host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        shared = shared_cores(host.allgather(cores_of_this_process()))
        hosts = numbered(MPI.COMM_WORLD.allgather(host.bcast(MPI.COMM_WORLD.rank)))
        first_failure.share_the_floor(host, watcher)
        forget_shared_files()
    return first_failure, Machine(hosts, shared)


def numbered(firsts: Sequence[int]) -> list[int]:
    """The number of each rank's host; `firsts` gives the first rank of that host.

    >>> numbered([0, 1, 0, 1])
    [0, 1, 0, 1]
    """
    hosts = sorted(set(firsts))
    return [hosts.index(first) for first in firsts]


def fail_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An excepthook for a single process that cannot connect: one line for a `ZerosimError`."""
    if isinstance(error, ZerosimError):
        print(f"zerosim: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def forget_shared_files() -> None:
    """Remove the names of MPICH's files in shared memory, once all ranks of this host have opened them.

    MPICH removes them only at its end, so every killed run would leave megabytes behind.
    """
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for name in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(OSError):
                os.unlink(name)


def shared_cores(cores: Sequence[Collection[int]]) -> int:
    """The number of cores that the ranks may run on, if there are more ranks than cores; else 0.

    >>> shared_cores([{0, 1}, {0, 1}]), shared_cores([{0, 1}, {0, 1}, {0, 1}])
    (0, 2)
    """
    there = len(set().union(*cores))
    return there if len(cores) > there else 0


def cores_of_this_process() -> set[int]:
    """The cores that this process may run on; all cores, if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


@contextmanager
def hang_ups_held() -> Iterator[None]:
    """A context that blocks SIGHUP: UCX would use it for its debugger until our handler is installed."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


@contextmanager
def ended_by_signals(seconds: float, watcher: Watcher) -> Iterator[None]:
    """A context in which an interrupt, or the end of `seconds` seconds, ends this process.

    No Python runs while MPI starts, and no message reaches the other ranks: the `watcher` hears of an interrupt, and
    the launcher sees the signal of the timer. Without a watcher it sees that of an interrupt too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGALRM,) if watcher.exists else (signal.SIGINT, signal.SIGALRM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    functions = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in functions:
        signal.signal(number, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with watcher.hears_interrupts():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, function in functions.items():
            signal.signal(number, function)


def start_mpi() -> None:
    """Initialize MPI, unless it has been, and check that the launcher and the library match.

    MPICH under Open MPI's launcher aborts while it initializes, so this is checked before; the
    other mismatches leave every rank alone in a world of its own.
    """
    try:
        import mpi4py  # noqa: PLC0415 - may be missing, and only this needs it

        mpi4py.rc(initialize=False, finalize=False)  # a forked child would run mpi4py's own finalization too
        from mpi4py import MPI  # noqa: PLC0415 - loads the MPI library
    except ModuleNotFoundError as error:
        raise LaunchError(
            "mpi4py is not installed; install it and an MPI library, e.g. pip install mpi4py mpich"
        ) from error
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            "mpi4py finds no MPI library; install one, e.g. pip install 'zerosim[mpich]'"
        ) from error
    vendor, _ = MPI.get_vendor()
    if "OMPI_COMM_WORLD_SIZE" in os.environ and vendor != "Open MPI":
        raise foreign_launcher(vendor)
    if not MPI.Is_initialized():
        suit_shared_memory(vendor, shared_memory_bytes(), first_number("MPI_LOCALNRANKS") or launched() or 1)
        MPI.Init_thread()
        atexit.register(finalize, os.getpid())
    if has_company() and MPI.COMM_WORLD.size == 1:
        raise foreign_launcher(vendor)


def suit_shared_memory(vendor: str, free_bytes: float, ranks: int) -> None:
    """Adapt MPICH to the free space of /dev/shm for the ranks of this host, as in a container; `LaunchError` if it is
    too small.

    If it is full, MPICH ends with a bus error while it starts, and UCX, which carries its messages, with a
    segmentation fault: UCX is then told not to use this memory, unless UCX_TLS is set. Seen with MPICH 5.0.2 in files
    of 1 to 64 MB and 2 to 12 ranks: UCX failed up to 6 MB a rank and, once in 30 times, at 10.
    """
    if vendor != "MPICH" or ranks == 1:
        return
    if free_bytes < MPICH_BYTES * ranks:
        raise LaunchError(
            f"/dev/shm has {free_bytes / 1e6:.1f} MB in which files can be made, and MPICH takes "
            f"{MPICH_BYTES * ranks / 1e6:.1f} MB to start {ranks} ranks on a host; remove files there, give it more, "
            "as by docker run --shm-size=64m, or start fewer ranks")
    if free_bytes < UCX_BYTES * ranks:
        os.environ.setdefault("UCX_TLS", "^posix")


def shared_memory_bytes() -> float:
    """The free space of /dev/shm; 0 if this user can make no file there, infinite on systems without such a folder.

    Space that MPICH took in the last seconds counts as free: it may be for earlier ranks of this job.
    """
    if sys.platform != "linux":
        return math.inf
    taken = 0
    try:
        found = os.statvfs("/dev/shm")
        for each in os.scandir("/dev/shm"):
            with suppress(FileNotFoundError):
                if each.name.startswith("mpich_shm_") and each.stat().st_mtime > time.time() - APART:
                    taken += each.stat().st_blocks * 512
    except OSError:
        return 0
    if not taken and not (os.access("/dev/shm", os.W_OK | os.X_OK) and (found.f_favail or not found.f_files)):
        return 0
    return found.f_bavail * found.f_frsize + taken


def foreign_launcher(vendor: str) -> LaunchError:
    """The error of ranks that belong to another MPI library than their launcher."""
    return LaunchError(
        f"the launcher started {launched()} ranks but belongs to another MPI library than mpi4py, which runs on "
        f"{vendor}; launch with {own_launcher()}"
    )


def finalize(pid: int) -> None:
    """End MPI in the process that started it, after all else; a forked child does nothing."""
    from mpi4py import MPI  # noqa: PLC0415 - has been started

    if os.getpid() == pid and not MPI.Is_finalized():
        MPI.Finalize()


def own_launcher() -> str:
    """The mpiexec that belongs to this interpreter's MPI library, if it is found."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else "mpiexec"


def zerosim_on(ranks: int, subject: str) -> list[str]:
    """The command line of zerosim on MPI processes, before its arguments; `LaunchError` for `subject` without mpiexec.
    """
    launcher = shutil.which(own_launcher())
    if launcher is None:
        raise LaunchError(f"{subject} starts MPI processes, and there is no mpiexec; install an MPI library, e.g. pip "
                          "install 'zerosim[mpich]'")
    return [launcher, "-n", str(ranks), sys.executable, "-P", "-m", "zerosim"]
