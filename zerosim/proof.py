"""What a collective adds, and in which order, found out by running it on symbols."""

from collections.abc import Callable
from typing import Any

from zerosim.comm import Communicator
from zerosim.sharding import split
from zerosim.terms import Sum, Term, symbols
from zerosim.worlds.local import spawn


def summed(reduce_scatter: Callable[..., Any], ranks: int) -> list[Term | Sum]:
    """The sum that chunk c holds on rank c after `reduce_scatter(comm, chunks)`, for every c in order.

    >>> from zerosim.collectives import ring
    >>> summed(ring.reduce_scatter, ranks=3)
    [((g1 + g2) + g0), ((g2 + g0) + g1), ((g0 + g1) + g2)]
    """

    def program(comm: Communicator) -> Term | Sum:
        chunks = split(symbols(comm.rank, comm.size), comm.size)
        reduce_scatter(comm, chunks)
        held: Term | Sum = chunks[comm.rank][0]
        return held

    return spawn(program, ranks)
