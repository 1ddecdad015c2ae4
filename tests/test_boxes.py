"""Boxes over memory of one process: what arrives, in which order memory is written and read, and what waits."""

import ctypes
import mmap
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from zerosim.allocation import allocate
from zerosim.errors import Deadlock
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import ObservedAllocator
from zerosim.worlds import bells, boxes, mpi_shared, neighbours
from zerosim.worlds.bells import Bell, Patience
from zerosim.worlds.boxes import LINE, PENDING, RING, SENT, TAKEN, Inbox, Mover, Outbox
from zerosim.worlds.copies import Copies, read_header
from zerosim.worlds.mpi_shared import no_room, ring_bytes, segment_bytes, unpopulated

CAPACITY, MOST, TAG = 4096, 512, 7


@pytest.fixture(autouse=True)
def nobody_else_moves_messages_on(monkeypatch):
    monkeypatch.setattr(boxes.MOVER, "begin", lambda: None)
    yield
    PENDING.clear()


class WeakMemory:
    """A box that each side sees for itself: what one has written leaves it at its sync, and comes to the other at its.

    The counters alone are seen at once, as a processor might have it that reorders all that it may.
    """

    def __init__(self):
        self.sender, self.between, self.receiver = (np.zeros(RING + CAPACITY, np.uint8) for _ in range(3))
        self.outbox = Outbox(self.sender, MOST, self.sender_syncs, None)
        self.inbox = Inbox(self.receiver, MOST, self.receiver_syncs, None)

    def sender_syncs(self):
        sent, taken = (int(self.sender[8 * each : 8 * each + 8].view("<u8")[0]) for each in (SENT, TAKEN))
        told_of = RING + np.arange(taken, sent) % CAPACITY
        assert (self.sender[told_of] == self.between[told_of]).all(), "a counter tells of what may not be there yet"
        self.between[RING:] = self.sender[RING:]

    def receiver_syncs(self):
        self.receiver[RING:] = self.between[RING:]

    def counters(self):
        sent, taken = slice(8 * SENT, 8 * SENT + 8), slice(8 * TAKEN, 8 * TAKEN + 8)
        self.receiver[sent], self.sender[taken] = self.sender[sent], self.receiver[taken]

    def poll(self, look):
        for _ in range(1000):
            self.counters()
            found = look()
            if found:
                return found
            boxes.push_all()
        raise AssertionError("nothing comes")

    def receive(self, into, reduce=None, copies=None):
        assert read_header(self.poll(self.inbox.look)) == (into.nbytes, TAG)
        self.inbox.take(into, reduce, copies or Copies(), self.poll)
        self.counters()


def test_a_receiver_that_reads_for_ever_is_an_error_and_memory_that_cannot_be_read_is_not_used(monkeypatch):
    monkeypatch.setattr(boxes, "DIRECT", 5)
    monkeypatch.setattr(boxes, "GRACE", 0)
    monkeypatch.setattr(boxes, "READING", 0)
    memory = np.zeros(RING + CAPACITY, np.uint8)
    memory[8 * boxes.CLAIM] = LINE
    with pytest.raises(Deadlock, match="began to read a message"):
        Outbox(memory, 4, lambda: None, None, readable=True).post(numbers(5, 1), TAG, Copies())
    for pid, found in ((os.getpid(), [os.getpid()]), (2**22 + 1, [])):
        gathered = lambda value, pid=pid: [(pid, *value[1:])] if isinstance(value, tuple) else [value]  # noqa: E731
        assert neighbours.readable(SimpleNamespace(rank=0, allgather=gathered)) == found


LENGTHS = (0, 1, 7, 63, 64, 65, 448, 511, 512, 513, 1000, 3968, 4032, 4033, 4096, 5000, 20_000)


def numbers(count, seed):
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_all_arrives_whole_and_in_order_through_memory_that_is_as_weak_as_can_be(ahead):
    box, chance = WeakMemory(), np.random.default_rng(ahead)
    lengths = [int(chance.choice(LENGTHS)) for _ in range(300)]
    for first in range(0, len(lengths), ahead):
        some = range(first, min(first + ahead, len(lengths)))
        for each in some:
            outgoing = numbers(lengths[each], each)
            box.outbox.post(outgoing, TAG, Copies())
            outgoing[:] = 0
        for each in some:
            into = np.full(lengths[each], 9, np.uint8)
            reduce = (None, np.bitwise_xor, lambda arrived, mine: arrived ^ mine)[each % 3]
            box.receive(into, reduce)
            due = numbers(lengths[each], each)
            assert into.tobytes() == (due if reduce is None else due ^ 9).tobytes()
    assert not PENDING


@pytest.mark.parametrize("broken", ["sender_syncs", "receiver_syncs"])
def test_memory_without_a_barrier_is_seen(broken, monkeypatch):
    monkeypatch.setattr(WeakMemory, broken, lambda box: None)
    box = WeakMemory()
    box.outbox.post(numbers(5, 1), TAG, Copies())
    box.counters()
    assert box.inbox.look() == 0


