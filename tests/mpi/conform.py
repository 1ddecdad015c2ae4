"""Every check of the conformance suite in the MPI world, and what only this world must do."""

import numpy as np
import pytest

from tests.conformance import CHECKS
from tests.test_objects import check_objects_arrive
from zerosim.comm import left, right
from zerosim.errors import CollectiveError, Deadlock
from zerosim.worlds.mpi import connect


def check_what_cannot_travel(comm):
    read_only = np.zeros(1)
    read_only.flags.writeable = False
    for refused, into in (("read-only", read_only), ("object", np.zeros(1, object)),
                          ("type list", [0.0]), ("type float64", np.float64(0))):
        with pytest.raises(CollectiveError, match=f"into .*{refused}"):
            comm.exchange(np.zeros(1), to=right(comm), into=into, source=left(comm))
    for refused, outgoing in (("object", np.zeros(1, object)), ("type float", 0.0)):
        with pytest.raises(CollectiveError, match=f"outgoing .*{refused}"):
            comm.send(outgoing, to=right(comm))


def check_waiting_ends(comm):
    comm.timeout_seconds = 0.05
    with pytest.raises(Deadlock, match=rf"rank {comm.rank} waited 0\.05 s .*rank {left(comm)}"):
        comm.recv(into=np.zeros(1), source=left(comm))
    comm.timeout_seconds = 20


comm = connect(timeout_seconds=20)
checks = [*CHECKS, check_objects_arrive, check_what_cannot_travel, check_waiting_ends]
for check in checks:
    check(comm)
comm.close()
if comm.rank == 0:
    print(f"{comm.size} ranks of {comm.library} passed {len(checks)} checks")
