"""What is the local world's own: turns, deadlocks, failures, mail that nobody fetched."""

import sys
import threading

import numpy as np
import pytest

from zerosim.core.comm import left, right
from zerosim.core.errors import CollectiveError, Deadlock
from zerosim.worlds.local import StillRunning, spawn


def test_results_come_in_rank_order_whatever_the_seed():
    for seed in range(5):
        assert spawn(lambda comm: (comm.rank, comm.size), ranks=4, seed=seed) == [
            (0, 4), (1, 4), (2, 4), (3, 4),
        ]


def test_exactly_one_rank_runs_at_a_time():
    running, seen = [], []

    def program(comm):
        mine = np.zeros(1)
        for _ in range(5):
            running.append(comm.rank)
            seen.append(len(running))
            running.remove(comm.rank)
            comm.exchange(mine, to=right(comm), into=mine, source=left(comm))

    spawn(program, ranks=4)
    assert set(seen) == {1}


def test_the_seed_changes_who_runs_first():
    def orders(seed):
        ran = []
        spawn(lambda comm: ran.append(comm.rank), ranks=5, seed=seed)
        return tuple(ran)

    assert orders(1) == orders(1)
    assert len({orders(seed) for seed in range(10)}) > 1


def test_a_deadlock_says_who_waits_for_whom():
    def program(comm):
        comm.recv(into=np.empty(1), source=right(comm))

    with pytest.raises(Deadlock) as caught:
        spawn(program, ranks=3)
    for rank in range(3):
        assert f"rank {rank} waits for a message from rank {(rank + 1) % 3}" in str(caught.value)


def test_a_send_waits_for_its_receiver_in_a_rendezvous():
    def program(comm):
        comm.send(np.zeros(1), to=right(comm))
        comm.recv(into=np.empty(1), source=left(comm))

    spawn(program, ranks=2)
    with pytest.raises(Deadlock, match="its message to be received by rank"):
        spawn(program, ranks=2, sends="rendezvous")


def test_the_first_failure_is_raised_and_names_its_rank():
    def program(comm):
        if comm.rank == 1:
            raise ValueError("wrong")
        comm.recv(into=np.empty(1), source=1)

    with pytest.raises(ValueError, match="wrong") as caught:
        spawn(program, ranks=3)
    assert "rank 1" in caught.value.__notes__[0]


def test_no_thread_outlives_its_world():
    before = {*threading.enumerate()}
    with pytest.raises(Deadlock):
        spawn(lambda comm: comm.recv(into=np.empty(1), source=left(comm)), ranks=4)
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
        assert not thread.is_alive()


def test_a_message_that_nobody_receives_is_an_error():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.zeros(1), to=1)

    with pytest.raises(CollectiveError, match=r"rank 1 ended without receiving 1 message"):
        spawn(program, ranks=2)


@pytest.mark.parametrize("ranks", [0, -1, 2.0, True])
def test_a_world_needs_a_whole_number_of_ranks(ranks):
    with pytest.raises(CollectiveError, match="integer number of ranks"):
        spawn(lambda comm: None, ranks=ranks)


@pytest.mark.parametrize("code", [None, 0, 5])
def test_a_rank_that_exits_is_no_success(code):
    def program(comm):
        if comm.rank == 1:
            sys.exit(code)

    with pytest.raises(CollectiveError, match=rf"rank 1 of 3 called sys.exit\({code}\)"):
        spawn(program, ranks=3)


@pytest.mark.parametrize("use", [
    lambda comm: comm.send(np.zeros(1), to=0),
    lambda comm: comm.recv(into=np.zeros(1), source=0),
    lambda comm: comm.exchange(np.zeros(1), to=0, into=np.zeros(1), source=0),
])
def test_a_communicator_cannot_outlive_its_world(use):
    (comm,) = spawn(lambda comm: comm, ranks=1)
    with pytest.raises(CollectiveError, match="world has ended"):
        use(comm)


def test_a_program_that_does_not_end_is_told_of():
    told = threading.Event()

    def program(comm):
        if comm.rank == 1:
            told.wait()

    with pytest.raises(StillRunning, match=r"rank 1 still ran after 0\.1 s"):
        spawn(program, ranks=3, limit_seconds=0.1)
    told.set()
