"""Every round sends the rank's own chunk.

Says: in each of its 3 rounds
"""

from zerosim.comm import left, right


def all_gather(comm, chunks):
    for step in range(comm.size - 1):
        outgoing = comm.rank
        incoming = (comm.rank - step - 1) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm))
