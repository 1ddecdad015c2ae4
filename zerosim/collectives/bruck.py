"""Bruck's all-gather: what a rank knows doubles in every step, however many ranks there are.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    rotated    the same vector with chunk `rank` in front, and around: what is known is its head
    held       how many chunks are known

Laws, for n bytes in all chunks together and N = size:

    steps          ⌈log2 N⌉
    bytes sent     n (N − 1) / N by each rank
    scratch        n bytes

Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
in multiport message-passing systems" (1997).
"""

from zerosim.collectives.pairs import near_first
from zerosim.comm import Communicator
from zerosim.sharding import Chunks


def all_gather(comm: Communicator, chunks: Chunks) -> None:
    """Fill every chunk with what its owner, the rank of the same number, holds in it."""
    rotated = chunks[:].copy()
    rotated[: len(chunks[comm.rank])] = chunks[comm.rank]
    for held in near_first(comm.size):
        count = min(held, comm.size - held)
        known = length(chunks, comm.rank, held)
        arriving = length(chunks, comm.rank + held, count)
        comm.exchange(rotated[: length(chunks, comm.rank, count)],
                      to=(comm.rank - held) % comm.size,
                      into=rotated[known : known + arriving],
                      source=(comm.rank + held) % comm.size)
    behind = length(chunks, comm.rank, comm.size - comm.rank)
    chunks[comm.rank :][...] = rotated[:behind]
    chunks[: comm.rank][...] = rotated[behind:]


def length(chunks: Chunks, first: int, count: int) -> int:
    """The number of elements in `count` chunks from chunk `first` on, and around."""
    return sum(len(chunks[c % len(chunks)]) for c in range(first, first + count))
