"""chunks[c] = … in place of chunks[c][:] = …

Says: write chunks[c][:] = …
"""

import numpy as np

from zerosim.comm import left, right


def all_gather(comm, chunks):
    for step in range(comm.size - 1):
        arrived = np.empty_like(chunks[0])
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm), into=arrived, source=left(comm))
        chunks[(comm.rank - step - 1) % comm.size] = arrived
