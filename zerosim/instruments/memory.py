"""The memory ledger: an allocator around an allocator, which follows the life of the arrays themselves.

An array counts from the moment it is handed out until nobody holds it or a view of it, however it is let go of.

    now        bytes that are alive, by kind
    peak       the most there ever were, by kind, and of all kinds together
    curve      what was alive after every change, since it was last begun
"""

import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field

import numpy.typing as npt

from zerosim.allocation import Allocator, Array, Kind, allocate

KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "activations", "buffers")


@dataclass(eq=False)
class Ledger:
    """Hands out what `allocate` gives it, and keeps account of it.

    >>> import numpy as np
    >>> ledger = Ledger()
    >>> weights = ledger(10, np.float32, kind="parameters", owner="layers.0")
    >>> view = weights[:2]
    >>> del weights
    >>> ledger.now["parameters"], ledger.owners("parameters")
    (40, {'layers.0': 40})
    >>> del view
    >>> ledger.now["parameters"], ledger.peak["parameters"]
    (0, 40)
    """

    allocate: Allocator = allocate
    now: Counter[Kind] = field(default_factory=Counter)
    peak: Counter[Kind] = field(default_factory=Counter)
    peak_total: int = 0
    curve: list[tuple[int, dict[Kind, int]]] = field(default_factory=list)
    _total: int = 0
    _records_curve: bool = False
    _alive: dict[int, tuple[Kind, str, int]] = field(default_factory=dict)
    _next: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str
    ) -> Array:
        array = self.allocate(shape, dtype, kind=kind, owner=owner)
        with self._lock:
            self._next += 1
            self._alive[self._next] = (kind, owner, array.nbytes)
            self._change(kind, array.nbytes)
            weakref.finalize(array, self._let_go, self._next).atexit = False
        return array

    def _let_go(self, number: int) -> None:
        with self._lock:
            kind, _, size = self._alive.pop(number)
            self._change(kind, -size)

    def _change(self, kind: Kind, size: int) -> None:
        self.now[kind] += size
        self._total += size
        if size > 0:
            self.peak[kind] = max(self.peak[kind], self.now[kind])
            self.peak_total = max(self.peak_total, self._total)
        if self._records_curve:
            self.curve.append((time.perf_counter_ns(), dict(self.now)))

    @property
    def total(self) -> int:
        """Bytes of all kinds that are alive."""
        return self._total

    def owners(self, kind: Kind) -> dict[str, int]:
        """Bytes of `kind` that are alive, by the unit they belong to."""
        held: Counter[str] = Counter()
        with self._lock:
            for each, owner, size in list(self._alive.values()):
                if each == kind:
                    held[owner] += size
        return dict(held)

    def begin_peak(self) -> None:
        """Forget the peak: what is alive now is the most so far."""
        with self._lock:
            self.peak = Counter(self.now)
            self.peak_total = self._total

    def begin_curve(self) -> int:
        """Record a curve from here on; the time at which it begins."""
        with self._lock:
            self._records_curve = True
            began = time.perf_counter_ns()
            self.curve = [(began, dict(self.now))]
        return began

    def end_curve(self) -> None:
        """Let the curve be."""
        self._records_curve = False
