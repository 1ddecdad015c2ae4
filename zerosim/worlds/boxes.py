"""Messages in memory that two processes share: each ordered pair of ranks has a box, a ring of bytes and two counters.

    sent       the bytes ever written to the ring; only the sender writes it
    taken      the bytes ever read from the ring; only the receiver writes it
    header     64 bytes before each message: its length and its tag, in one word
    piece      a run of a message in the ring, of at most `most` bytes. Both sides cut a message alike, so a piece has
               no header, and the receiver reduces one while the sender writes the next.

Rules and trade-offs:

- A send never waits. Bytes that find no room stay in the sender's memory. They are written later: whenever any channel
  of the process waits, at `close`, and otherwise by a thread, since the receiver may wait while the sender computes. In
  an exchange they stay in the caller's array, and are copied only if, once `into` is complete, the receiver reads
  nothing for 2 ms.
- Order of memory: bytes of the ring are written before `sent`, and read after it; they are read before `taken`, and
  overwritten after it. Between the two stands `sync`, which is `MPI_Win_sync` of the window: in the unified model of a
  shared-memory window a memory barrier (MPI 4.1, section 12.7, "Semantics and Correctness"). Without it x86 would
  keep this order, and ARM would not. The sender alone needs none between reading `taken` and overwriting: it writes
  only if what it has read allows it, and no processor makes a write visible before the branch that it depends on.
- The counters are 8 aligned bytes, written and read by `memoryview`, which CPython compiles to one move of 8 bytes on
  x86-64 and ARM64. Neither C nor MPI promises that such a move is atomic; both processors do. This is the one doubt.
- A message of `DIRECT` bytes or more is lent, if the kernel lets ranks read each other's memory: the ring has its
  address, and the receiver copies or reduces it from there, once. A sender that goes on before copies it and tells the
  address of the copy, or, if the receiver has claimed it, waits until it is read.
- Ufuncs reduce pieces out of the ring. A user's function gets the whole message, as in every world.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import ElementByElement, Reduction
from zerosim.errors import Deadlock
from zerosim.worlds.bells import Bell
from zerosim.worlds.copies import COUNT_FROM, HEADER, LENT, Bytes, Copies, Parcel, header, read_header, shaped
from zerosim.worlds.delivery import deliver
from zerosim.worlds.neighbours import read_memory

LINE = 64
"""The bytes of a cache line: counters and messages begin at multiples of it."""
SENT, TAKEN, CLAIM, RING = 0, LINE // 8, LINE // 8 + 1, 2 * LINE
"""The layout of a box: the positions of the counters in words of 8 bytes, that of the ring in bytes."""
PENDING: set["Outbox"] = set()
"""The boxes of this process with messages that wait for room; any wait of the process writes more of them."""
GRACE = 2e-3
"""The seconds that a completed exchange waits for a receiver that reads nothing."""
READING = 60.0
"""The seconds that a receiver may take to read a lent message."""
NAPS = (1e-4, 2e-3)
"""The seconds between two attempts of the thread that writes waiting messages: at first, and at most."""
DIRECT = 1 << 24
"""The least bytes of a message that the receiver reads from the sender's memory."""

Sync = Callable[[], None]


class Poll(Protocol):
    """Waits until a function returns a true value, and returns it."""

    def __call__(self, look: Callable[[], Any], /) -> Any: ...


class BoxSide:
    """One side of a box in `memory`, with pieces of at most `most` bytes; `bell` wakes the other side."""

    def __init__(self, memory: Bytes, most: int, sync: Sync, bell: Bell | None) -> None:
        self._words = memoryview(memory).cast("Q")  # type: ignore[arg-type]
        self._ring: Any = memory[RING:]
        self._capacity, self._most = len(memory) - RING, most
        self._within = self._capacity - 1
        self._sync, self._bell = sync, bell
        self._at = 0

    def _piece_bytes(self, left: int) -> int:
        """The length of the piece at the present position, of a message with `left` bytes left."""
        return min(left, self._most, self._capacity - (self._at & self._within))

    def _publish(self, counter: int, at: int) -> None:
        """Advance a counter: all bytes before `at` are written, or read."""
        self._sync()
        self._words[counter] = self._at = at
        if self._bell is not None:
            self._bell.ring()


