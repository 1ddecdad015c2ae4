"""The loop counts no steps.

Says: has sent 280 messages, and goes on
Says: while step < comm.size - 1, does not end: step is 0, and nothing within it changes step
"""

from zerosim.comm import left, right


def all_gather(comm, chunks):
    step = 0
    while step < comm.size - 1:
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))
