"""Every check of the conformance suite in the MPI world, and what only this world must do.

`python -m tests.mpi.conform`.
"""

import sys
import time

import numpy as np
import pytest
from mpi4py import MPI

import zerosim as zs
from tests.collectives.mpi_suites import CHECKS_UNDER_MPI
from tests.conformance import CHECKS, LARGE, face_of, objects_arrive, received, same, tagged
from zerosim.core.allocation import allocate
from zerosim.core.comm import left, right
from zerosim.core.errors import CollectiveError, Deadlock
from zerosim.worlds.mpi import MpiWorld, connect


def check_what_cannot_travel(comm):
    objects = np.zeros(1, object)
    with pytest.raises(CollectiveError, match=r"into .*object"):
        comm.exchange(np.zeros(1), to=right(comm), into=objects, source=left(comm))
    with pytest.raises(CollectiveError, match=r"outgoing .*object"):
        comm.send(objects, to=right(comm))


def check_waiting_ends(comm):
    comm.timeout_seconds = 0.05
    with pytest.raises(Deadlock, match=rf"rank {comm.rank} waited 0\.05 s .*rank {left(comm)}"):
        comm.recv(into=np.zeros(1), source=left(comm))
    MPI.COMM_WORLD.Barrier()  # whoever ends sooner says so, and then is not waited for
    comm.timeout_seconds = 60


def check_tags(comm):
    """Messages under tags arrive whichever is asked for first."""
    channel = comm.channel()
    one, other = channel.tagged(0), channel.tagged(70_000)
    MPI.COMM_WORLD.Barrier()
    one.send(np.full(2, comm.rank), to=right(comm))
    other.send(np.full(3, 10 * comm.rank), to=right(comm))
    arrived = np.zeros(3, int), np.zeros(2, int)
    other.recv(into=arrived[0], source=left(comm))
    one.recv(into=arrived[1], source=left(comm))
    assert [array.tolist() for array in arrived] == [[10 * left(comm)] * 3, [left(comm)] * 2]
    other.timeout_seconds = 0.05
    with pytest.raises(Deadlock, match=r"waited 0\.05 s for a message from rank"):
        other.recv(into=arrived[0], source=left(comm))
    with pytest.raises(CollectiveError, match="tag=-1: tags are whole numbers from 0 to "):
        channel.tagged(-1)
    MPI.COMM_WORLD.Barrier()


