"""Random numbers that depend on their purpose only, and on no state: a counter-based generator.

Philox computes numbers from a key and a counter. The key is the seed and the step, the counter names the sample in the
batch of all ranks, the layer and the operation: so a sample gets the same numbers on any rank, on each call.
Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.
"""

import numpy as np

from zerosim.core.allocation import Array


def uniform(seed: int, step: int, out: Array, micro_batch: int, layer: int, operation: int) -> None:
    """Fill `out`, float32 (samples, …), with numbers from 0 to below 1, sample by sample.

    >>> two, one = np.empty((2, 3), np.float32), np.empty((1, 3), np.float32)
    >>> uniform(0, 1, two, 0, 2, 5)
    >>> uniform(0, 1, one, 1, 2, 5)                 # the second sample of all, in micro-batches of one
    >>> two[1].tolist() == one[0].tolist()
    True
    """
    for number, sample in enumerate(out, start=micro_batch * len(out)):
        counter = [0, operation, layer, number]
        np.random.Generator(np.random.Philox(key=[seed, step], counter=counter)).random(out=sample, dtype=np.float32)
