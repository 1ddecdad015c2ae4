"""What it works on comes before the communicator.

Says: its parameters are (chunks, comm)
Says: make comm the first parameter
"""

from zerosim.comm import left, right


def all_gather(chunks, comm):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))