def check_a_send_waits_for_nobody(comm):
    """Large messages leave while their sender is elsewhere, from memory that was taken where it shall be taken."""
    taken = []

    def counting(shape, dtype, *, kind, owner):
        taken.append(shape)
        return allocate(shape, dtype, kind=kind, owner=owner)

    comm.take_buffers_from(counting)
    for count in (LARGE // 8, LARGE // 2, 3):
        for number in range(2):
            comm.send(tagged(comm.rank, count) + number, to=right(comm))
    MPI.COMM_WORLD.Barrier()
    if comm.size > 1:
        assert sum(taken) >= 4 * LARGE
    for count in (LARGE // 8, LARGE // 2, 3):
        for number in range(2):
            same(received(comm, count, source=left(comm)), tagged(left(comm), count) + number)
        MPI.COMM_WORLD.Barrier()  # nobody's MPI is asked for messages meanwhile
    comm.take_buffers_from(allocate)


def check_channels_wait_for_one_another(comm):
    """What was sent in one channel arrives while its sender waits in another."""
    other = comm.channel()
    comm.send(tagged(comm.rank, LARGE), to=right(comm))
    if comm.rank == 0:
        same(received(comm, LARGE, source=left(comm)), tagged(left(comm), LARGE))
        other.send(tagged(0), to=right(comm))
    same(received(other, source=left(comm)), tagged(0))
    if comm.rank > 0:
        other.send(tagged(0), to=right(comm))
        same(received(comm, LARGE, source=left(comm)), tagged(left(comm), LARGE))


def check_messages_leave_while_another_lies_unreceived(comm):
    """MPI goes on with what it sends although a message is here that nobody has received: seen between hosts only."""
    apart = comm.channel().tagged(0)
    comm.send(tagged(comm.rank), to=comm.rank)
    apart.send(tagged(comm.rank, LARGE), to=right(comm))
    if comm.rank > 0:
        same(received(comm, source=left(comm)), tagged(left(comm)))
    same(received(apart, LARGE, source=left(comm)), tagged(left(comm), LARGE))
    if comm.size > 1:
        comm.send(tagged(comm.rank), to=right(comm))
    if comm.rank == 0 and comm.size > 1:
        same(received(comm, source=left(comm)), tagged(left(comm)))
    same(received(comm, source=comm.rank), tagged(comm.rank))


def check_a_reduction_that_fails_leaves_the_next_message_whole(comm):
    for count in (5, LARGE):
        comm.send(np.zeros(count), to=right(comm))
        comm.send(tagged(comm.rank), to=right(comm))
        with pytest.raises(TypeError):
            comm.recv(into=np.zeros(count), source=left(comm), reduce=np.bitwise_and)
        same(received(comm, source=left(comm)), tagged(left(comm)))


def check_random_messages(comm):
    """Lengths around those of pieces and rings, some at once, in every manner."""
    chance = np.random.default_rng(1)
    for _ in range(30):
        counts = [int(chance.choice((0, 1, 7, 8, 9, 16_376, 16_384, 16_385, 131_064, 131_072, 200_000)))
                  for _ in range(int(chance.integers(1, 4)))]
        distance, manner = int(chance.integers(comm.size)), int(chance.integers(3))
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        if manner == 0:
            for count in counts:
                comm.send(tagged(comm.rank, count), to=to)
        for count in counts:
            into = np.ones(count)
            if manner == 0:
                comm.recv(into=into, source=source, reduce=np.subtract)
            else:
                comm.exchange(tagged(comm.rank, count), to=to, into=into, source=source, reduce=np.subtract)
            same(into, tagged(source, count) - 1)
            if manner == 2 and comm.rank == 0:
                time.sleep(1e-3)


WALK = ["exchange", "_check", "depart", "arrive", "match", "deliver"]
"""The calls of an exchange of a small message, in order, as docs/architecture.md lists them."""
IN_FLIGHT = ("_waiting_bytes", "_polled")
"""The calls that follow if MPI has not sent or received the message at once."""


def check_an_exchange_is_six_calls(comm):
    called, outgoing, into, to, source = [], tagged(comm.rank), np.zeros(5), right(comm), left(comm)

    def note(frame, event, _):
        if event == "call" and "/zerosim/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    for _ in range(2):  # at first the tag of the dtype is computed as well
        called.clear()
        sys.setprofile(note)
        comm.exchange(outgoing, to=to, into=into, source=source, reduce=np.add)
        sys.setprofile(None)
    assert [name for name in called if name not in IN_FLIGHT] == WALK, called


def check_the_librarys_own_collectives(comm):
    """What `zerosim bench collectives` compares with computes the same."""
    ours = {"all_reduce": zs.all_reduce, "reduce_scatter": zs.reduce_scatter, "all_gather": zs.all_gather,
            "broadcast": zs.broadcast}
    for name, own in comm.own_collectives().items():
        x = tagged(comm.rank, 3 * comm.size, np.float32)
        due = ours[name](comm, x, **({"reduce": np.maximum} if "reduce" in name else {}))
        out = x.copy() if name == "broadcast" else np.empty_like(due)
        own(x, out)
        same(out, due)


def check_a_second_connection_is_the_first(comm):
    assert connect() is comm
    assert comm.timeout_seconds == 60
    assert connect(400) is comm
    assert comm.timeout_seconds == 400
    with pytest.raises(CollectiveError, match="timeout_seconds=0"):
        connect(0)
    assert connect(60).timeout_seconds == 60


comm = connect(timeout_seconds=60)
checks = [*CHECKS, objects_arrive, check_what_cannot_travel, check_waiting_ends,
          check_tags, check_a_send_waits_for_nobody, check_channels_wait_for_one_another,
          check_messages_leave_while_another_lies_unreceived,
          check_a_reduction_that_fails_leaves_the_next_message_whole,
          check_random_messages, check_an_exchange_is_six_calls,
          check_the_librarys_own_collectives, check_a_second_connection_is_the_first, *CHECKS_UNDER_MPI]
for check in checks:
    check(comm)
face_of(MpiWorld(connect()))
comm.close()
if comm.rank == 0:
    print(f"{comm.size} ranks of {comm.library} passed {len(checks)} checks")
