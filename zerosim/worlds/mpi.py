"""The MPI world: one process for each rank, on one host or many. Only this module imports mpi4py.

A message is its raw bytes, so every NumPy dtype travels, those of ml_dtypes too. `send` copies them
into memory of its own and leaves the rest to MPI; `recv` polls, giving up the processor between two
polls. Where there are more ranks than cores it also rests until a message comes, so that whoever is to
send it goes on. No wait is endless, and no rank fails alone: the first to fail speaks, and ends them all.
"""

import atexit
import os
import signal
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.comm import Communicator, Reduction
from zerosim.errors import CollectiveError, Deadlock, LaunchError, LengthError, ZerosimError
from zerosim.worlds.board import CHANNELS, Board, Line
from zerosim.worlds.copies import Bytes, Copies, shaped
from zerosim.worlds.delivery import check_into, check_rank, deliver, refuse_mask
from zerosim.worlds.first_failure import FirstFailure
from zerosim.worlds.here import HERE, Spot, explained, spaced
from zerosim.worlds.launcher import has_company, launched, watched
from zerosim.worlds.world import Result, counted

if TYPE_CHECKING:
    from mpi4py import MPI

STARTING = 60.0  # seconds that ranks have for starting MPI, the first of them waiting for the last
REST = 5e-5  # seconds between two looks for a message, where ranks share cores


