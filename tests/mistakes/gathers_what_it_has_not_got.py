"""The all-gather begins with a chunk that has not come yet.

Says: before it has got it
Says: Begin with chunks[comm.rank]
"""

from zerosim.comm import left, right


def all_gather(comm, chunks):
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = (comm.rank - step - 2) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[incoming], source=left(comm))
