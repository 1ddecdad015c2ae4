"""What a rank of the MPI world does with memory, the board and time, on a simulated machine of two hosts."""

import tempfile
from contextlib import nullcontext, suppress
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest

from tests.simulated import Machine, Seeded
from zerosim.errors import Deadlock
from zerosim.worlds import processes
from zerosim.worlds.board import CHANNELS, Board
from zerosim.worlds.mpi_communicator import MpiCommunicator

NUMBERS = np.arange(100.0)
HELD = 896
"""Bytes that are taken for a message of 800."""


@pytest.fixture
def run(monkeypatch):
    """Runs a program for each rank, each on a host of its own; what each returns."""
    def run(*programs):
        machine = Machine(monkeypatch, Seeded(0), hosts=range(len(programs)))
        return machine.run(lambda comm, machine: programs[comm.rank](comm, machine))

    return run


@pytest.fixture
def board():
    with tempfile.TemporaryFile() as file:
        board = Board(file.fileno(), ranks=2)
        for rank in range(2):
            board.arrive(rank)
        yield board


def told(board, rank):
    return board.what_all_do(ask=False)[rank].words


def taken_for(comm):
    """The bytes of each memory that is taken for messages from now on."""
    taken = []
    comm.take_buffers_from(lambda count, dtype, **_: taken.append(count) or np.empty(count, dtype))
    return taken


def sends(comm, machine):
    taken = taken_for(comm)
    for number in range(9):
        comm.send(NUMBERS + number, to=1)
    return taken


def receives(comm, machine):
    for number in range(9):
        comm.recv(into=(into := np.zeros(100)), source=0)
        assert into.tobytes() == (NUMBERS + number).tobytes()


def adds(comm, machine):
    taken, into = taken_for(comm), np.zeros(100)
    for _ in range(9):
        comm.recv(into=into, source=0, reduce=np.add)
    assert into.tobytes() == (9 * NUMBERS + 36).tobytes()
    return taken


def test_memory_of_messages_is_used_again_once_they_have_left(run):
    assert run(sends, receives) == [[HELD], None]


def test_memory_of_messages_that_are_added_is_used_again(run):
    assert run(sends, adds) == [[HELD], [HELD]]


def test_a_channel_takes_memory_from_where_the_first_does(run):
    def sends_one(comm, machine):
        taken = taken_for(comm)
        comm.channel().send(NUMBERS, to=1)
        return taken

    def receives_one(comm, machine):
        comm.channel().recv(into=np.zeros(100), source=0)

    assert run(sends_one, receives_one) == [[HELD], None]


@pytest.mark.parametrize("of", [lambda comm: comm, MpiCommunicator.channel], ids=["itself", "a channel"])
def test_a_wait_ends_after_its_seconds_however_often_it_looks(of, run):
    def waits(comm, machine):
        channel = of(comm)
        with pytest.raises(Deadlock, match=r"rank 0 waited 1 s for a message from rank 1"):
            channel.recv(into=np.zeros(1), source=1)
        assert machine.clock < 1.1

    run(waits, lambda comm, machine: of(comm) and machine.sleep(1.5))


def test_others_see_that_a_rank_waits_and_that_it_goes_on(run, board):
    def waits(comm, machine):
        comm.write_on(board)
        comm.recv(into=np.zeros(100), source=1)
        assert comm.came_ns >= 1e8
        return told(board, 0)

    def looks(comm, machine):
        machine.sleep(0.1)
        seen = told(board, 0)
        comm.send(NUMBERS, to=0)
        return seen

    assert run(waits, looks) == ["rank 0 computes", "rank 0 waits for a message from rank 1"]


def test_who_closes_waits_until_the_others_close(run):
    def closes(comm, machine):
        comm.close()
        return machine.clock >= 0.1

    assert run(closes, lambda comm, machine: machine.sleep(0.1)) == [True, None]


def test_a_rank_has_finished_when_its_first_channel_is_closed_and_not_before(run, board):
    def program(comm, machine):
        comm.write_on(board)
        channel = comm.channel()
        channel.close()
        before = told(board, comm.rank)
        comm.close()
        return before, told(board, comm.rank)

    assert run(program, program) == [(f"rank {rank} computes", f"rank {rank} has finished") for rank in range(2)]


def test_later_channels_share_the_last_entry_of_the_board(run, board, monkeypatch):
    given = []
    monkeypatch.setattr(board, "line", lambda rank, channel: given.append(channel))

    def program(comm, machine):
        comm.write_on(board)
        assert {comm.channel().board for _ in range(CHANNELS + 1)} == {board}

    run(program)
    assert given == [*range(CHANNELS), CHANNELS - 1, CHANNELS - 1]


@pytest.mark.parametrize(("states", "due"), [
    ("T", 54), ("t", 54), ("RTSTD" + "T" * 99, 109), ("RSD" + 9 * "TTTTTR", None),
])
def test_a_rank_that_only_sends_notices_one_that_is_stopped_and_none_that_is_busy(states, due, run, board, monkeypatch):
    """A rank is found stopped once a second, for 5 s on end; each send takes 0.1 s."""
    found = cycle(states)
    monkeypatch.setattr(processes, "state_of", lambda process: next(found) if process == "11" else "R")
    monkeypatch.setattr(Board, "processes", {0: 10, 1: 11})

    def sends(comm, machine):
        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: machine.clock))
        comm.write_on(board)
        comm.timeout_seconds, sent = 5.0, []
        with nullcontext() if due is None else pytest.raises(Deadlock, match="rank 0 waited 5 s for rank 1, which is "):
            for _ in range(500):
                comm.send(NUMBERS, to=1)
                sent.append(machine.clock)
                machine.sleep(0.1)
        return len(sent)

    def receives(comm, machine):
        machine.sleep((due or 500) / 10 + 0.5)
        with suppress(Deadlock):  # rank 0 has finished
            while True:
                comm.recv(into=np.zeros(100), source=0)

    assert run(sends, receives)[0] == (due or 500)
