"""Sends and receives apart."""

from zerosim.comm import left, right


def all_gather(comm, chunks):
    n = comm.size
    for s in range(n - 1):
        if comm.rank == 0:
            comm.send(chunks[(comm.rank - s) % n], to=right(comm))
            comm.recv(into=chunks[(comm.rank - s - 1) % n], source=left(comm))
        else:
            spare = chunks[(comm.rank - s) % n].copy()
            comm.recv(into=chunks[(comm.rank - s - 1) % n], source=left(comm))
            comm.send(spare, to=right(comm))
