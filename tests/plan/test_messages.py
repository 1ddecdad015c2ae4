"""Messages of a plan: closed forms, SimGrid's answers; and the lockstep world, where a rank is a vector."""

import json

import numpy as np
import pytest

from tests.oracles import simgrid_cases as simgrid
from zerosim.collectives import ring, tree
from zerosim.core.errors import Deadlock, Unlike
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import Links, ReceiveFrom, last_end_ns, written_ns
from zerosim.worlds.lockstep import LockstepCommunicator, ranks

ANSWERS = json.loads(simgrid.ANSWERS.read_text())
CASES = {case.name: case for case in simgrid.cases()}


@pytest.mark.parametrize(("size", "chunk", "link"), [
    (2, 1_000_003, Link("", 1000, 10**9)), (64, 1_000_003, Link("", 1000, 10**9)), (64, 100, Link("", 0, 3 * 10**9))])
def test_the_ring_takes_its_closed_form_to_the_nanosecond(size, chunk, link):
    """Short messages are not off by a rounding each."""
    machine = Cluster(Device("", 1e12, 1e9, 1e11), size, link, link, pipelined=False, fused=False)
    one_way = (size - 1) * (link.latency_ns + chunk * 1e9 / link.bytes_per_second)
    assert written_ns(ring.all_gather, chunk * size, 1, machine, size) == round(one_way)
    assert written_ns(ring.all_reduce, chunk * size, 1, machine, size) == round(2 * one_way)


@pytest.mark.parametrize("ranks", sorted({case.ranks for case in CASES.values() if case.ranks < 50} | {256}))
def test_messages_take_what_simgrid_says(ranks):
    """To the nearest nanosecond, as plans round, or to a part in 10⁹."""
    for case in CASES.values():
        if case.ranks == ranks:
            ours, answer = written_ns(case.function, case.bytes, 1, case.cluster, ranks), ANSWERS[case.name]
            assert abs(ours - answer) <= 0.5 + 1e-9 * answer, case.name


def test_simgrid_has_answered_every_case_and_another_answer_is_seen():
    """Of one schedule it answers otherwise when links are faster by a part in 10¹²: rounding decides who is first."""
    assert list(ANSWERS) == [*CASES]
    name, other = next(iter(CASES)), simgrid.HANGS_ON_THE_LAST_BIT
    assert simgrid.wrong({**ANSWERS, name: ANSWERS[name] * (1 + 1e-6)}, ANSWERS) == [name]
    assert abs(ANSWERS[simgrid.nudged(CASES[other]).name] / ANSWERS[other] - 1) > 1e-3


def test_a_message_that_nobody_sends_is_a_deadlock():
    with pytest.raises(Deadlock, match="rank 1 waits"):
        last_end_ns([[], [ReceiveFrom(0)]], Links([1.0], lambda source, to, port: (0, [0])))


@pytest.mark.parametrize("program", [
    lambda comm: tree.broadcast(comm, None, 0), lambda comm: comm.send(None, to=0),
    lambda comm: comm.exchange(None, to=0, into=None, source=0),
])
def test_ranks_in_lockstep_do_the_same_and_send_nothing(program):
    with pytest.raises(Unlike, match=r"ranks would do different things|the lockstep world carries no messages"):
        program(LockstepCommunicator(4))


def test_a_rank_that_is_a_vector_answers_what_is_true_of_all_and_cuts_equal_pieces():
    assert ranks(4) >= 0
    assert not ranks(4) > 3
    with pytest.raises(Unlike):
        bool(ranks(4) > 2)
    assert split(Extent(12, np.float32), 4)[(ranks(4) + 1) % 4].shape == (3,)
    with pytest.raises(Unlike, match="not equally long"):
        split(Extent(10, np.float32), 4)[ranks(4)]
