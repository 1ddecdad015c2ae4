"""What every world does with a message that has arrived."""

from typing import Any

import numpy as np

from zerosim.comm import Payload, Reduction
from zerosim.errors import CollectiveError


def check_rank(rank: Any, size: int, role: str) -> None:
    """Refuse anything but an integer of 0 … size − 1 as the `role` ("to" or "source") of a message."""
    whole = type(rank) is int or (isinstance(rank, int | np.integer) and not isinstance(rank, bool))
    if not (whole and 0 <= rank < size):
        raise CollectiveError(f"{role}={rank!r} is no rank here: an integer from 0 to {size - 1} is")


def check_match(arrived: Payload, into: Payload, *, source: int, rank: int) -> None:
    """Refuse a message whose number of elements or dtype is not that of the memory it is to fill."""
    if arrived.size != into.size or arrived.dtype != into.dtype:
        raise CollectiveError(
            f"rank {source} sent {arrived.size} × {arrived.dtype} to rank {rank}, which receives it "
            f"into {into.size} × {into.dtype}: both sides must name the same length and dtype"
        )


def deliver(arrived: Payload, into: Payload, reduce: Reduction | None) -> None:
    """`into = arrived`, or `into = reduce(arrived, into)`, in place, element for element in C order."""
    if arrived.shape != into.shape:
        arrived = arrived.reshape(into.shape)
    if reduce is None:
        into[...] = arrived
    elif isinstance(reduce, np.ufunc):
        reduce(arrived, into, out=into)
    else:
        into[...] = reduce(arrived, into)
