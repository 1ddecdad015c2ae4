"""An instrument for one step: it records, in order, when each array is allocated and freed."""

import threading
from dataclasses import dataclass, field, replace

from zerosim.allocation import Kind

OF_THE_WORLD = "messages"
"""The owner of a world's memory for messages, allocated at irregular times: it is left out."""


@dataclass(frozen=True, eq=False)
class Lifetime:
    """The lifetime of one array: the numbers of the events at which it was allocated and freed.

    Events count from 1; `since` is 0 for an array that existed before, `until` None for one that stays. Two lifetimes
    with the same values are different objects.
    """

    kind: Kind
    owner: str
    held_bytes: int
    since: int
    until: int | None = None


@dataclass(eq=False)
class Lifetimes:
    """The instrument: from `begin` to `end` it records all arrays of an `ObservedAllocator`.

    >>> import numpy as np
    >>> from zerosim.allocation import allocate
    >>> from zerosim.instruments.observed import ObservedAllocator
    >>> lifetimes = Lifetimes()
    >>> observed = ObservedAllocator(allocate, lifetimes)
    >>> weights = observed(10, np.float32, kind="parameters", owner="layers.0")
    >>> lifetimes.begin()
    >>> y = observed(3, np.float32, kind="activations", owner="layers.0")
    >>> del y
    >>> [(lifetime.kind, lifetime.since, lifetime.until) for lifetime in lifetimes.end()]
    [('parameters', 0, None), ('activations', 1, 2)]
    """

    _alive: dict[int, Lifetime] = field(default_factory=dict)
    _over: dict[int, Lifetime] = field(default_factory=dict)
    _events: int | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def block_taken(self, number: int, kind: Kind, owner: str, held_bytes: int) -> None:
        if owner == OF_THE_WORLD or not held_bytes:
            return
        with self._lock:
            self._alive[number] = Lifetime(kind, owner, held_bytes, self._next_event())

    def block_given_back(self, number: int) -> None:
        with self._lock:
            if number in self._alive:
                lifetime = self._alive.pop(number)
                self._over[number] = replace(lifetime, until=self._next_event())

    def _next_event(self) -> int:
        if self._events is None:
            return 0
        self._events += 1
        return self._events

    def begin(self) -> None:
        """Drop freed arrays, and count events from here on."""
        with self._lock:
            self._events = 0
            self._over.clear()
            self._alive = {number: replace(lifetime, since=0) for number, lifetime in self._alive.items()}

    def end(self) -> list[Lifetime]:
        """All arrays that were alive since `begin`, in the order of their allocation."""
        with self._lock:
            found = self._over | self._alive if self._events is not None else {}
            self._events = None
        return [found[number] for number in sorted(found)]
