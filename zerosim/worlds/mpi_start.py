"""The start of MPI in a process: its errors are one line, and it cannot hang for ever.

The first failure of a rank ends all ranks of the MPI world, and only that rank prints its traceback: the ranks of a
host race for a lock on a file whose name has been removed, and the winner prints.
"""

import atexit
import fcntl
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
from types import TracebackType
from typing import TYPE_CHECKING

from zerosim.core.errors import LaunchError, ZerosimError, exit_code, say
from zerosim.worlds.launcher import FORWARDING, LAST_WORDS, first_number, has_company, launched

if TYPE_CHECKING:
    from mpi4py import MPI

UCX_BYTES = 16_000_000
"""The space in /dev/shm for each rank of a host with which MPICH's UCX starts; in less it ends by a signal."""
STARTING = 60  # seconds for all ranks to start MPI


@dataclass(frozen=True)
class Machine:
    """The number of each rank's host, and the number of cores that this host's ranks share, or 0."""

    hosts: list[int]
    shared_cores: int


class FirstFailure:
    """An excepthook for all ranks: the first rank of a host that fails prints the reason, and ends the others."""

    def __init__(self, world: "MPI.Comm") -> None:
        self._world, self._pid = world, os.getpid()
        self._floor: int | None = None

    def is_elsewhere(self) -> bool:
        """Whether this is a child that was forked from a rank."""
        return os.getpid() != self._pid

    def share_the_floor(self, host: "MPI.Comm") -> None:
        """Open one file to lock for all ranks of this `host`; if none can be made, each failing rank prints."""
        created, name = None, ""
        with suppress(OSError):
            created, name = tempfile.mkstemp(prefix="zerosim-") if host.rank == 0 else (None, "")
        with suppress(OSError):
            self._floor = os.open(host.bcast(name), os.O_RDWR)
        host.Barrier()
        if created is not None:
            os.close(created)
            os.unlink(name)

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self.is_elsewhere():
            sys.__excepthook__(kind, error, trace)
            return
        try:
            if self._floor is not None:
                fcntl.flock(self._floor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            say(error, self._world.rank)
            time.sleep(FORWARDING)
        except BlockingIOError:    # another rank has the floor
            time.sleep(LAST_WORDS)
        finally:
            self._world.Abort(exit_code(error))


def join() -> tuple[FirstFailure, Machine]:
    """The handler that ends all ranks if one fails, and the machine; starts MPI if it has not been started."""
    with ended_by_signals():
        start_mpi()
        from mpi4py import MPI  # noqa: PLC0415 - only once it is known to work

        first_failure = FirstFailure(MPI.COMM_WORLD)
        sys.excepthook = first_failure
    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    shared = shared_cores(host.allgather(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()))
    hosts = numbered(MPI.COMM_WORLD.allgather(host.bcast(MPI.COMM_WORLD.rank)))
    first_failure.share_the_floor(host)
    host.Free()
    with suppress(OSError), open("/proc/self/maps", errors="replace") as maps:  # a killed run leaves no megabytes
        for name in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with suppress(OSError):
                os.unlink(name)
    return first_failure, Machine(hosts, shared)


def numbered(firsts: Sequence[int]) -> list[int]:
    """The number of each rank's host; `firsts` gives the first rank of that host.

    >>> numbered([0, 1, 0, 1])
    [0, 1, 0, 1]
    """
    hosts = sorted(set(firsts))
    return [hosts.index(first) for first in firsts]


def shared_cores(cores: Sequence[Collection[int]]) -> int:
    """The number of cores that the ranks may run on, if there are more ranks than cores; else 0.

    >>> shared_cores([{0, 1}, {0, 1}]), shared_cores([{0, 1}, {0, 1}, {0, 1}])
    (0, 2)
    """
    there = len(set().union(*cores))
    return there if len(cores) > there else 0


def fail_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An excepthook for a single process that cannot connect: one line for a `ZerosimError`."""
    if isinstance(error, ZerosimError):
        print(f"zerosim: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A context in which an interrupt, or the end of `STARTING` seconds, ends this process: no Python runs while MPI
    starts, and the launcher sees the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in ending}
    timer = signal.setitimer(signal.ITIMER_REAL, STARTING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in handlers.items():
            signal.signal(number, handler)


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
            "mpi4py finds no MPI library; install one, e.g. pip install mpich"
        ) from error
    vendor, _ = MPI.get_vendor()
    if "OMPI_COMM_WORLD_SIZE" in os.environ and vendor != "Open MPI":
        raise foreign_launcher(vendor)
    if not MPI.Is_initialized():
        with suppress(OSError):
            if shutil.disk_usage("/dev/shm").free < UCX_BYTES * (first_number("MPI_LOCALNRANKS") or launched() or 1):
                os.environ.setdefault("UCX_TLS", "^posix")
        MPI.Init_thread()
        atexit.register(finalize, os.getpid())
    if has_company() and MPI.COMM_WORLD.size == 1:
        raise foreign_launcher(vendor)


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
    own_mpiexec = Path(sys.executable).with_name("mpiexec")
    return str(own_mpiexec) if own_mpiexec.exists() else "mpiexec"


def zerosim_on(ranks: int, subject: str) -> list[str]:
    """The command of zerosim on MPI processes, before its arguments; `LaunchError` for `subject` without mpiexec."""
    launcher = shutil.which(own_launcher())
    if launcher is None:
        raise LaunchError(f"{subject} starts MPI processes, and there is no mpiexec; install an MPI library, e.g. pip "
                          "install mpich")
    return [launcher, "-n", str(ranks), sys.executable, "-P", "-m", "zerosim"]
