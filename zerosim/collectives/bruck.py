"""Bruck's all-gather: the number of chunks that a rank holds doubles in every step, for any number of ranks.

    chunks     one view for each rank, cut from one flat vector by `sharding.split`
    rotated    the same vector rotated so that chunk `rank` comes first; its head is what the rank holds
    held       the number of chunks that the rank holds

Laws, for n bytes in all chunks together and N = size:

    steps          ⌈log2 N⌉
    bytes sent     n (N − 1) / N by each rank
    scratch        n bytes

Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
in multiport message-passing systems" (1997).
"""

from zerosim.collectives.pairs import near_first
from zerosim.core.comm import Communicator
from zerosim.core.sharding import Chunks


def all_gather(comm: Communicator, chunks: Chunks) -> None:
    """Fill every chunk c with the chunk c of rank c, its owner."""
    rotated = chunks[:].copy()
    rotated[: len(chunks[comm.rank])] = chunks[comm.rank]
    for known_chunks in near_first(comm.size):
        count = min(known_chunks, comm.size - known_chunks)
        known = length(chunks, comm.rank, known_chunks)
        arriving = length(chunks, comm.rank + known_chunks, count)
        comm.exchange(rotated[: length(chunks, comm.rank, count)],
                      to=(comm.rank - known_chunks) % comm.size,
                      into=rotated[known : known + arriving],
                      source=(comm.rank + known_chunks) % comm.size)
    behind = length(chunks, comm.rank, comm.size - comm.rank)
    chunks[comm.rank :][...] = rotated[:behind]
    chunks[: comm.rank][...] = rotated[behind:]


def length(chunks: Chunks, first: int, count: int) -> int:
    """The number of elements in `count` chunks from chunk `first` on, modulo the number of chunks."""
    return sum(len(chunks[c % len(chunks)]) for c in range(first, first + count))
