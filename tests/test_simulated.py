"""Ranks over a simulated machine, in every schedule of small programs and in drawn ones of larger: what arrives."""

import numpy as np
import pytest

from tests.simulated import Machine, Seeded, every
from zerosim.comm import left, right
from zerosim.errors import CollectiveError
from zerosim.worlds import boxes
from zerosim.worlds.mpi_communicator import MpiCommunicator

SIZES = (1, 12, 2)
"""Elements of 8 bytes: a message in one piece, one longer than a ring, and one more."""


def sent(number, source=0):
    return np.arange(SIZES[number % 3]) + 100.0 * number + 1000.0 * source + 1


def messages(count):
    def program(comm, machine):
        """Rank 0 sends, reuses its array, and waits for an answer; rank 1 receives or adds."""
        for number in range(count):
            if comm.rank == 0:
                outgoing = sent(number)
                comm.send(outgoing, to=1)
                outgoing[:] = -1
            else:
                into = machine.landed[number] = np.ones(SIZES[number])
                comm.recv(into=into, source=0, reduce=(None, np.add, None)[number])
                assert (into == sent(number) + (number == 1)).all()
        if comm.rank == 1:
            comm.send(sent(0), to=0)
        else:
            comm.recv(into=np.zeros(1), source=1)

    return program


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("count", "sleeps"), [(3, False), (1, True), (0, False), (0, True)])
def test_every_schedule_of_some_messages_and_of_beginning_and_end(count, sleeps, early, monkeypatch):
    tried = 0
    for schedule in every():
        machine = Machine(monkeypatch, schedule, early=early, set_up=count == 0)
        machine.run(messages(count) if count else lambda comm, machine: None, sleeps=sleeps)
        assert not machine.expired, "a wake-up was lost"
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("early", [False, True])
def test_no_wake_up_is_lost_in_drawn_schedules_of_three_messages(early, monkeypatch):
    for seed in range(40):
        machine = Machine(monkeypatch, Seeded(seed), early=early)
        machine.run(messages(3), sleeps=True)
        assert not machine.expired


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("hosts", [(0, 0), (0, 0, 0), (0, 0, 1), (0, 1)])
def test_drawn_schedules_of_exchanges(hosts, early, monkeypatch):
    """Arrays are reused at once; some ranks compute for so long that others' patience ends."""
    def program(comm, machine):
        for number in range(6):
            outgoing, into = sent(number, comm.rank), np.ones(SIZES[number % 3])
            machine.sleep(0.005 * (comm.rank == number % 2))
            reduce = (None, np.add, lambda arrived, mine: arrived + mine)[number % 3]
            comm.exchange(outgoing, to=right(comm), into=into, source=left(comm), reduce=reduce)
            outgoing[:] = -1
            assert (into == sent(number, left(comm)) + (reduce is not None)).all()
        comm.send(sent(1), to=right(comm))  # is on its way while nobody but `close` moves it on
        comm.recv(into=np.zeros(SIZES[1]), source=left(comm))

    for seed in range(10):
        Machine(monkeypatch, Seeded(seed), hosts=hosts, early=early).run(program, sleeps=bool(seed % 2))