@pytest.mark.parametrize("count", [5, 3000])
def test_room_is_given_back_after_what_was_in_it_has_been_read(count):
    box, seen = WeakMemory(), []

    def reduce(arrived, mine):
        seen.append(int(box.receiver[8 * TAKEN : 8 * TAKEN + 8].view("<u8")[0]))
        return arrived

    into = np.zeros(count, np.uint8)
    box.outbox.post(numbers(count, 1), TAG, Copies())
    box.counters()
    box.inbox.take(into, reduce, Copies(), box.poll)
    assert seen[0] == 0 or count > MOST  # a message that was put together has left the ring
    assert into.tobytes() == numbers(count, 1).tobytes()


def test_what_does_not_fit_waits_in_memory_of_the_senders_and_moves_on():
    box, ledger = WeakMemory(), Ledger()
    copies = Copies(ObservedAllocator(allocate, ledger))
    box.outbox.post(numbers(300, 0), TAG, copies)
    assert (ledger.total, box.outbox.waiting_bytes) == (0, None)
    box.outbox.post(numbers(20_000, 1), TAG, copies)
    assert 20_000 - CAPACITY <= ledger.total < 20_000
    assert box.outbox.waiting_bytes == 20_000
    assert box.outbox in PENDING
    box.outbox.post(numbers(3, 2), TAG, copies)
    for count, seed in ((300, 0), (20_000, 1), (3, 2)):
        into = np.zeros(count, np.uint8)
        box.receive(into)
        assert into.tobytes() == numbers(count, seed).tobytes()
    held = ledger.total
    box.outbox.post(numbers(20_000, 1), TAG, copies)
    assert ledger.total == held


def test_what_is_lent_is_copied_only_if_it_has_not_left():
    box, ledger = WeakMemory(), Ledger()
    copies = Copies(ObservedAllocator(allocate, ledger))
    outgoing, into = numbers(20_000, 1), np.zeros(20_000, np.uint8)
    assert not box.outbox.lend(outgoing, TAG, copies)
    box.receive(into)
    box.outbox.settle(copies)
    assert ledger.total == 0
    assert into.tobytes() == outgoing.tobytes()
    box.outbox.lend(outgoing, TAG, copies)
    box.outbox.settle(copies)
    outgoing[:] = 0
    box.receive(into)
    assert into.tobytes() == numbers(20_000, 1).tobytes()
    assert ledger.total > 0


def test_patience_with_a_receiver_ends(monkeypatch):
    box = WeakMemory()
    box.outbox.lend(numbers(20_000, 1), TAG, Copies())
    monkeypatch.setattr(boxes, "GRACE", 0.01)
    box.outbox.wait_for_room()
    assert box.outbox.waiting_bytes == 20_000


def test_of_a_message_that_nobody_wants_nothing_is_left():
    box = WeakMemory()
    for count in (20_000, 5):
        box.outbox.post(numbers(count, count), TAG, Copies())
    box.counters()
    assert box.inbox.dropped() == TAG
    assert read_header(box.poll(box.inbox.look)) == (5, TAG)
    assert box.inbox.dropped() == TAG
    box.counters()
    assert box.inbox.dropped() is None


def test_no_message_overtakes_one_that_waits():
    box, into = WeakMemory(), np.zeros(3, np.uint8)
    box.outbox.post(numbers(20_000, 1), TAG, Copies())
    box.counters()
    assert box.inbox.dropped() == TAG
    box.counters()  # there is room again, and the rest of the first message has not moved on
    box.outbox.post(numbers(3, 2), TAG, Copies())
    box.receive(into)
    assert into.tobytes() == numbers(3, 2).tobytes()


def test_pieces_are_reduced_as_one_message_would_be():
    """Bits of NaNs and signed zeros included, whatever the place in a ring."""
    box, chance = WeakMemory(), np.random.default_rng(3)
    for count in (100, 1000, 3000):
        for ufunc in (np.add, np.maximum, np.subtract):
            arrived, mine = (chance.choice(
                np.array([0x80000000, 0, 0x7FC01234, 0xFFC00001, 0x3F800000, 1], np.uint32), count).view(np.float32)
                for _ in range(2))
            due = mine.copy()
            with np.errstate(all="ignore"):
                ufunc(arrived, due, out=due)
                box.outbox.post(arrived, TAG, Copies())
                box.receive(mine, ufunc)
            assert mine.tobytes() == due.tobytes()
    arrived, mine = (chance.integers(0, 9, (20, 20)).astype(np.float64) for _ in range(2))
    due = arrived @ mine
    box.outbox.post(arrived, TAG, Copies())
    box.receive(mine, np.matmul)  # a ufunc, but not of single elements
    assert mine.tobytes() == due.tobytes()