class Outbox(BoxSide):
    """The sender's side."""

    def __init__(self, memory: Bytes, most: int, sync: Sync, bell: Bell | None, readable: bool = False) -> None:
        super().__init__(memory, most, sync, bell)
        self._readable = readable
        self._limit = self._words[TAKEN] + self._capacity
        self._queue: deque[Parcel] = deque()
        self._lock = threading.Lock()

    @property
    def waiting_bytes(self) -> int | None:
        """The length of the first message with unwritten bytes; None if there is none."""
        return self._queue[0].total_bytes if self._queue else None

    def post(self, outgoing: Array, tag: int, copies: Copies) -> None:
        """Send a copy of `outgoing`; bytes without room wait in memory from `copies`."""
        if not self.lend(outgoing, tag, copies):
            if self._readable and outgoing.nbytes >= DIRECT:
                self.wait_for_room()
            self.settle(copies)

    def lend(self, outgoing: Array, tag: int, copies: Copies) -> bool:
        """Send `outgoing`, which must not change before `settle`; whether all of it is written already."""
        if self._put_whole(outgoing, tag):
            return True
        if outgoing.flags.c_contiguous and outgoing.nbytes:
            parcel = Parcel(outgoing.reshape(-1).view(np.uint8), tag)
        else:
            memory = copies.take(outgoing.nbytes)
            np.copyto(shaped(memory, outgoing), outgoing)
            parcel = Parcel(memory[: outgoing.nbytes], tag)
            parcel.memory, parcel.copies = memory, copies
        with self._lock:
            self._queue.append(parcel)
            PENDING.add(self)
        self.push()
        return not self._queue

    def wait_for_room(self) -> None:
        """Write while the receiver keeps reading: a short wait saves a copy."""
        until, moved_to = time.monotonic() + GRACE, self._at
        while self._queue and time.monotonic() < until:
            os.sched_yield()
            self.push()
            if self._at != moved_to:
                until, moved_to = time.monotonic() + GRACE, self._at

    def settle(self, copies: Copies) -> None:
        """Copy the unwritten bytes of lent messages; a thread writes them unless another wait does."""
        if self._queue:
            with self._lock:
                for parcel in self._queue:
                    if parcel.memory is None:
                        self._keep(parcel, copies)
            MOVER.begin()

    def _keep(self, parcel: Parcel, copies: Copies) -> None:
        """Copy what the caller may change from now on: the receiver then reads the copy, unless it is reading already.

        Each side writes, passes a barrier and reads what the other writes: this one the address and then the claim,
        the receiver its claim and then the address. So one of them at least sees the other.
        """
        if not self._is_claimed(parcel):
            parcel.keep(copies)
        if not parcel.end:
            return
        if parcel.memory is not None:
            self._sync()
            self._tell_address(parcel)
            self._sync()
        until = time.monotonic() + READING
        while self._is_claimed(parcel) and self._words[TAKEN] < parcel.end:
            if time.monotonic() > until:
                raise Deadlock(f"a rank of this host began to read a message {READING:g} s ago and has not ended")
            os.sched_yield()

    def _is_claimed(self, parcel: Parcel) -> bool:
        """Whether the receiver reads a lent message."""
        return bool(parcel.end) and self._words[CLAIM] == parcel.end

    def _tell_address(self, parcel: Parcel) -> None:
        place = parcel.end - LINE & self._within
        self._words[(RING + place >> 3) + 1] = parcel.source.ctypes.data

    def push(self) -> None:
        """Write the waiting bytes for which there is room."""
        with self._lock:
            while self._queue and self._write(self._queue[0]):
                self._queue.popleft().give_back()
            if not self._queue:
                PENDING.discard(self)

    def _put_whole(self, outgoing: Array, tag: int) -> bool:
        """Send a message as one piece, if there is room and none waits before it; whether it was sent."""
        count = outgoing.nbytes
        place = self._at & self._within
        end = self._at + LINE + (count + LINE - 1 & -LINE)
        if count > self._most or place + LINE + count > self._capacity or self._queue:
            return False
        if end > self._limit and not self._has_room(end):
            return False
        self._words[RING + place >> 3] = count << COUNT_FROM | HEADER | tag
        np.ndarray(outgoing.shape, outgoing.dtype, self._ring, place + LINE)[...] = outgoing
        self._publish(SENT, end)
        return True

    def _has_room(self, end: int) -> bool:
        """Whether all bytes before `end` may be written."""
        if end > self._limit:
            self._limit = self._words[TAKEN] + self._capacity
        return end <= self._limit

    def _write(self, parcel: Parcel) -> bool:
        """Write as many bytes as there is room for; whether these were all, or the receiver has read them."""
        if parcel.end:
            return self._words[TAKEN] >= parcel.end
        if not parcel.headed and self._readable and parcel.total_bytes >= DIRECT:
            if self._has_room(self._at + LINE):
                parcel.end = self._at + LINE
                self._words[RING + (self._at & self._within) >> 3] = header(parcel.total_bytes, parcel.tag) | LENT
                self._tell_address(parcel)
                self._publish(SENT, parcel.end)
            return False
        if not parcel.headed:
            if not self._has_room(self._at + LINE):
                return False
            self._words[RING + (self._at & self._within) >> 3] = header(parcel.total_bytes, parcel.tag)
            parcel.headed = True
            self._publish(SENT, self._at + LINE)
        while left := len(parcel.source) - parcel.at:
            count = self._piece_bytes(left)
            end = self._at + (count + LINE - 1 & -LINE)
            if not self._has_room(end):
                return False
            place = self._at & self._within
            self._ring[place : place + count] = parcel.source[parcel.at : parcel.at + count]
            parcel.at += count
            self._publish(SENT, end)
        return True


