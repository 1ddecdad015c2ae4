"""Delivery: how every world checks a message that has arrived, and copies or reduces it."""

from typing import Any

import numpy as np

from zerosim.core.comm import Payload, Reduction, Swapped
from zerosim.core.errors import CollectiveError
from zerosim.worlds.here import HERE, spaced

MESSAGES: set[type] = {np.ndarray}
"""Types that are known to behave like arrays; each type is examined once, because that is slow."""


def check_payload(payload: Any, role: str) -> None:
    """Refuse, as the `role` "outgoing" or "into", an object that does not behave like an array."""
    if type(payload) in MESSAGES:
        return
    if isinstance(payload, np.generic) or not hasattr(payload, "copy") or not hasattr(payload, "size"):
        raise CollectiveError(f"{role} is of type {type(payload).__name__}; a message is a NumPy array")
    refuse_mask(payload, role)
    MESSAGES.add(type(payload))


def refuse_mask(payload: Any, role: str) -> None:
    """Refuse a masked array: its mask is no part of a message."""
    if isinstance(payload, np.ma.MaskedArray):
        raise CollectiveError(f"{role} is a masked array, but messages have no mask; send its .filled(...)")


def check_into(into: Payload) -> None:
    """Refuse memory that cannot be written."""
    if isinstance(into, np.ndarray) and not into.flags.writeable:
        raise CollectiveError("into is read-only; receive into a copy of it")


def check_match(arrived: Payload, into: Payload, *, source: int, rank: int) -> None:
    """Refuse a message whose number of elements or dtype is not that of its destination."""
    if arrived.size != into.size or arrived.dtype != into.dtype:
        raise CollectiveError(
            f"rank {source} sent {arrived.size} × {arrived.dtype} to rank {rank}, which receives it "
            f"into {into.size} × {into.dtype}{spaced(HERE.get())}: both sides must name the same length and dtype")


def deliver(arrived: Payload, into: Payload, reduce: Reduction | None) -> None:
    """`into = arrived`, or `into = reduce(arrived, into)`, in place, element for element in C order."""
    if arrived.shape != into.shape:
        arrived = arrived.reshape(into.shape)
    if reduce is None:
        into[...] = arrived
    elif type(reduce) is np.ufunc:
        reduce(arrived, into, out=into)
    elif isinstance(reduce, Swapped):
        reduce.reduce_into(arrived, into)
    else:
        reduced: Any = reduce(arrived, into)
        if isinstance(into, np.ndarray):
            wanted = f"it must return {into.dtype} of shape {into.shape}, as its arguments are"
            if not isinstance(reduced, np.ndarray | np.generic):
                returned = "None" if reduced is None else f"a {type(reduced).__name__}"
                raise CollectiveError(f"reduce= returned {returned}; {wanted}")
            if reduced.shape != into.shape or not np.can_cast(reduced.dtype, into.dtype, "same_kind"):
                raise CollectiveError(f"reduce= returned {reduced.dtype} of shape {reduced.shape}; {wanted}")
        into[...] = reduced