class Threads:
    """What the mover's thread waits for, in this thread: it ends at its second wait for something to do."""

    def __init__(self, **_):
        self.is_set, self.waits, self.started = False, 0, 0

    def set(self):
        self.is_set = True

    def clear(self):
        self.is_set = False

    def wait(self):
        self.waits += 1
        if self.waits == 2:
            assert not self.is_set, "it spins"
            raise StopIteration

    def start(self):
        self.started += 1


def test_the_mover_waits_until_there_is_something_to_do(monkeypatch):
    mover, box = Mover(), WeakMemory()
    naps = []
    mover._wanted = wanted = Threads()
    monkeypatch.setattr(boxes, "time", SimpleNamespace(sleep=lambda nap: naps.append(nap) or box.inbox.dropped() or (
        box.counters())))
    box.outbox.post(numbers(20_000, 1), TAG, Copies())
    wanted.set()
    with pytest.raises(StopIteration):
        mover._run()
    assert not PENDING
    assert boxes.NAPS[0] == naps[0] <= naps[-1] == boxes.NAPS[1]


def test_a_forked_child_has_a_mover_of_its_own(monkeypatch):
    mover, started = Mover(), Threads()
    monkeypatch.setattr(boxes.threading, "Thread", lambda **_: started)
    for process, due in ((1, 1), (1, 1), (2, 2)):
        monkeypatch.setattr(boxes.os, "getpid", lambda process=process: process)
        mover.begin()
        assert started.started == due


def test_a_thread_moves_on_what_waits_and_ceases():
    memory, mover = np.zeros(RING + CAPACITY, np.uint8), Mover()
    outbox, inbox = (kind(memory, MOST, lambda: None, None) for kind in (Outbox, Inbox))
    outbox.post(numbers(20_000, 1), TAG, Copies())
    mover.begin()
    assert read_header(inbox.look()) == (20_000, TAG)
    into, deadline = np.zeros(20_000, np.uint8), time.monotonic() + 60

    def poll(look):
        while not (found := look()):
            assert time.monotonic() < deadline
            time.sleep(1e-4)
        return found

    inbox.take(into, None, Copies(), poll)
    assert into.tobytes() == numbers(20_000, 1).tobytes()
    mover.cease()
    outbox.post(numbers(20_000, 1), TAG, Copies())
    mover.begin()
    mover._thread.join(60)
    assert not mover._thread.is_alive()


def test_without_futex_a_sleeper_looks_again_soon(monkeypatch):
    slept = []
    monkeypatch.setattr(bells, "CALL", None)
    monkeypatch.setattr(bells.time, "sleep", slept.append)
    bell = Bell(np.zeros(LINE, np.uint8), lambda: None)
    patience = Patience(bell)
    for _ in range(bells.YIELDS + 30):
        patience()
    assert slept == sorted(slept)
    assert 0 < slept[0] < slept[-1] == bells.LONGEST
    bell.announce()
    bell.ring()
    assert bell._note[0] == 0


def test_who_has_a_core_never_sleeps(monkeypatch):
    monkeypatch.setattr(bells.time, "sleep", lambda seconds: pytest.fail("it slept"))
    patience = Patience(None)
    for _ in range(1000):
        patience()


def test_a_host_of_many_ranks_shares_no_more_than_its_budget():
    for ranks in (2, 3, 4, 8, 16, 32, 33):
        last = mpi_shared.box([np.empty(segment_bytes(ranks), np.uint8)] * ranks, 0, ranks - 1)
        assert len(last) == RING + ring_bytes(ranks)
        assert ranks * segment_bytes(ranks) < 1.5 * mpi_shared.BUDGET
        assert segment_bytes(ranks) % mmap.PAGESIZE == 0
        assert ring_bytes(ranks) // mpi_shared.PIECES % LINE == 0


def test_memory_that_cannot_be_had_is_noticed_before_anybody_writes_into_it(monkeypatch):
    assert no_room(1) == ""
    assert no_room(1 << 60).startswith("/dev/shm has ")
    size = 4 * mmap.PAGESIZE
    file = os.memfd_create("small")
    os.ftruncate(file, size)
    memory = np.frombuffer(mmap.mmap(file, size), np.uint8)
    assert unpopulated(memory[64:]) == ""
    os.ftruncate(file, mmap.PAGESIZE)  # what lies beyond the end cannot be written: SIGBUS, as on a full disk
    assert unpopulated(memory) in ("", "shared memory cannot be populated: Bad address")
    assert ctypes.get_errno() in (0, 14, 22)


def test_what_was_sent_before_the_receiver_had_its_side_arrives():
    memory, into = np.zeros(RING + CAPACITY, np.uint8), np.zeros(5, np.uint8)
    Outbox(memory, MOST, lambda: None, None).post(numbers(5, 1), TAG, Copies())
    inbox = Inbox(memory, MOST, lambda: None, None)
    assert read_header(inbox.look()) == (5, TAG)
    assert inbox.take_whole(into, None)
    assert into.tobytes() == numbers(5, 1).tobytes()