def connect(timeout_seconds: float | None = None) -> "MpiCommunicator":
    """This process as one rank among all that the launcher started, or alone without a launcher.

    From here on an exception that nobody catches ends all ranks: the first rank to fail prints one
    line for a `ZerosimError`, its traceback for any other, and its exit code becomes the
    launcher's (3 for those others). At exit `close` is called. Waiting for a message longer than
    `timeout_seconds` raises `Deadlock`. A rank that fails before all are connected ends them by a signal.

    A process has one connection: a later call returns the first's, closed or not. If it gives a
    `timeout_seconds`, that holds from then on; if not, it stays as it was, which is at first 60.

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
def connection() -> "MpiCommunicator":
    """What `connect` returns, made by its first call."""
    if not has_company():
        sys.excepthook = fail_alone
    first_failure, sharing = join()
    from mpi4py import MPI  # noqa: PLC0415 - only once it is known to work

    comm = MpiCommunicator(MPI.COMM_WORLD.Dup())
    comm.write_on(first_failure.board)
    if sharing:
        comm.rest_between_polls()
    atexit.register(close_or_fail, comm, first_failure)
    return comm


def fail_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An excepthook for a process without company that cannot connect: one line for a `ZerosimError`."""
    if isinstance(error, ZerosimError):
        print(f"zerosim: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def join() -> tuple[FirstFailure, bool]:
    """What ends all ranks if one fails, after starting MPI where that has not been done; whether they share cores."""
    with watched() as watcher:
        with ended_by_signals(STARTING):
            start_mpi()
            from mpi4py import MPI  # noqa: PLC0415 - only once it is known to work

            first_failure = FirstFailure(MPI.COMM_WORLD)
            sys.excepthook = first_failure
        host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        sharing = share_cores(host.allgather(cores_of_this_process()))
        first_failure.share_the_floor(host, watcher)
    return first_failure, sharing


def share_cores(cores: Sequence[Collection[int]]) -> bool:
    """Whether ranks are more than cores, of those that each may run on.

    >>> share_cores([{0, 1}, {0, 1}]), share_cores([{0, 1}, {0, 1}, {0, 1}])
    (False, True)
    """
    return len(cores) > len(set().union(*cores))


def cores_of_this_process() -> set[int]:
    """The cores that it may run on; all, where a system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


@contextmanager
def ended_by_signals(seconds: float) -> Iterator[None]:
    """Within, an interrupt and the end of so many seconds end this process by their signals.

    No Python runs while MPI starts, and no message reaches the other ranks; the launcher sees the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    functions = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in functions:
        signal.signal(number, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, function in functions.items():
            signal.signal(number, function)


def start_mpi() -> None:
    """Initialize MPI, if nobody has, and make sure that the launcher and the library match.

    MPICH under Open MPI's launcher aborts while it initializes, so this is noticed before; the
    other mismatches leave every rank alone in a world of its own.
    """
    try:
        import mpi4py  # noqa: PLC0415 - may be missing, and nobody else needs it

        mpi4py.rc(initialize=False, finalize=False)  # its own way would be taken by a forked child, too
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
        MPI.Init_thread()
        atexit.register(finalize, os.getpid())
    if has_company() and MPI.COMM_WORLD.size == 1:
        raise foreign_launcher(vendor)


def foreign_launcher(vendor: str) -> LaunchError:
    """What ends ranks whom the launcher cannot acquaint with each other."""
    return LaunchError(
        f"the launcher started {launched()} ranks but belongs to another MPI library than mpi4py, "
        f"which runs on {vendor}; launch with {own_launcher()}"
    )


def finalize(pid: int) -> None:
    """End MPI in the process that started it, after all else; a child that was forked from it never did."""
    from mpi4py import MPI  # noqa: PLC0415 - has been started

    if os.getpid() == pid and not MPI.Is_finalized():
        MPI.Finalize()


def own_launcher() -> str:
    """The mpiexec that belongs to this interpreter's MPI library, as far as can be told."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else "mpiexec"


MOST_BYTES = 2**31 - 1
"""Of a message, with a library of MPI 3 or before."""
FAREWELL = 0x7FFF
"""The tag of the last message between two ranks; the largest that every MPI library has."""


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """The tag of messages of this dtype, the same in every process; two dtypes nearly never share one."""
    return zlib.crc32(spelled(dtype).encode()) % FAREWELL


def spelled(dtype: np.dtype[Any]) -> str:
    """
    >>> spelled(np.dtype("f4")), spelled(np.dtype([("re", "f4"), ("im", "f4")]))
    ('float32', '8 bytes: re float32 at 0, im float32 at 4')
    """
    if dtype.fields is None:
        return str(dtype)
    fields = (f"{name} {spelled(of)} at {offset}" for name, (of, offset, *_) in dtype.fields.items())
    return f"{dtype.itemsize} bytes: {', '.join(fields)}"


UNFINISHED: list[list[deque["Departure"]]] = []
"""What every communicator of this process has under way: MPI reads from it, whoever else forgets it."""


class MpiCommunicator:
    """A rank of the MPI world: a `Communicator` of NumPy arrays.

    `comm` is any communicator of mpi4py, such as `MPI.COMM_WORLD.Dup()`; none but these messages may
    travel in it. What is on its way when a communicator is dropped without `close` stays in memory. `came_ns` is when
    the message that was received last began to come, by the monotonic clock.

    Raises `CollectiveError` for ranks, arrays and lengths that cannot work, `Deadlock` after a wait
    of `timeout_seconds`.
    """

    def __init__(self, comm: "MPI.Intracomm", timeout_seconds: float = 60.0) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - whoever has a comm has it loaded

        check_timeout(timeout_seconds)
        self.rank = comm.rank
        self.size = comm.size
        vendor, version = MPI.get_vendor()
        self.library = f"{vendor} {'.'.join(map(str, version))}"
        self.timeout_seconds = timeout_seconds
        self.came_ns = 0
        self.board: Board | None = None
        self._line: Line | None = None
        self._first = True
        self._channels = 0
        self._spot = Spot()
        self._comm = comm
        self._status = MPI.Status()
        self._copies = Copies()
        self._departures: list[deque[Departure]] = [deque() for _ in range(comm.size)]
        self._unheard = set(range(comm.size))
        self._unclaimed: list[Unclaimed] = []
        self._leaving = False
        self._pause: Callable[[], None] = os.sched_yield
        self._most_bytes = MOST_BYTES if MPI.Get_version() < (4, 0) else inf
        UNFINISHED.append(self._departures)

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let memory for messages come from `allocate`, so that a ledger sees it: all of it from here on."""
        self._copies = Copies(allocate)

    def channel(self, timeout_seconds: float | None = None) -> "MpiCommunicator":
        """Another communicator of the same ranks, in which messages travel apart from those in this one.

        Its `timeout_seconds` are those of this one, unless given, and its memory for messages comes from the same
        place. Nobody closes it at exit.
        """
        other = MpiCommunicator(self._comm.Dup(), timeout_seconds or self.timeout_seconds)
        other.take_buffers_from(self._copies.allocate)
        other._pause = self._pause
        other._first = False
        self._channels += 1
        if self.board is not None and self._channels < CHANNELS:
            other.board, other._line = self.board, self.board.line(self.rank, self._channels)
        return other

    def rest_between_polls(self) -> None:
        """Leave the cores to others while there is no message: 4 ranks on 2 cores took a third less of their time."""
        self._pause = partial(time.sleep, REST)

    def write_on(self, board: Board | None) -> None:
        """Let the others see on `board` what this rank does."""
        self.board = board
        self._line = None if board is None else board.line(self.rank, 0)

    def note_spot(self) -> None:
        """Let the others see where this thread is."""
        if self._line is not None and HERE.spot is not self._spot:
            self._spot = HERE.spot
            self._line.goes_to(self._spot)

    def exchange(
        self,
        outgoing: Array,
        *,
        to: int,
        into: Array,
        source: int,
        reduce: Reduction | None = None,
    ) -> None:
        """Send `outgoing` to `to` while receiving from `source` as `recv` does."""
        self._check_outgoing(outgoing, to)
        self._check_into(into, source)
        self._post(outgoing, to)
        self._complete(into, source, reduce)

    def send(self, outgoing: Array, *, to: int) -> None:
        """Send a copy of `outgoing` to rank `to`; never waits for it, whatever the length."""
        self._check_outgoing(outgoing, to)
        self._post(outgoing, to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        """Receive the next message of `source`: `into`, or `into = reduce(arrived, into)`."""
        self._check_into(into, source)
        self._complete(into, source, reduce)

    def close(self) -> None:
        """Wait, up to `timeout_seconds`, until all that was sent has left and every other rank closes too.

        Nothing may be sent afterwards. A rank that still computes when the time is over is not waited for.

        Raises `CollectiveError` naming a rank whose message was not received here, and `Deadlock` naming one that
        does not receive.
        """
        if not self._leaving:
            self._leaving = True
            if self.board is not None and self._first:
                self.board.finish(self.rank)
            for to in range(self.size):
                self._comm.Isend(np.empty(0, np.uint8), to, FAREWELL).Free()
        deadline = time.monotonic() + self.timeout_seconds
        while not self._all_have_left() and time.monotonic() < deadline:
            self._pause()
        for source in range(self.size):
            unclaimed = sum(message.source == source for message in self._unclaimed)
            if unclaimed:
                raise CollectiveError(
                    f"rank {self.rank} ended without receiving {unclaimed} message(s) from rank {source}: "
                    "every send needs its receive"
                )
        for to, departures in enumerate(self._departures):
            if departures:
                raise self._waited(f"for rank {to} to receive {departures[0].sent_bytes} bytes")

    def _all_have_left(self) -> bool:
        """Whether all that was sent from here has left, and every rank's farewell is here."""
        for departures in self._departures:
            while departures and departures[0].request.Test():
                departures.popleft()
        for source in list(self._unheard):
            message = self._comm.Improbe(source, status=self._status)
            if message is None:
                continue
            landing = np.empty(self._status.Get_count(), np.uint8)
            arriving = Unclaimed(source, message.Irecv(landing), landing)
            if self._status.Get_tag() == FAREWELL:
                self._unheard.discard(source)
            else:
                self._unclaimed.append(arriving)
        return not self._unheard and not any(self._departures)

    def _post(self, outgoing: Array, to: int) -> None:
        self.note_spot()
        departures = self._departures[to]
        while departures and departures[0].request.Test():
            departures.popleft().give_back()
        memory = self._copies.take(outgoing.nbytes)
        np.copyto(shaped(memory, outgoing), outgoing)
        request = self._comm.Isend(memory[: outgoing.nbytes], to, dtype_tag(outgoing.dtype))
        departures.append(Departure(request, memory, outgoing.nbytes, self._copies))

    def _complete(self, into: Array, source: int, reduce: Reduction | None) -> None:
        self.note_spot()
        if reduce is None and into.flags.c_contiguous:
            self._receive(into.reshape(-1).view(np.uint8), source, into.dtype)
            return
        memory = self._copies.take(into.nbytes)
        self._receive(memory[: into.nbytes], source, into.dtype)
        deliver(shaped(memory, into), into, reduce)
        self._copies.give(memory)

    def _receive(self, landing: Bytes, source: int, dtype: np.dtype[Any]) -> None:
        """Fill `landing` with the next message of `source`.

        A message is matched before it is received, so that its length is known: MPI may do anything
        with one that is longer than the memory given to it, and Open MPI corrupts the heap.
        """
        message = self._poll(lambda: self._comm.Improbe(source, status=self._status), source, self._pause)
        self.came_ns = time.monotonic_ns()
        sent_bytes, tag = self._status.Get_count(), self._status.Get_tag()
        fits = sent_bytes == landing.nbytes
        arriving = landing if fits else np.empty(sent_bytes, np.uint8)
        request = message.Irecv(arriving)
        self._poll(request.Test, source, os.sched_yield)
        if tag == FAREWELL:
            self._unheard.discard(source)
            raise Deadlock(
                f"rank {self.rank} waits for a message from rank {source}, which has finished{spaced(HERE.spot)}")
        if not fits or tag != dtype_tag(dtype):
            other = "" if tag == dtype_tag(dtype) else " of another dtype"
            raise LengthError(
                f"rank {source} sent {sent_bytes} bytes{other} to rank {self.rank}, which receives them "
                f"into {landing.nbytes} bytes of {dtype}{spaced(HERE.spot)}: both sides must name the same length and "
                "dtype",
                arriving,
            )

    def _poll(self, done: Callable[[], Result | None], source: int, pause: Callable[[], None]) -> Result:
        """What `done` gives, as soon as it gives anything; the others see meanwhile that this rank waits."""
        result = done()
        if result:
            return result
        deadline = time.monotonic() + self.timeout_seconds
        if self._line is not None:
            self._line.waits(source)
        while not result:
            if time.monotonic() > deadline:
                raise self._waited(f"for a message from rank {source}")
            pause()
            result = done()
        if self._line is not None:
            self._line.goes_on()
        return result

    def _waited(self, awaited: str) -> Deadlock:
        everyone = spaced(HERE.spot) if self.board is None else explained(self.board.what_all_do())
        return Deadlock(
            f"rank {self.rank} waited {self.timeout_seconds:g} s {awaited}{everyone}; every send "
            "needs its receive, and a slow rank a longer timeout_seconds"
        )

    def _check_outgoing(self, outgoing: Array, to: int) -> None:
        self._check_open()
        check_rank(to, self.size, "to")
        check_array(outgoing, "outgoing")
        if outgoing.nbytes > self._most_bytes:
            raise CollectiveError(
                f"outgoing has {outgoing.nbytes:,} bytes, and over {self.library} a message has at most "
                f"{self._most_bytes:,}: send it in pieces; a run does with parallel.bucket_mb, or smaller units")

    def _check_into(self, into: Array, source: int) -> None:
        self._check_open()
        check_rank(source, self.size, "source")
        check_array(into, "into")
        check_into(into)

    def _check_open(self) -> None:
        if self._leaving:
            raise CollectiveError(f"rank {self.rank} has closed this communicator: close it when all has been said")


class MpiWorld:
    """The ranks that the launcher started, of which this process is one: a `World`."""

    kind: ClassVar[str] = "mpi"
    rank_is_process: ClassVar[bool] = True
    copies_messages: ClassVar[bool] = True

    def __init__(self, comm: MpiCommunicator) -> None:
        self.ranks = comm.size
        self.library = comm.library
        self._comm = comm
        self._channels = [comm]

    @property
    def words(self) -> str:
        return f"{counted(self.ranks)}, one process each, over {self.library}"

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        return [program(self._comm)]

    def channel(self) -> MpiCommunicator:
        """A second channel, as `MpiCommunicator.channel` makes it."""
        other = self._comm.channel()
        self._channels.append(other)
        return other

    def take_buffers_from(self, allocate: Allocator) -> None:
        for channel in self._channels:
            channel.take_buffers_from(allocate)

    def kill(self, comm: Communicator) -> NoReturn:
        """As the operating system does when memory is short."""
        self._comm.note_spot()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives SIGKILL")

    def stop(self, comm: Communicator) -> None:
        """Until somebody sends SIGCONT."""
        self._comm.note_spot()
        os.kill(os.getpid(), signal.SIGSTOP)


def check_timeout(seconds: Any) -> None:
    """Refuse anything but a positive finite number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise CollectiveError(f"timeout_seconds={seconds!r}: a positive finite number of seconds")


def check_array(array: object, role: str) -> None:
    """Refuse what has no raw bytes to send or to receive into."""
    if not isinstance(array, np.ndarray):
        raise CollectiveError(
            f"{role} is of type {type(array).__name__}; under MPI a message is a NumPy array"
        )
    refuse_mask(array, role)
    if array.dtype.hasobject:
        raise CollectiveError(
            f"{role} has dtype {array.dtype}; under MPI a message is of fixed-size elements, "
            "Python objects travel in the local world only"
        )


class Departure(NamedTuple):
    """A message on its way: MPI reads `memory` until `request` is complete."""

    request: "MPI.Request"
    memory: Bytes
    sent_bytes: int
    copies: Copies

    def give_back(self) -> None:
        """Let the memory be used again by whom it was taken from."""
        self.copies.give(self.memory)


class Unclaimed(NamedTuple):
    """A message that nobody has asked for, on its way into `landing`."""

    source: int
    request: "MPI.Request"
    landing: Bytes


def close_or_fail(comm: MpiCommunicator, first_failure: FirstFailure) -> None:
    """Close `comm`; what prevents it ends all ranks, as an uncaught exception does. A forked child is no part of it."""
    if first_failure.is_elsewhere():
        return
    try:
        comm.close()
    except ZerosimError as error:
        first_failure(type(error), error, error.__traceback__)
