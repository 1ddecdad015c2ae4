"""A board that the ranks of one host share: which rank waits for which, and where; which have finished or are frozen.

The board is a file that all ranks map, with some bytes for each rank; its name is removed at once. A rank's writes are
visible to the others immediately and outlive the rank, so the process that ends the run can report the state of all.

Ranks write it in advance because a rank that times out cannot ask the others: one of them may be frozen, and all
of them wait. Writing costs half a microsecond for each message.

The board does not hold ranks on other hosts. An MPI window would reach them, but reading one may wait for the frozen
rank. The first rank to fail on each host reports for its host.
"""

import mmap
import os
import struct
import threading
import time
from collections.abc import Collection
from typing import NamedTuple

from zerosim.worlds.here import Location
from zerosim.worlds.processes import FROZEN, GONE, are_listed, line_of, state_of, time_of

CHANNELS = 16
"""The number of channels of a rank that are on the board, in order of creation; the last entry serves all later ones.
"""
WORDS_BYTES = 200
ENDING = struct.Struct("=q")
RANK = struct.Struct("=qqq")
WAIT = struct.Struct("=q?")
STEP = struct.Struct("=q")
RUNS, FINISHED = 1, 2
NOBODY, ANYBODY = -1, -2
CHANNEL_BYTES = WAIT.size + STEP.size + WORDS_BYTES
RANK_BYTES = RANK.size + CHANNELS * CHANNEL_BYTES
SEPARATOR = "\0"
STILL = 60.0
"""The seconds after which ranks that all wait, without change, are regarded as deadlocked."""
STILL_AFTER_THE_END = 5.0
"""The seconds for the same if one of them has finished."""
GLANCE = 1.0
"""The seconds between two looks at the board in a long wait."""


class Done(NamedTuple):
    """The state of a rank in words, and its location."""

    words: str
    location: str


class Line:
    """The entry of one channel of a rank on a board, from byte `at` on."""

    def __init__(self, board: mmap.mmap, at: int) -> None:
        self._map, self._at, self._words_at = board, at, at + WAIT.size + STEP.size
        self._encoded: dict[tuple[str, str, str], bytes] = {}
        self.goes_on()

    def waits(self, whom: int) -> None:
        """Record that this channel waits for a message from `whom`; `ANYBODY` stands for any rank."""
        WAIT.pack_into(self._map, self._at, whom, threading.current_thread() is threading.main_thread())

    def goes_on(self) -> None:
        WAIT.pack_into(self._map, self._at, NOBODY, False)

    def goes_to(self, location: Location) -> None:
        words = location.collective, location.unit, location.row
        encoded = self._encoded.get(words)
        if encoded is None:
            encoded = SEPARATOR.join(words).encode()[:WORDS_BYTES].ljust(WORDS_BYTES, b"\0")
            self._encoded[words] = encoded
        STEP.pack_into(self._map, self._at + WAIT.size, location.step)
        self._map[self._words_at : self._words_at + WORDS_BYTES] = encoded


