"""Collectives that the scenarios beside this file try out: right ones, wrong ones, and one that is unsafe."""

import numpy as np

from zerosim.collectives import ring, tree
from zerosim.comm import left, right


def all_gather_by_broadcasts(comm, chunks):
    """Every owner broadcasts its chunk."""
    for root in range(comm.size):
        tree.broadcast(comm, chunks[root], root)


def all_reduce_without_chunks(comm, x):
    """Whole vectors go around, and each rank adds what arrives: in an order of its own."""
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
        total = np.add(total, passing)
    return total


def all_gather_send_first(comm, chunks):
    """The ring's all-gather with a send and a receive instead of an exchange."""
    for step in range(comm.size - 1):
        comm.send(chunks[(comm.rank - step) % comm.size], to=right(comm))
        comm.recv(into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))


def all_reduce_with_a_bug(comm, chunks, reduce=np.add):
    """The second half begins one chunk too low: with one that is not complete yet."""
    ring.reduce_scatter(comm, chunks, reduce)
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step - 1) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm))
