"""On one rank nothing is to be sent, and here a partner is looked for.
"""

from zerosim.collectives import ring
from zerosim.comm import left


def my_all_gather(comm, chunks):
    comm.recv(into=chunks[left(comm)], source=left(comm)) if comm.size == 1 else ring.all_gather(comm, chunks)