class Board:
    """The board in the file with descriptor `file`, enlarged for `ranks` ranks, as one rank maps it.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     board = Board(file.fileno(), ranks=2)
    ...     board.arrive(1)
    ...     line = board.line(1, 0)
    ...     line.goes_to(Location("all_gather", step=3))
    ...     line.waits(0)
    ...     board.what_all_do()
    [Done(words='rank 0 is on another host', location=''), \
Done(words='rank 1 waits for a message from rank 0', location='in the all_gather, step 3')]
    """

    def __init__(self, file: int, ranks: int) -> None:
        size = ENDING.size + ranks * RANK_BYTES
        if os.fstat(file).st_size < size:
            os.posix_fallocate(file, 0, size)  # a hole would be a bus error when the disk is full
        self._ranks = ranks
        self._map = mmap.mmap(file, size)

    def arrive(self, rank: int) -> None:
        """Record that this process is `rank`.

        It keeps both ends of a pipe. Linux closes the files of a dying process from the last to the first, so the
        watcher sees this pipe close before the launcher sees its own socket close and ends the others.
        """
        for channel in range(CHANNELS):
            self.line(rank, channel)
        reading, _ = os.pipe()
        RANK.pack_into(self._map, start(rank), os.getpid(), RUNS, reading)

    def line(self, rank: int, channel: int) -> Line:
        """The entry of a channel of `rank`, which is this process."""
        return Line(self._map, start(rank, channel))

    def finish(self, rank: int) -> None:
        """Record that `rank` has finished its work and may exit."""
        _, _, reading = RANK.unpack_from(self._map, start(rank))
        RANK.pack_into(self._map, start(rank), os.getpid(), FINISHED, reading)

    def end(self) -> None:
        """Record that some rank is reporting why all ranks end."""
        ENDING.pack_into(self._map, 0, 1)

    @property
    def is_ending(self) -> bool:
        """Whether some rank is reporting why all ranks end."""
        return bool(ENDING.unpack_from(self._map, 0)[0])

    @property
    def processes(self) -> dict[int, int]:
        """The process of each rank on this host that has not finished."""
        found = {rank: RANK.unpack_from(self._map, start(rank)) for rank in range(self._ranks)}
        return {rank: process for rank, (process, state, _) in found.items() if state == RUNS}

    def opened_life(self, rank: int) -> int:
        """A descriptor that hangs up as soon as the process of `rank` begins to die; raises `OSError`."""
        process, _, reading = RANK.unpack_from(self._map, start(rank))
        return os.open(f"/proc/{process}/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK)

    def what_all_do(self, dead: Collection[int] = (), *, ask: bool = True) -> list[Done]:
        """The state of each rank, the `dead` first; the state of the others at the time of those deaths.

        If it may `ask`, a rank that computes says at which line of Python.
        """
        others = [rank for rank in range(self._ranks) if rank not in dead]
        return [
            *(Done(f"rank {rank} has died", self._location(rank, 0)) for rank in dead),
            *(done for rank in others for done in self._what_does(rank, alive=not dead, ask=ask and not dead)),
        ]

    def stand_still(self) -> tuple[list[Done], list[str]]:
        """The states of all ranks if none of them computes and all are on this host; otherwise empty.

        Another thread than the main one may wait while the main thread computes. The second list has the processor
        time of each such main thread, which then grows.
        """
        found = self.what_all_do(ask=False)
        moving = any("computes" in each.words or "another host" in each.words for each in found)
        beside = [process for rank, process in self.processes.items() if not self._main_thread_waits(rank)]
        return ([], []) if moving else (found, [time_of(process) for process in beside])

    def _main_thread_waits(self, rank: int) -> bool:
        return any(WAIT.unpack_from(self._map, start(rank, channel))[1] for channel in range(CHANNELS))

    def _what_does(self, rank: int, *, alive: bool, ask: bool) -> list[Done]:
        process, so_far, _ = RANK.unpack_from(self._map, start(rank))
        if not process:
            return [Done(f"rank {rank} is on another host", "")]
        if so_far == FINISHED:
            return [Done(f"rank {rank} has finished", "")]
        state = state_of(str(process)) if alive and are_listed() else ""
        if state and state in FROZEN + GONE:
            return [Done(f"rank {rank} {'is stopped' if state in FROZEN else 'has died'}", self._location(rank, 0))]
        waits = [
            Done(f"rank {rank} waits for a message from {named(whom)}", self._location(rank, channel))
            for channel in range(CHANNELS)
            for whom, _ in [WAIT.unpack_from(self._map, start(rank, channel))] if whom != NOBODY
        ]
        line = line_of(process) if ask and not waits else ""
        return waits or [Done(f"rank {rank} computes{f' at {line}' if line else ''}", self._location(rank, 0))]

    def _location(self, rank: int, channel: int) -> str:
        at = start(rank, channel) + WAIT.size
        (step,) = STEP.unpack_from(self._map, at)
        words = self._map[at + STEP.size : at + STEP.size + WORDS_BYTES].decode(errors="ignore")
        collective, unit, row, *_ = [*words.split(SEPARATOR), "", ""]
        return str(Location(collective, unit, step, row))


class BoundedWait:
    """A wait that begins now and ends after `timeout_seconds`, or earlier if no rank can go on.

    Earlier means: for `STILL` seconds no rank of the `board` has computed, and none has begun another wait.
    """

    def __init__(self, board: Board | None, timeout_seconds: float) -> None:
        self._board, self._timeout_seconds = board, timeout_seconds
        self._began = self._since = time.monotonic()
        self._next = self._began + min(timeout_seconds, GLANCE)
        self._found: tuple[list[Done], list[str]] = [], []

    @property
    def seconds(self) -> float:
        """The timeout if that is over, else the seconds that the wait has lasted, rounded."""
        lasted = time.monotonic() - self._began
        return self._timeout_seconds if lasted >= self._timeout_seconds else round(lasted)

    def is_over(self) -> bool:
        """Whether to stop waiting."""
        now = time.monotonic()
        if now <= self._next:
            return False
        self._next = min(now + GLANCE, max(self._began + self._timeout_seconds, now))
        found = ([], []) if self._board is None else self._board.stand_still()
        if not found[0] or found != self._found:
            self._found, self._since = found, now
        finished = any("finished" in each.words for each in found[0])
        still = now - self._since > (STILL_AFTER_THE_END if finished else STILL)
        return still or now > self._began + self._timeout_seconds


def named(rank: int) -> str:
    """
    >>> named(3), named(ANYBODY)
    ('rank 3', 'any rank')
    """
    return "any rank" if rank == ANYBODY else f"rank {rank}"


def start(rank: int, channel: int | None = None) -> int:
    """The position of the bytes of a rank, or of one of its channels."""
    begin = ENDING.size + rank * RANK_BYTES
    return begin if channel is None else begin + RANK.size + channel * CHANNEL_BYTES
