"""Instruments of memory: the ledger follows the lifetimes of arrays, and `Lifetimes` records those of one step.

    now        bytes that are alive, by kind
    peak       the maximum, by kind, and of all kinds together
    curve      the bytes alive after every change, since it was last begun

An array counts from its allocation until the last reference to it or to a view of it is gone (`weakref.finalize`). A
kept view is therefore kept memory. The MPI world allocates its message buffers through the same ledger.

NumPy's temporaries (a mask, a product that is added at once) are not counted, and neither are Python objects.
`observe/resident.py` asks the operating system for a second opinion.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from zerosim.core.allocation import Kind

MEMORY_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(eq=False)
class Ledger:
    """Counts the arrays of an `ObservedAllocator`.

    >>> import numpy as np
    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.observe.observed import ObservedAllocator
    >>> ledger = Ledger()
    >>> weights = ObservedAllocator(allocate, ledger)(10, np.float32, kind="parameters", owner="layers.0")
    >>> view = weights[:2]
    >>> del weights
    >>> ledger.now["parameters"], ledger.owners("parameters")
    (40, {'layers.0': 40})
    >>> del view
    >>> ledger.now["parameters"], ledger.peak["parameters"]
    (0, 40)
    """

    now: Counter[Kind] = field(default_factory=Counter)
    peak: Counter[Kind] = field(default_factory=Counter)
    peak_total: int = 0
    curve: list[tuple[int, dict[Kind, int]]] = field(default_factory=list)
    clock: Callable[[], int] = time.monotonic_ns
    """The clock, in nanoseconds; in a plan it is virtual."""
    _total: int = 0
    _records_curve: bool = False
    _held: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def taken(self, number: int, kind: Kind, owner: str, held_bytes: int) -> None:
        with self._lock:
            self._change(kind, owner, held_bytes)
            self.peak[kind] = max(self.peak[kind], self.now[kind])
            self.peak_total = max(self.peak_total, self._total)

    def given_back(self, number: int, kind: Kind, owner: str, held_bytes: int) -> None:
        with self._lock:
            self._change(kind, owner, -held_bytes)

    def _change(self, kind: Kind, owner: str, held_bytes: int) -> None:
        self.now[kind] += held_bytes
        self._total += held_bytes
        self._held[kind, owner] += held_bytes
        if self._records_curve:
            self.curve.append((self.clock(), dict(self.now)))

    @property
    def total(self) -> int:
        """The bytes of all kinds that are alive."""
        return self._total

    def owners(self, kind: Kind) -> dict[str, int]:
        """The bytes of `kind` that are alive, by their unit."""
        with self._lock:
            held = dict(self._held)
        return {owner: held_bytes for (each, owner), held_bytes in held.items() if each == kind and held_bytes}

    def begin_peak(self) -> None:
        """Reset the peak to the bytes that are alive now."""
        with self._lock:
            self.peak = Counter(self.now)
            self.peak_total = self._total

    def begin_curve(self) -> int:
        """Record a curve from here on; returns its first time."""
        with self._lock:
            self._records_curve = True
            began = self.clock()
            self.curve = [(began, dict(self.now))]
        return began

    def curve_so_far(self) -> list[tuple[int, dict[str, int]]]:
        """The curve since `begin_curve`."""
        with self._lock:
            return [(at, {str(kind): held for kind, held in now.items()}) for at, now in self.curve]

    def end_curve(self) -> None:
        """Stop recording the curve."""
        self._records_curve = False


@dataclass(eq=False)
class HeldAtBeginnings:
    """The peak of each kind in a ledger at the beginnings of computations or collectives with these names.

    >>> import numpy as np
    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.observe.observed import ObservedAllocator
    >>> ledger = Ledger()
    >>> held = HeldAtBeginnings(ledger, ("update",))
    >>> gradient = ObservedAllocator(allocate, ledger)(10, np.float32, kind="gradients", owner="layers.0")
    >>> held.computing("update", "layers.0")
    >>> held.most
    {'update': {'gradients': 40}}
    """

    ledger: Ledger
    names: Sequence[str]
    most: dict[str, dict[Kind, int]] = field(default_factory=dict)

    def began(self, name: str, owner: str) -> None:
        if name in self.names:
            most = self.most.setdefault(name, {})
            for kind, held_bytes in dict(self.ledger.now).items():
                most[kind] = max(most.get(kind, 0), held_bytes)

    computing = began


class Moves:
    """The bytes that were copied since `begin`, by kind and direction.

    >>> moves = Moves()
    >>> moves.moved("gradients, device to host", "layers.0", 40)
    >>> dict(moves.moved_bytes)
    {'gradients, device to host': 40}
    """

    def __init__(self) -> None:
        self.moved_bytes = Counter[str]()

    def begin(self) -> None:
        """Drop the copies before the first step."""
        self.moved_bytes.clear()

    def moved(self, name: str, owner: str, moved_bytes: int) -> None:
        if moved_bytes:
            self.moved_bytes[name] += moved_bytes


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
    >>> from zerosim.core.allocation import allocate
    >>> from zerosim.observe.observed import ObservedAllocator
    >>> lifetimes = Lifetimes()
    >>> observed = ObservedAllocator(allocate, lifetimes)
    >>> weights = observed(10, np.float32, kind="parameters", owner="layers.0")
    >>> lifetimes.begin()
    >>> y = observed(3, np.float32, kind="activations", owner="layers.0")
    >>> del y
    >>> [(lifetime.kind, lifetime.since, lifetime.until) for lifetime in lifetimes.end()]
    [('parameters', 0, None), ('activations', 1, 2)]
    """

    _lifetimes: dict[int, Lifetime] = field(default_factory=dict)
    _events: int | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def taken(self, number: int, kind: Kind, owner: str, held_bytes: int) -> None:
        if owner == OF_THE_WORLD or not held_bytes:
            return
        with self._lock:
            self._lifetimes[number] = Lifetime(kind, owner, held_bytes, self._next_event())

    def given_back(self, number: int, kind: Kind, owner: str, held_bytes: int) -> None:
        with self._lock:
            lifetime = self._lifetimes.pop(number, None)
            if lifetime and self._events is not None:
                self._lifetimes[number] = replace(lifetime, until=self._next_event())

    def _next_event(self) -> int:
        if self._events is None:
            return 0
        self._events += 1
        return self._events

    def begin(self) -> None:
        """Drop freed arrays, and count events from here on."""
        with self._lock:
            self._events = 0
            alive = {number: each for number, each in self._lifetimes.items() if each.until is None}
            self._lifetimes = {number: replace(lifetime, since=0) for number, lifetime in alive.items()}

    def end(self) -> list[Lifetime]:
        """All arrays that were alive since `begin`, in the order of their allocation."""
        with self._lock:
            numbers = sorted(self._lifetimes) if self._events is not None else []
            self._events = None
            return [self._lifetimes[number] for number in numbers]
