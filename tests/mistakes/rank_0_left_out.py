"""Rank 0 makes one round fewer than the others.

Says: has sent rank 1
Says: Every receive needs its send
"""

from zerosim.comm import left, right


def all_gather(comm, chunks):
    for step in range(comm.size - 1 - (comm.rank == 0)):
        comm.send(chunks[(comm.rank - step) % comm.size], to=right(comm))
    for step in range(comm.size - 1):
        comm.recv(into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))
