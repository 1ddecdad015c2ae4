"""A film as its script adds it up, and a collective that goes wrong in one."""

import numpy as np

from zerosim.collectives import ring
from zerosim.core.comm import left, right


def rebuilt(panel):
    """The cells of every frame of a panel, as `film.js` adds up what changed."""
    cells = {}
    for frame in panel["frames"]:
        cells |= {(rank, cell): content for rank, cell, content in frame["cells"]}
        yield {place: content for place, content in cells.items() if content}


def astray_all_reduce(comm, chunks):
    """The ring, in whose second round rank 2 sends another chunk."""
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1 + (step == 1 and comm.rank == 2)) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[(comm.rank - step - 2) % comm.size],
                      source=left(comm), reduce=np.add)
    ring.all_gather(comm, chunks)
