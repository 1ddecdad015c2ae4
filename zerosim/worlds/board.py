"""A board that the ranks of one host share: who waits for whom, and where; who has finished, who is frozen.

It is a file that they all map, with some bytes for each rank, whose name is removed at once. What one rank writes is
visible to the others immediately, whatever becomes of it then. Whoever ends the run can say what all of them did.

Why it is written before anybody asks: a rank that times out cannot ask the others. One of them may be frozen, and all
of them wait. Writing costs half a microsecond for each message.

Ranks on other hosts are not on it. An MPI window would reach them, but reading one may wait for the frozen rank. The
first to fail of each host speaks for its own.
"""

import mmap
import os
import struct
from collections.abc import Collection
from typing import NamedTuple

from zerosim.worlds.here import Location
from zerosim.worlds.processes import FROZEN, GONE, are_listed, state_of

CHANNELS = 16
"""The channels of a rank that are on the board: those made first."""
WORDS_BYTES = 200
ENDING = struct.Struct("=q")
RANK = struct.Struct("=qqq")
WAIT = struct.Struct("=q")
STEP = struct.Struct("=q")
RUNS, FINISHED = 1, 2
NOBODY, ANYBODY = -1, -2
CHANNEL_BYTES = WAIT.size + STEP.size + WORDS_BYTES
RANK_BYTES = RANK.size + CHANNELS * CHANNEL_BYTES
SEPARATOR = "\0"


class Done(NamedTuple):
    """The state of a rank: what it does, in words, and where."""

    words: str
    location: str


class Line:
    """The line that one channel of a rank writes on a board, from byte `at` on."""

    def __init__(self, board: mmap.mmap, at: int) -> None:
        self._map, self._at, self._words_at = board, at, at + WAIT.size + STEP.size
        self._encoded: dict[tuple[str, str, str], bytes] = {}
        self.goes_on()

    def waits(self, whom: int) -> None:
        """Note that this channel waits for a message from `whom`; from any rank, if that is `ANYBODY`."""
        WAIT.pack_into(self._map, self._at, whom)

    def goes_on(self) -> None:
        WAIT.pack_into(self._map, self._at, NOBODY)

    def goes_to(self, location: Location) -> None:
        words = location.collective, location.unit, location.row
        encoded = self._encoded.get(words)
        if encoded is None:
            encoded = SEPARATOR.join(words).encode()[:WORDS_BYTES].ljust(WORDS_BYTES, b"\0")
            self._encoded[words] = encoded
        STEP.pack_into(self._map, self._at + WAIT.size, location.step)
        self._map[self._words_at : self._words_at + WORDS_BYTES] = encoded


class Board:
    """The file with descriptor `file`, made large enough, as one of `ranks` ranks has mapped it.

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
            os.ftruncate(file, size)
        self._ranks = ranks
        self._map = mmap.mmap(file, size)

    def arrive(self, rank: int) -> None:
        """Note that this process is `rank`.

        It keeps both ends of a pipe: as it dies, Linux closes files from the last to the first, so that others learn of
        that by this one before the launcher does by its own, which then ends the others.
        """
        for channel in range(CHANNELS):
            self.line(rank, channel)
        reading, _ = os.pipe()
        RANK.pack_into(self._map, start(rank), os.getpid(), RUNS, reading)

    def line(self, rank: int, channel: int) -> Line:
        """The line of a channel of `rank`, which is this process."""
        return Line(self._map, start(rank, channel))

    def finish(self, rank: int) -> None:
        """Note that `rank` may end from here on: it has done what it had to."""
        _, _, reading = RANK.unpack_from(self._map, start(rank))
        RANK.pack_into(self._map, start(rank), os.getpid(), FINISHED, reading)

    def end(self) -> None:
        """Note that somebody says why all ranks end."""
        ENDING.pack_into(self._map, 0, 1)

    @property
    def is_ending(self) -> bool:
        """Whether somebody says why all ranks end."""
        return bool(ENDING.unpack_from(self._map, 0)[0])

    @property
    def processes(self) -> dict[int, int]:
        """The process of each rank here that has not finished."""
        found = {rank: RANK.unpack_from(self._map, start(rank)) for rank in range(self._ranks)}
        return {rank: process for rank, (process, state, _) in found.items() if state == RUNS}

    def opened_life(self, rank: int) -> int:
        """A descriptor that hangs up as soon as the process of `rank` begins to die; raises `OSError`."""
        process, _, reading = RANK.unpack_from(self._map, start(rank))
        return os.open(f"/proc/{process}/fd/{reading}", os.O_RDONLY | os.O_NONBLOCK)

    def what_all_do(self, dead: Collection[int] = ()) -> list[Done]:
        """What each rank does, the `dead` first; of the others, what they did when those died."""
        others = [rank for rank in range(self._ranks) if rank not in dead]
        return [
            *(Done(f"rank {rank} has died", self._location(rank, 0)) for rank in dead),
            *(done for rank in others for done in self._what_does(rank, alive=not dead)),
        ]

    def _what_does(self, rank: int, *, alive: bool) -> list[Done]:
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
            for whom, in [WAIT.unpack_from(self._map, start(rank, channel))] if whom != NOBODY
        ]
        return waits or [Done(f"rank {rank} computes", self._location(rank, 0))]

    def _location(self, rank: int, channel: int) -> str:
        at = start(rank, channel) + WAIT.size
        (step,) = STEP.unpack_from(self._map, at)
        words = self._map[at + STEP.size : at + STEP.size + WORDS_BYTES].decode(errors="ignore")
        collective, unit, row, *_ = [*words.split(SEPARATOR), "", ""]
        return str(Location(collective, unit, step, row))


def named(rank: int) -> str:
    """
    >>> named(3), named(ANYBODY)
    ('rank 3', 'any rank')
    """
    return "any rank" if rank == ANYBODY else f"rank {rank}"


def start(rank: int, channel: int | None = None) -> int:
    """The start of the bytes of a rank, or those of one of its channels."""
    begin = ENDING.size + rank * RANK_BYTES
    return begin if channel is None else begin + RANK.size + channel * CHANNEL_BYTES