class Inbox(BoxSide):
    """The receiver's side; it reads large messages from the memory of the sender's `process`."""

    def __init__(self, memory: Bytes, most: int, sync: Sync, bell: Bell | None, process: int = 0) -> None:
        super().__init__(memory, most, sync, bell)
        self._process = process
        self._left, self._lent = 0, False
        """The bytes still to be read of the present message, and whether the sender's memory has them."""

    def look(self) -> int:
        """The header of the next message, once that has begun to arrive; else 0."""
        if (self._left and not self._discarded()) or self._words[SENT] == self._at:
            return 0
        self._sync()
        return self._words[RING + (self._at & self._within) >> 3]

    def take_whole(self, into: Array, reduce: Reduction | None) -> bool:
        """Receive the message found by `look`, as long as `into`, if it is one piece; whether it was received."""
        count = into.nbytes
        place = self._at & self._within
        end = self._at + LINE + (count + LINE - 1 & -LINE)
        if count > self._most or place + LINE + count > self._capacity or self._words[SENT] < end:
            return False
        self._sync()
        try:
            deliver(np.ndarray(into.shape, into.dtype, self._ring, place + LINE), into, reduce)
        finally:
            self._publish(TAKEN, end)
        return True

    def take(self, into: Array, reduce: Reduction | None, copies: Copies, poll: Poll) -> None:
        """Receive the message found by `look`, as long as `into`; `poll` waits for pieces that have not arrived.

        A message that cannot be delivered in pieces is assembled in memory from `copies`.
        """
        if self.take_whole(into, reduce):
            return
        self._begin(into.nbytes)
        if can_go_by_pieces(into, reduce):
            self._take_pieces(into.reshape(-1), reduce, poll)
        else:
            memory = copies.take(into.nbytes)
            self._take_pieces(memory[: into.nbytes], None, poll)
            deliver(shaped(memory, into), into, reduce)
            copies.give(memory)

    def take_bytes(self, count: int, poll: Poll) -> Bytes:
        """Receive the message found by `look`, of `count` bytes, into fresh memory."""
        landing = np.empty(count, np.uint8)
        self._begin(count)
        self._take_pieces(landing, None, poll)
        return landing

    def dropped(self) -> int | None:
        """The tag of a message that is here and is discarded, its rest by later calls; None if there is none."""
        found = self.look()
        if not found:
            return None
        count, tag = read_header(found)
        self._begin(count)
        self._discarded()
        return tag

    def _begin(self, count: int) -> None:
        self._left = count
        self._lent = bool(self._words[RING + (self._at & self._within) >> 3] & LENT)
        if not self._lent:
            self._publish(TAKEN, self._at + LINE)

    def _read_lent(self, into: Array, reduce: Reduction | None) -> None:
        """Read a lent message from the sender's memory, reducing it piece by piece."""
        end, self._left = self._at + LINE, 0
        self._words[CLAIM] = end
        self._sync()
        address = self._words[(RING + (self._at & self._within) >> 3) + 1]
        try:
            if reduce is None:
                read_memory(self._process, address, into)
                return
            arrived = np.empty(self._most // into.itemsize, into.dtype)
            for start in range(0, len(into), len(arrived)):
                piece = into[start : start + len(arrived)]
                read_memory(self._process, address + start * into.itemsize, arrived[: len(piece)])
                deliver(arrived[: len(piece)], piece, reduce)
        finally:
            self._publish(TAKEN, end)

    def _take_pieces(self, into: Array, reduce: Reduction | None, poll: Poll) -> None:
        if self._lent:
            self._read_lent(into, reduce)
        start = 0
        while self._left:
            count = self._here() or poll(self._here)
            end = start + count // into.itemsize
            arrived = np.ndarray(end - start, into.dtype, self._ring, self._at & self._within)
            deliver(arrived, into[start:end], reduce)
            self._go_on(count)
            start = end
            if PENDING:
                push_all()

    def _here(self) -> int:
        """The length of the next piece of the message, once it has arrived; else 0."""
        count = self._piece_bytes(self._left)
        if self._words[SENT] - self._at < count + LINE - 1 & -LINE:
            return 0
        self._sync()
        return count

    def _go_on(self, count: int) -> None:
        self._left -= count
        self._publish(TAKEN, self._at + (count + LINE - 1 & -LINE))

    def _discarded(self) -> bool:
        """Whether nothing is left of a message that is being discarded."""
        if self._left and self._lent:
            self._left = 0
            self._publish(TAKEN, self._at + LINE)
        while self._left and (count := self._here()):
            self._go_on(count)
        return not self._left


def push_all() -> None:
    """Write the waiting bytes of all channels of this process for which there is room."""
    for box in tuple(PENDING):
        box.push()


class Mover:
    """A thread that writes waiting messages, started when there is one; it ends with the process."""

    def __init__(self) -> None:
        self._wanted, self._busy = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid, self._ceased = 0, False

    def begin(self) -> None:
        """Start writing waiting messages, until none waits."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name="zerosim boxes", daemon=True)
            self._thread.start()
        self._wanted.set()

    def cease(self) -> None:
        """Stop the thread, and return when it uses no box any more: MPI frees its windows before Python's threads end.
        """
        with self._busy:
            self._ceased = True

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            nap, longest = NAPS
            while PENDING:
                time.sleep(nap)
                nap = min(2 * nap, longest)
                with self._busy:
                    if self._ceased:
                        return
                    push_all()


MOVER = Mover()


def can_go_by_pieces(into: Array, reduce: Reduction | None) -> bool:
    """Whether the result is independent of the cuts of a message."""
    by_elements = isinstance(reduce, np.ufunc) and reduce.signature is None
    by_elements = reduce is None or by_elements or isinstance(reduce, ElementByElement)
    return by_elements and into.flags.c_contiguous and LINE % into.itemsize == 0
