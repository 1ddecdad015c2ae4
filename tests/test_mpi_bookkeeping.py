"""What a rank of the MPI world does with memory, requests and time, over a stand-in for MPI: no process is started."""

import time
from collections import deque
from itertools import cycle
from typing import ClassVar

import mpi4py
import numpy as np
import pytest

from zerosim.allocation import allocate
from zerosim.errors import Deadlock
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import ObservedAllocator
from zerosim.worlds import mpi_communicator, processes
from zerosim.worlds.board import CHANNELS
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.mpi_messages import CLOSE_NOTIFY, dtype_tag

LOOKS = 1_000
"""More looks for a message than any wait here has."""


class Request:
    """Is complete once it has been looked at so many times."""

    def __init__(self, looks=0):
        self.looks = looks

    def Test(self):  # noqa: N802 - mpi4py's names
        self.looks -= 1
        return self.looks < 0

    def Free(self):  # noqa: N802
        pass


class Letter:
    """A message that has come, and is received at once."""

    def __init__(self, content, tag):
        self.content, self.tag = content, tag

    def Irecv(self, landing):  # noqa: N802
        landing[...] = self.content
        return Request()


class Rank0Of2:
    """An intracommunicator, as far as it is asked: what has come from rank 1, and what was sent there."""

    rank, size = 0, 2

    def __init__(self, *letters, looks=0):
        self.letters, self.looks, self.sent = deque(letters), looks, []

    def Isend(self, message, to, tag):  # noqa: N802
        self.sent.append((message, tag))
        return Request(self.looks)

    def Improbe(self, source, tag=None, *, status):  # noqa: N802
        if source == self.rank:
            return Letter(np.empty(0, np.uint8), CLOSE_NOTIFY) if status.describe(0, CLOSE_NOTIFY) else None
        if not self.letters:
            return None
        letter = self.letters.popleft()
        status.describe(letter.content.nbytes, letter.tag)
        return letter

    def Dup(self):  # noqa: N802
        return Rank0Of2(looks=self.looks)


class Status:
    """Of the message that was found last."""

    def describe(self, count, tag):
        self.count, self.tag = count, tag
        return True

    def Get_count(self):  # noqa: N802
        return self.count

    def Get_tag(self):  # noqa: N802
        return self.tag


