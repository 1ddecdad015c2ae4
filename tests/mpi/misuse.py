"""What a rank may do wrong without harm to the others; `python -m tests.mpi.misuse`, on any number of ranks."""

import os
import signal
import sys

import numpy as np
import pytest

from zerosim.core.comm import left, right
from zerosim.core.errors import CollectiveError
from zerosim.worlds import mpi


def refused(call, words):
    with pytest.raises(CollectiveError, match=words):
        call()


def goes_on(comm):
    into = np.zeros(3)
    comm.exchange(np.full(3, float(comm.rank)), to=right(comm), into=into, source=left(comm))
    assert (into == left(comm)).all()


comm = mpi.connect()
goes_on(comm)

for way in ("exit", "raise", "killed"):
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        if way == "exit":
            sys.exit(7)
        if way == "raise":
            raise ValueError("a child's own affair")
        os.kill(os.getpid(), signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == {"exit": 7, "raise": 1, "killed": -signal.SIGTERM}[way], (way, code)
    goes_on(comm)

comm.close()
for call in (
    lambda: comm.send(np.zeros(3), to=right(comm)), lambda: comm.recv(into=np.zeros(3), source=left(comm)),
    lambda: comm.exchange(np.zeros(3), to=right(comm), into=np.zeros(3), source=left(comm)),
):
    refused(call, f"rank {comm.rank} has closed this communicator")
