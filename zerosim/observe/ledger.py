"""The ledger of memory: an instrument that follows the lifetimes of arrays.

    now        bytes that are alive, by kind
    peak       the maximum, by kind, and of all kinds together
    curve      the bytes alive after every change, since it was last begun
    lifetimes  the arrays that were alive since then, and the events at which they were allocated and freed

An array counts from its allocation until the last reference to it or to a view of it is gone (`weakref.finalize`). A
kept view is therefore kept memory. The MPI world allocates its message buffers through the same ledger.

NumPy's temporaries (a mask, a product that is added at once) are not counted, and neither are Python objects.
`observe/resident.py` asks the operating system for a second opinion.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from zerosim.core.allocation import Kind

Curve = list[tuple[int, dict[str, int]]]
"""The bytes of each kind that are alive after each change."""
MEMORY_KINDS: tuple[Kind, ...] = get_args(Kind)
OF_THE_WORLD = "messages"
"""The owner of a world's memory for messages, allocated at irregular times: it has no event."""
BEGINNINGS = ("reduce_scatter", "update")
"""Operations at whose beginning a step should have freed all arrays that it no longer needs."""


@dataclass(eq=False)
class Lifetime:
    """The lifetime of one array, in the events of a step: the numbers of those at which it was allocated and freed.

    Events count from 1; `since` is 0 for an array that existed before, `until` None for one that stays. Two lifetimes
    with the same values are different objects.
    """

    kind: Kind
    owner: str
    held_bytes: int
    since: int = 0
    until: int | None = None


@dataclass(eq=False)
class Ledger:
    """Counts the arrays of an `ObservedAllocator`.

    >>> import numpy as np
    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.observe.observed import ObservedAllocator
    >>> ledger = Ledger()
    >>> allocator = ObservedAllocator(allocate, ledger)
    >>> weights = allocator(10, np.float32, kind="parameters", owner="layers.0")
    >>> view = weights[:2]
    >>> del weights
    >>> ledger.now["parameters"], ledger.owners("parameters")
    (40, {'layers.0': 40})
    >>> _ = ledger.begin_curve()
    >>> y = allocator(3, np.float32, kind="activations", owner="layers.0")
    >>> del y, view
    >>> ledger.now["parameters"], ledger.peak["parameters"]
    (0, 40)
    >>> [(lifetime.kind, lifetime.since, lifetime.until) for lifetime in ledger.lifetimes]
    [('parameters', 0, 3), ('activations', 1, 2)]
    """

    now: Counter[Kind] = field(default_factory=Counter)
    peak: Counter[Kind] = field(default_factory=Counter)
    peak_total: int = 0
    total: int = 0
    """The bytes of all kinds that are alive."""
    curve: Curve = field(default_factory=list)
    lifetimes: list[Lifetime] = field(default_factory=list)
    """In the order of allocation, without memory for messages and empty arrays."""
    held_at_beginning: defaultdict[str, Counter[Kind]] = field(default_factory=lambda: defaultdict(Counter))
    """The peak of each kind at the beginnings of the operations in `BEGINNINGS`, by their names."""
    moved_bytes: Counter[str] = field(default_factory=Counter)
    """The bytes that were copied to this memory and back, by kind and direction."""
    clock: Callable[[], int] = time.monotonic_ns
    """The clock, in nanoseconds; in a plan it is virtual."""
    _alive: dict[Lifetime, None] = field(default_factory=dict)
    _records: bool = False
    _events: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def taken(self, array: Lifetime) -> None:
        with self._lock:
            self._alive[array] = None
            if self._is_event(array):
                array.since = self._events
                self.lifetimes.append(array)
            self._change(array.kind, array.held_bytes)
            self.peak[array.kind] = max(self.peak[array.kind], self.now[array.kind])
            self.peak_total = max(self.peak_total, self.total)

    def given_back(self, array: Lifetime) -> None:
        with self._lock:
            del self._alive[array]
            if self._is_event(array):
                array.until = self._events
            self._change(array.kind, -array.held_bytes)

    def _is_event(self, array: Lifetime) -> bool:
        """Whether what happens to an array now is recorded; counts it."""
        recorded = self._records and has_events(array)
        self._events += recorded
        return recorded

    def _change(self, kind: Kind, held_bytes: int) -> None:
        self.now[kind] += held_bytes
        self.total += held_bytes
        if self._records:
            self.curve.append((self.clock(), dict(self.now.items())))

    def began(self, name: str, owner: str) -> None:
        if name in BEGINNINGS:
            with self._lock:
                self.held_at_beginning[name] |= Counter(self.now)

    computing = began

    def moved(self, name: str, owner: str, moved_bytes: int) -> None:
        if moved_bytes:
            self.moved_bytes[name] += moved_bytes

    def owners(self, kind: Kind) -> dict[str, int]:
        """The bytes of `kind` that are alive, by their unit."""
        with self._lock:
            alive = [*self._alive]
        owned_bytes = Counter[str]()
        for array in alive:
            if array.kind == kind and array.held_bytes:
                owned_bytes[array.owner] += array.held_bytes
        return dict(owned_bytes)

    def begin_peak(self) -> None:
        """Reset the peak to the bytes that are alive now, and forget copies."""
        with self._lock:
            self.peak = Counter(self.now)
            self.peak_total = self.total
            self.moved_bytes.clear()

    def begin_curve(self) -> int:
        """Record a curve and lifetimes from here on; returns their first time."""
        with self._lock:
            self._records, self._events, self.lifetimes = True, 0, [*filter(has_events, self._alive)]
            for array in self.lifetimes:
                array.since, array.until = 0, None
            began = self.clock()
            self.curve = [(began, dict(self.now.items()))]
        return began

    def end_curve(self) -> None:
        """Stop recording."""
        self._records = False


def has_events(array: Lifetime) -> bool:
    """Whether an array's lifetime is recorded."""
    return bool(array.held_bytes) and array.owner != OF_THE_WORLD
