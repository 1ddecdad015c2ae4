"""Every check of the conformance suite in the MPI world, and what only this world must do."""

import numpy as np
import pytest
from mpi4py import MPI

from tests.conformance import CHECKS, face_of
from tests.test_objects import check_objects_arrive
from zerosim.comm import left, right
from zerosim.errors import CollectiveError, Deadlock
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
    comm.timeout_seconds = 300


def check_tags(comm):
    """Messages under tags arrive whichever is asked for first, from a rank by name or from any; looking never waits."""
    channel = comm.channel()
    one, other = channel.tagged(0), channel.tagged(70_000)
    assert one.arrived(None) is None
    MPI.COMM_WORLD.Barrier()
    one.send(np.full(2, comm.rank), to=right(comm))
    other.send(np.full(3, 10 * comm.rank), to=right(comm))
    assert other.wait_for_any() == left(comm)
    assert other.arrived(left(comm)) == left(comm)
    found = np.zeros(3, int), np.zeros(2, int)
    other.recv(into=found[0], source=left(comm))
    one.recv(into=found[1], source=left(comm))
    assert [each.tolist() for each in found] == [[10 * left(comm)] * 3, [left(comm)] * 2]
    assert other.arrived(None) is None
    other.timeout_seconds = 0.05
    with pytest.raises(Deadlock, match=r"waited 0\.05 s for a message from any rank.* from any rank"):
        other.wait_for_any()
    with pytest.raises(CollectiveError, match="tag=-1: tags are whole numbers from 0 to "):
        channel.tagged(-1)
    MPI.COMM_WORLD.Barrier()


def check_a_second_connection_is_the_first(comm):
    assert connect() is comm
    assert comm.timeout_seconds == 300
    assert connect(400) is comm
    assert comm.timeout_seconds == 400
    with pytest.raises(CollectiveError, match="timeout_seconds=0"):
        connect(0)
    assert connect(300).timeout_seconds == 300


comm = connect(timeout_seconds=300)
if comm.size % 2:
    comm.rest_between_polls()  # as where there are fewer cores, however many there are here
checks = [*CHECKS, check_objects_arrive, check_what_cannot_travel, check_waiting_ends, check_tags,
          check_a_second_connection_is_the_first]
for check in checks:
    check(comm)
face_of(MpiWorld(connect()))
comm.close()
if comm.rank == 0:
    print(f"{comm.size} ranks of {comm.library} passed {len(checks)} checks")
