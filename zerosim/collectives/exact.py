"""Sums without an order: the ranks agree on exponents, and then add integers.

    contributions   this rank's vectors: one, or one for each of its micro-batches
    exponent        one for each element, common to all contributions of all ranks
    limb            one of the vectors of integers that stand for a vector of floats

Laws, for n elements, N = size and floats of up to 4 bytes (float64 has two limbs):

    bytes sent     2 · 2n (N − 1)/N for the exponents, 8n (N − 1)/N for the limb, by each rank
    addition       none: the bits depend neither on the order nor on how contributions are spread over ranks

`zerosim.core.fixed_point` defines the bits of the result. These functions take numbers only, no symbols.
"""

from collections.abc import Sequence

import numpy as np

from zerosim.collectives import ring
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.fixed_point import exponents, restored, total_of
from zerosim.core.sharding import bounds, split

EXPONENT_BYTES, LIMB_BYTES = 2, 8


def reduce_scatter(comm: Communicator, contributions: Sequence[Array]) -> Array:
    """This rank's chunk of the sum of all contributions; every rank passes the same number of contributions.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: reduce_scatter(comm, [np.array([1.0, 2.0**60 * (-1) ** comm.rank])]).tolist(), ranks=2)
    [[2.0], [0.0]]
    """
    terms = comm.size * len(contributions)
    exponent = exponents(contributions)
    ring.all_reduce(comm, split(exponent, comm.size), np.maximum)

    total = total_of(contributions, exponent, terms)
    for limb in total:
        ring.reduce_scatter(comm, split(limb, comm.size))

    start, stop = bounds(len(exponent), comm.size)[comm.rank]
    return restored(total[:, start:stop], exponent[start:stop], terms, contributions[0].dtype)


def all_reduce(comm: Communicator, contributions: Sequence[Array]) -> Array:
    """The sum of all contributions of all ranks: the same bytes on every rank, and on any number of ranks."""
    whole = np.empty_like(contributions[0])
    chunks = split(whole, comm.size)
    chunks[comm.rank][:] = reduce_scatter(comm, contributions)
    ring.all_gather(comm, chunks)
    return whole