class Clock:
    """A clock that goes on by a tenth of a second at every look for a message."""

    def __init__(self):
        self.now = self.looks = 0

    def monotonic(self):
        return self.now / 10

    def pause(self):
        self.now += 1
        self.looks += 1
        assert self.looks < LOOKS, "a wait that does not end"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(mpi_communicator.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(mpi_communicator.os, "sched_yield", clock.pause)
    return clock


def connected(clock, stand_in, ledger=None):
    mpi4py.rc(initialize=False, finalize=False)
    comm = MpiCommunicator(stand_in, timeout_seconds=5.0)
    comm._mail._status, comm._pause = Status(), clock.pause
    comm.take_buffers_from(ObservedAllocator(allocate, ledger or Ledger()))
    return comm


def letters(*arrays):
    return [Letter(array.view(np.uint8), dtype_tag(array.dtype)) for array in arrays]


NUMBERS = np.arange(100.0)
HELD = 896
"""Bytes that are taken for a message of 800."""


def test_memory_of_messages_that_have_left_is_used_again(clock):
    ledger, stand_in = Ledger(), Rank0Of2()
    comm = connected(clock, stand_in, ledger)
    for _ in range(9):
        comm.send(NUMBERS, to=1)
    assert ledger.total == HELD
    assert [(len(message), tag) for message, tag in stand_in.sent] == [(800, dtype_tag(NUMBERS.dtype))] * 9


def test_memory_of_messages_on_their_way_is_left_alone(clock):
    ledger, stand_in = Ledger(), Rank0Of2(looks=LOOKS)
    comm = connected(clock, stand_in, ledger)
    for number in range(9):
        comm.send(NUMBERS + number, to=1)
    assert ledger.total == 9 * HELD
    assert [message.view("f8")[0] for message, _ in stand_in.sent] == list(range(9))


def test_memory_of_messages_that_are_added_is_used_again(clock):
    ledger, into = Ledger(), np.zeros(100)
    comm = connected(clock, Rank0Of2(*letters(*[NUMBERS] * 9)), ledger)
    for _ in range(9):
        comm.recv(into=into, source=1, reduce=np.add)
    assert ledger.total == HELD
    assert into.tobytes() == (9 * NUMBERS).tobytes()


def test_a_channel_takes_memory_from_where_the_first_does(clock):
    ledger = Ledger()
    channel = connected(clock, Rank0Of2(), ledger).channel()
    channel.send(NUMBERS, to=1)
    assert ledger.total == HELD


@pytest.mark.parametrize("of", [lambda comm: comm, MpiCommunicator.channel], ids=["itself", "a channel"])
def test_a_wait_ends_after_its_seconds_however_often_it_looks(clock, of):
    comm = of(connected(clock, Rank0Of2()))
    with pytest.raises(Deadlock, match=r"rank 0 waited 5 s for a message from rank 1"):
        comm.recv(into=np.zeros(1), source=1)
    assert clock.looks == 51


def test_a_channel_rests_between_looks_as_the_first_does(clock, monkeypatch):
    comm = connected(clock, Rank0Of2())
    monkeypatch.setattr(mpi_communicator.os, "sched_yield", lambda: pytest.fail("it did not rest"))
    with pytest.raises(Deadlock):
        comm.channel().recv(into=np.zeros(1), source=1)


class Line:
    """Notes what a rank lets the others see."""

    def __init__(self):
        self.seen = []

    def goes_to(self, spot):
        pass

    def waits(self, source):
        self.seen.append(f"waits for {source}")

    def goes_on(self):
        self.seen.append("goes on")


def test_others_see_that_a_rank_waits_and_that_it_goes_on(clock):
    comm, (letter,) = connected(clock, stand_in := Rank0Of2()), letters(NUMBERS)
    comm._line = line = Line()
    honest, before_ns = comm._pause, time.monotonic_ns()

    def pause():
        honest()
        stand_in.letters.append(letter)

    comm._pause = pause
    comm.recv(into=np.zeros(100), source=1)
    assert line.seen == ["waits for 1", "goes on"]
    assert before_ns <= comm.came_ns <= time.monotonic_ns()


def test_who_closes_waits_until_all_that_it_sent_has_left(clock):
    comm = connected(clock, Rank0Of2(*letters(), Letter(np.empty(0, np.uint8), CLOSE_NOTIFY), looks=20))
    comm.send(NUMBERS, to=1)
    comm.close()
    assert clock.looks == 20


def test_who_closes_waits_until_the_others_close(clock):
    stand_in = Rank0Of2()
    comm = connected(clock, stand_in)
    honest = comm._pause

    def pause():
        honest()
        if clock.looks == 20:
            stand_in.letters.append(Letter(np.empty(0, np.uint8), CLOSE_NOTIFY))

    comm._pause = pause
    comm.close()
    assert clock.looks == 20


class Board:
    """Notes which ranks have finished."""

    processes: ClassVar = {0: 10, 1: 11}

    def __init__(self):
        self.finished = []

    def what_all_do(self):
        return [("rank 0 computes", ""), ("rank 1 is stopped", "")]

    def line(self, rank, channel):
        return None

    def finish(self, rank):
        self.finished.append(rank)


def test_a_rank_has_finished_when_its_first_channel_is_closed_and_not_before(clock):
    board = Board()
    comm = connected(clock, Rank0Of2(Letter(np.empty(0, np.uint8), CLOSE_NOTIFY)))
    comm.write_on(board)
    channel = comm.channel()
    channel._comm.letters.append(Letter(np.empty(0, np.uint8), CLOSE_NOTIFY))
    channel._mail._status = Status()
    channel.close()
    assert board.finished == []
    comm.close()
    assert board.finished == [0]


def test_later_channels_share_the_last_entry_of_the_board(clock):
    board, comm, given = Board(), connected(clock, Rank0Of2()), []
    board.line = lambda rank, channel: given.append(channel)
    comm.write_on(board)
    assert {comm.channel().board for _ in range(CHANNELS + 1)} == {board}
    assert given == [*range(CHANNELS), CHANNELS - 1, CHANNELS - 1]


@pytest.mark.parametrize(("states", "due"), [
    ("T", 56), ("t", 56), ("RTSTD" + "T" * 99, 111), ("RSD" + 9 * "TTTTTR", None),
])
def test_a_rank_that_only_sends_notices_one_that_is_stopped_and_none_that_is_busy(states, due, clock, monkeypatch):
    """A rank is found stopped once a second, for 5 s on end; each send takes 0.1 s."""
    comm, found = connected(clock, Rank0Of2()), cycle(states)
    comm.write_on(Board())
    monkeypatch.setattr(processes, "state_of", lambda process: next(found) if process == "11" else "R")

    def send():
        while clock.looks < LOOKS // 2:
            comm.send(NUMBERS, to=1)
            clock.pause()

    if due is None:
        send()
        return
    with pytest.raises(Deadlock, match="rank 0 waited 5 s for rank 1, which is stopped: rank 0 computes; rank 1 is "):
        send()
    assert clock.looks == due
