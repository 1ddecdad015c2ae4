"""What comes is added to the sender's chunk, not to the receiver's.
"""

import numpy as np


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.exchange(chunks[to], to=to, into=chunks[source], source=source, reduce=reduce)
