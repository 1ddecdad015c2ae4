"""Rank programs that end badly, one for each way; `python -m tests.mpi.fail WAY`."""

import os
import signal
import sys
import time

import numpy as np

from zerosim.core.comm import left, right
from zerosim.core.errors import ScenarioError
from zerosim.worlds.mpi import connect


def one_raises(comm):
    if comm.rank == 1:
        raise ValueError("planted on rank 1")
    comm.recv(into=np.zeros(1), source=1)


def one_raises_while_others_compute(comm):
    if comm.rank == 1:
        raise ValueError("planted on rank 1")
    time.sleep(600)


def all_raise(comm):
    raise ValueError(f"planted on rank {comm.rank}")


def all_refuse_the_scenario(comm):
    raise ScenarioError("planted", file="a.toml")


def one_is_killed(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.recv(into=np.zeros(1), source=1)


def all_wait(comm):
    comm.recv(into=np.zeros(1), source=left(comm))


def lengths_differ(comm):
    into = np.zeros(1 << 10)
    comm.exchange(np.zeros(1 << 20), to=right(comm), into=into, source=left(comm))


def one_never_receives(comm):
    if comm.rank == 0:
        comm.send(np.zeros(1 << 20), to=1)
    else:
        time.sleep(600)


def one_message_is_left(comm):
    if comm.rank == 0:
        comm.send(np.zeros(1 << 20), to=1)
        comm.send(np.zeros(1), to=1)


def one_leaves_early(comm):
    if comm.rank == 1:
        sys.exit()
    comm.recv(into=np.zeros(1), source=1)


def one_ends_long_before_the_others(comm):
    if comm.rank != 0:
        time.sleep(1)


def interrupted(comm):
    if comm.rank == 1:
        raise KeyboardInterrupt
    comm.recv(into=np.zeros(1), source=1)


WAYS_TO_WAIT_IN_VAIN = (all_wait, one_never_receives, one_ends_long_before_the_others)
way = globals()[sys.argv[1]]
way(connect(timeout_seconds=0.5 if way in WAYS_TO_WAIT_IN_VAIN else 600))