@pytest.mark.parametrize("early", [False, True])
def test_drawn_schedules_of_messages_that_are_read_from_the_sender_s_memory(early, monkeypatch):
    """The sender reuses its array at once, while the receiver may already read it."""
    monkeypatch.setattr(boxes, "DIRECT", SIZES[1] * 8)
    monkeypatch.setattr(boxes, "GRACE", 0)

    def program(comm, machine):
        others = [rank for rank in machine.ranks if rank != comm.rank]
        outgoing = {to: sent(1, comm.rank) for to in others}
        for to in others:
            comm.send(outgoing[to], to=to)
            outgoing[to][:] = -1
        for source in others:
            into = np.ones(SIZES[1])
            comm.recv(into=into, source=source, reduce=np.add)
            assert (into == sent(1, source) + 1).all()
        return outgoing

    for seed in range(200):
        Machine(monkeypatch, Seeded(seed), hosts=(0, 0, 0), early=early).run(program)


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)])
@pytest.mark.parametrize("of", [lambda comm: comm, MpiCommunicator.channel], ids=["itself", "a channel"])
def test_a_rank_that_shares_its_core_looks_seldom(of, hosts, monkeypatch):
    """At a box it sleeps a millisecond at a time, of the tenth of a second that the other computes, and is woken."""
    def program(comm, machine):
        channel = of(comm)
        before = machine.looks[comm.rank]
        if comm.rank == 0:
            machine.sleep(0.1)
            channel.send(sent(0), to=1)
        else:
            channel.recv(into=np.zeros(1), source=0)
        return machine.looks[comm.rank] - before

    machine = Machine(monkeypatch, Seeded(0), hosts=hosts)
    _, looks = machine.run(program, sleeps=True)
    assert looks < 5
    assert machine.expired == (99 if hosts == (0, 0) else 0)


def test_an_array_that_is_sent_and_received_into_at_once_leaves_as_it_was(monkeypatch):
    """It is longer than the ring, so most of it has not left when the neighbour's arrives."""
    def program(comm, machine):
        both = sent(1, comm.rank)
        comm.exchange(both, to=right(comm), into=both, source=left(comm), reduce=np.add)
        assert (both == sent(1) * 2 + 1000 * sum(machine.ranks)).all()

    for seed in range(10):
        Machine(monkeypatch, Seeded(seed)).run(program)


def test_mpi_makes_progress_while_a_rank_waits_at_a_box(monkeypatch):
    def program(comm, machine):
        if comm.rank == 0:
            comm.send(sent(1), to=2)
        comm.recv(into=np.zeros(SIZES[1]), source=(comm.rank + 1) % 3 if comm.rank < 2 else 0)
        if comm.rank > 0:
            comm.send(sent(1), to=comm.rank - 1)

    Machine(monkeypatch, Seeded(0), hosts=(0, 0, 1)).run(program)


def test_messages_under_tags_are_found_each_by_its_own(monkeypatch):
    def program(comm, machine):
        channel = comm.channel(transport="mpi")
        one, other = channel.tagged(0), channel.tagged(7)
        if comm.rank == 0:
            other.send(np.array([2]), to=1)
        elif comm.rank == 1:
            assert other.wait_for_any() == 0
            assert one.arrived(None) is None
            comm.send(sent(0), to=2)
            assert one.wait_for_any() == 2
            assert other.arrived(None) == 0
            assert one._mail.came_from() == 2
            for each, source in ((one, 2), (other, 0)):
                each.recv(into=np.zeros(1, int), source=source)
        else:
            comm.recv(into=np.zeros(1), source=1)
            one.send(np.array([3]), to=1)

    Machine(monkeypatch, Seeded(0), hosts=(0, 0, 0)).run(program)


def test_messages_that_nobody_receives_arrive_in_memory_that_lasts(monkeypatch):
    def program(comm, machine):
        if comm.rank == 0:
            for number in range(3):
                comm.send(sent(number), to=1)

    with pytest.raises(CollectiveError, match=r"rank 1 ended without receiving 3 message\(s\) from rank 0"):
        Machine(monkeypatch, Seeded(0), hosts=(0, 1)).run(program)


def test_some_ranks_of_some_ranks_are_those_that_are_named(monkeypatch):
    def program(comm, machine):
        if comm.rank == 0:
            return
        inner = comm.channel(ranks=[1, 2, 3]).channel(ranks=[3, 1]) if comm.rank != 2 else comm.channel(ranks=[1, 2, 3])
        into = np.zeros(1)
        if comm.rank != 2:
            inner.exchange(sent(0, comm.rank), to=4 - comm.rank, into=into, source=4 - comm.rank)
            assert into == sent(0, 4 - comm.rank)

    for seed in range(5):
        Machine(monkeypatch, Seeded(seed), hosts=(0, 0, 0, 0)).run(program)
