"""What comes is added to the sender's chunk, not to the receiver's.

Says: in round 1 rank 3 sends chunk 0 to rank 0, which receives it into chunk 3
"""

import numpy as np


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.exchange(chunks[to], to=to, into=chunks[source], source=source, reduce=reduce)
