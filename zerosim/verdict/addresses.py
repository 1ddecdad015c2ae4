"""The addresses that an allocator with a fixed address space would choose in a step, and the space beyond the peak.

    hole           free addresses between two used ones, or the endless range above all used ones
    first fit      the lowest hole that is long enough
    long-lived     gradients that exist between steps, and arrays that forward leaves for backward
    laid out       long-lived arrays lie in one block below all others, with places fixed before the step begins

A freed block in the middle leaves a hole, which may be too short for the next array: fragmentation. The
ZeRO paper lays long-lived arrays out for that reason ("memory defragmentation").
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerosim.observe.ledger import Lifetime

Hole = tuple[int, float]
"""The first address and the one behind the last."""

class Addresses:
    """Addresses from `start` on, all of them free at first, and given out by first fit.

    >>> space = Addresses()
    >>> a, b, c = space.take(30), space.take(10), space.take(20)
    >>> space.give_back(a, 30)
    >>> space.take(40), space.take(20)
    (60, 0)
    """

    def __init__(self, start: int = 0) -> None:
        self._holes: list[Hole] = [(start, math.inf)]

    def take(self, needed: int) -> int:
        """Allocate `needed` contiguous addresses; the first of them."""
        start, stop = next(hole for hole in self._holes if hole[1] - hole[0] >= needed)
        self._holes.remove((start, stop))
        if start + needed < stop:
            insort(self._holes, (start + needed, stop))
        return start

    def give_back(self, start: int, size: int) -> None:
        """Free addresses, and merge them with adjacent holes."""
        stop: float = start + size
        at = bisect_left(self._holes, (start, stop))
        if at < len(self._holes) and self._holes[at][0] == stop:
            stop = self._holes.pop(at)[1]
        if at and self._holes[at - 1][1] == start:
            start = self._holes.pop(at - 1)[0]
        insort(self._holes, (start, stop))


@dataclass(frozen=True)
class Fragmentation:
    """Rank 0's last step in a fixed address space; copies of messages are left out. An allocator is `first_fit`, or
    `first_fit_laid_out`, which reserves one block for kept gradients and arrays that backward reads. Under MPI runs may
    differ.
    """

    peak_bytes: int
    laid_out_bytes: int
    """peak of the allocated bytes; size of the reserved block"""
    needed_bytes: dict[str, int]
    beyond_peak_bytes: dict[str, int]
    """by allocator: the address space used, and this minus `peak_bytes`"""
    address_space: list[dict[str, Any]]
    """every array in the order of allocation: the events that allocated and freed it, `from` (0: before the step) and
    `to` (`null`: not freed); `kind`, `owner`, `bytes`; `long_lived`: whether it lies in the reserved block; `address`:
    by allocator"""


FIRST_FIT, LAID_OUT = "first_fit", "first_fit_laid_out"


def fragmentation(lifetimes: Sequence[Lifetime]) -> Fragmentation:
    """The fragmentation of memory with first fit, and with long-lived arrays laid out beforehand.

    >>> step = fragmentation([
    ...     Lifetime("activations", "a", 30, 1, 4), Lifetime("activations", "b", 20, 2, None),
    ...     Lifetime("activations", "c", 10, 3, 6), Lifetime("activations", "d", 40, 5, None),
    ... ])
    >>> step.peak_bytes, step.beyond_peak_bytes["first_fit"]           # d does not fit where a was
    (70, 30)
    """
    kept = long_lived(lifetimes)
    whole = laid_out([lifetime for lifetime, stays in zip(lifetimes, kept, strict=True) if stays])
    height = max((start + lifetime.held_bytes for lifetime, start in whole.items()), default=0)
    addresses, most = {FIRST_FIT: placed(lifetimes, {}), LAID_OUT: placed(lifetimes, whole, height)}, peak(lifetimes)
    needed = {name: max((start + life.held_bytes for start, life in zip(starts, lifetimes, strict=True)), default=0)
              for name, starts in addresses.items()}
    return Fragmentation(most, height, needed, {name: count - most for name, count in needed.items()}, [
        {"from": life.since, "to": life.until, "kind": life.kind, "owner": life.owner, "bytes": life.held_bytes,
         "long_lived": stays, "address": {name: starts[number] for name, starts in addresses.items()}}
        for number, (life, stays) in enumerate(zip(lifetimes, kept, strict=True))])


def events(lifetimes: Sequence[Lifetime]) -> Iterator[tuple[Lifetime, bool]]:
    """Each lifetime at its beginning (True) and, unless it stays, at its end (False), in order of time."""
    begun = [(lifetime.since, number, True) for number, lifetime in enumerate(lifetimes)]
    ended = [(lifetime.until, number, False) for number, lifetime in enumerate(lifetimes) if lifetime.until is not None]
    return ((lifetimes[number], begins) for _, number, begins in sorted([*begun, *ended]))


def peak(lifetimes: Sequence[Lifetime]) -> int:
    """The peak of allocated bytes."""
    now = most = 0
    for lifetime, begins in events(lifetimes):
        now += lifetime.held_bytes if begins else -lifetime.held_bytes
        most = max(most, now)
    return most


def long_lived(lifetimes: Sequence[Lifetime]) -> list[bool]:
    """Whether each array is a gradient that exists between steps, or an activation that exists during a loss."""
    losses = [lifetime.since for lifetime in lifetimes if lifetime.owner == "loss"]

    def stays(lifetime: Lifetime) -> bool:
        if lifetime.kind == "gradients":
            return lifetime.since == 0 or lifetime.until is None
        until = math.inf if lifetime.until is None else lifetime.until
        return lifetime.kind == "activations" and lifetime.owner != "loss" and any(
            lifetime.since < loss < until for loss in losses
        )

    return [stays(lifetime) for lifetime in lifetimes]


def placed(lifetimes: Sequence[Lifetime], whole: Mapping[Lifetime, int], height: int = 0) -> list[int]:
    """The first address of each array: in `whole`, below `height`, or by first fit above."""
    space, starts = Addresses(height), dict[Lifetime, int]()
    for lifetime, begins in events(lifetimes):
        if lifetime in whole:
            starts[lifetime] = whole[lifetime]
        elif begins:
            starts[lifetime] = space.take(lifetime.held_bytes)
        else:
            space.give_back(starts[lifetime], lifetime.held_bytes)
    return [starts[lifetime] for lifetime in lifetimes]


def laid_out(lifetimes: Sequence[Lifetime]) -> dict[Lifetime, int]:
    """Places in one block for arrays with known lifetimes: the largest first, each at the lowest place that is free.

    >>> first, second = Lifetime("gradients", "a", 10, 0, 4), Lifetime("gradients", "b", 10, 5, None)
    >>> list(laid_out([first, second]).values())
    [0, 0]
    """
    starts: dict[Lifetime, int] = {}
    for lifetime in sorted(lifetimes, key=lambda life: -life.held_bytes):
        start = 0
        for low, high in sorted((at, at + other.held_bytes) for other, at in starts.items() if meet(lifetime, other)):
            if start + lifetime.held_bytes <= low:
                break
            start = max(start, high)
        starts[lifetime] = start
    return starts


def meet(one: Lifetime, other: Lifetime) -> bool:
    """Whether two lifetimes overlap."""
    until = [math.inf if life.until is None else life.until for life in (one, other)]
    return one.since < until[1] and other.since < until[0]
