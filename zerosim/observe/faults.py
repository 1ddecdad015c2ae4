"""Injected faults: a rank dies, freezes or is slow, and its messages are lost, doubled or changed.

- A fault of a rank strikes when its communicator is about to send, before traffic and trace are notified. A rank that
  sleeps is therefore not shown as waiting.
- A fault of a message strikes in a wrapper beneath all observers. A dropped, doubled or flipped message has been
  counted and sealed above, as on a real wire.
- `kill` and `stop` are methods of the world: under MPI the process ends or stops itself by the signal that another
  process would send it; in one process its thread ends, or blocks for ever.
- A bit of resting weights flips between a step and its check, so that the verdict names this element and not a loss
  that the flip has changed.
- A fault that did not strike fails the run. A scenario that names the ninth message of a collective that has three
  would otherwise pass and prove nothing.
- A fault strikes once. A resumed run repeats the step, as if the broken machine had been replaced.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator, Reduction, SendsFirst
from zerosim.scenario.fault import Fault
from zerosim.worlds.here import HERE

OF_RANKS = ("kill", "stop", "delay")
OF_MESSAGES = ("drop", "duplicate", "flip")
"""The kinds of faults that strike a rank before a message, and those that change the message; `slow` is neither."""


class Faults:
    """The faults of one rank in one row.

    `kill` and `stop` end and freeze this rank in its world. Faults of the rank strike as the communicators that it
    observes are about to send, before later instruments in the list are notified; faults of messages strike in the
    communicators that `around` returns.
    """

    def __init__(self, faults: Sequence[Fault], kill: Callable[[], None], stop: Callable[[], None]) -> None:
        self.faults = faults
        self._acts = {"kill": kill, "stop": stop}
        self._struck: list[Fault] = []
        self._begun: Counter[str] = Counter()
        self._carried: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def missed(self) -> list[Fault]:
        """The faults that have not struck."""
        return [fault for fault in self.faults if fault not in self._struck]

    def begin(self, step: int) -> None:
        """Let the faults strike that belong to the beginning of a step."""
        self._begun.clear()
        self._carried.clear()
        for fault in self._striking(OF_RANKS, step, None, 1):
            self._act(fault)

    def end(self, step: int, weights: Iterable[Array]) -> None:
        """Flip a bit of the weights that this rank keeps, after a step, if there is such a fault."""
        if kept := [array for array in weights if array.nbytes]:
            for fault in self._striking(("flip",), step, None, 1):
                flip(kept, fault.bit)

    def sending(self, outgoing: Array, to: int) -> None:
        """Let a fault of the rank strike before it sends a message."""
        step, collective, number = self._next(self._begun)
        for fault in self._striking(OF_RANKS, step, collective, number):
            self._act(fault)
        for fault in self.faults:
            if fault.kind == "slow" and step >= fault.step and collective and fault.collective in (None, collective):
                self._struck.append(fault)
                self._act(fault)

    def around(self, comm: Communicator) -> Communicator:
        """`comm`, wrapped if any fault changes messages."""
        of_messages = any(fault.collective and fault.kind in OF_MESSAGES for fault in self.faults)
        return Faulty(comm, self) if of_messages else comm

    def sent_as(self, outgoing: Array) -> list[Array]:
        """The messages that are really sent instead of one: usually that one."""
        messages, kinds = [outgoing], OF_MESSAGES if getattr(outgoing, "nbytes", 0) else ("drop", "duplicate")
        for fault in self._striking(kinds, *self._next(self._carried)):
            if fault.kind == "flip":
                messages = [np.array(message, order="C") for message in messages]
                for message in messages:
                    flip([message], fault.bit)
            else:
                messages = messages * (0 if fault.kind == "drop" else 2)
        return messages

    def _next(self, messages: Counter[str]) -> tuple[int, str, int]:
        """The present step and collective, and the number of the next message in collectives of that name."""
        location = HERE.get()
        collective, _ = location.innermost
        with self._lock:
            messages[collective] += 1
            return location.step, collective, messages[collective]

    def _striking(self, kinds: Sequence[str], *at: object) -> Iterator[Fault]:
        """The faults of these kinds at this step, this message of a collective by its number, or none: they strike."""
        for fault in self.faults:
            if fault.kind in kinds and (fault.step, fault.collective, fault.message) == at:
                self._struck.append(fault)
                yield fault

    def _act(self, fault: Fault) -> None:
        if fault.kind in self._acts:
            self._acts[fault.kind]()
        else:
            time.sleep(fault.lasts_seconds)


class Faulty(SendsFirst):
    """A communicator with faults in its messages."""

    def __init__(self, comm: Communicator, faults: Faults) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._faults = faults

    @property
    def came_ns(self) -> int:
        """The time at which the last wait ended, by the underlying communicator."""
        return int(getattr(self._comm, "came_ns", 0))

    def send(self, outgoing: Array, *, to: int) -> None:
        for message in self._faults.sent_as(outgoing):
            self._comm.send(message, to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        self._comm.recv(into=into, source=source, reduce=reduce)


def flip(arrays: Sequence[Array], bit: int) -> None:
    """Flip one bit of contiguous arrays, counted from the lowest bit of the first byte, modulo their length."""
    bit %= 8 * sum(array.nbytes for array in arrays)
    for array in arrays:
        if 0 <= bit < 8 * array.nbytes:
            array.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8
        bit -= 8 * array.nbytes
