"""What befalls a rank on purpose: it dies, freezes or is slow, and its messages are lost, doubled or changed."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from zerosim.allocation import Array
from zerosim.comm import Communicator, Reduction
from zerosim.scenario.fault import Fault
from zerosim.worlds.here import HERE


class Faults:
    """The faults of one rank in one row, each at its moment.

    `kill` and `stop` are how this rank's world ends and freezes it. A fault of messages strikes in the communicators
    that `around` has been put around.
    """

    def __init__(self, faults: Sequence[Fault], kill: Callable[[], None], stop: Callable[[], None]) -> None:
        self._faults = faults
        self._actions = {"kill": kill, "stop": stop}
        self._struck: list[Fault] = []
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def missed(self) -> list[Fault]:
        """Those that have not struck."""
        return [fault for fault in self._faults if fault not in self._struck]

    def begin(self, step: int) -> None:
        """Before a step: what strikes as it begins."""
        self._sent.clear()
        for fault in self._faults:
            if fault.step == step and fault.collective is None and fault.kind not in ("flip", "slow"):
                self._act(fault)

    def end(self, step: int, weights: Iterable[Array]) -> None:
        """After a step: change a bit of the weights that this rank keeps."""
        kept = [each for each in weights if each.nbytes]
        for fault in self._faults:
            if fault.step == step and fault.collective is None and fault.kind == "flip" and kept:
                self._struck.append(fault)
                bit = fault.bit % (8 * sum(each.nbytes for each in kept))
                for each in kept:
                    if bit < 8 * each.nbytes:
                        flip(each, bit)
                        break
                    bit -= 8 * each.nbytes

    def around(self, comm: Communicator) -> Communicator:
        """`comm`, or, where a fault may strike in its messages, `comm` with them."""
        messages = [fault for fault in self._faults if fault.collective is not None or fault.kind == "slow"]
        return Faulty(comm, self) if messages else comm

    def sent_as(self, outgoing: Array) -> list[Array] | None:
        """What this thread sends in place of its next message; None if that is the message."""
        spot, found = HERE.spot, None
        with self._lock:
            self._sent[spot.collective] += 1
            number = self._sent[spot.collective]
        for fault in self._faults:
            if fault.kind == "slow":
                if 0 < fault.step <= spot.step and fault.collective in (None, spot.collective) and spot.collective:
                    self._act(fault)
            elif (fault.step, fault.collective, fault.message) == (spot.step, spot.collective, number):
                found = self._changed(fault, [outgoing] if found is None else found)
        return found

    def _changed(self, fault: Fault, messages: list[Array]) -> list[Array] | None:
        match fault.kind:
            case "drop":
                changed: list[Array] = []
            case "duplicate":
                changed = [*messages, *messages]
            case "flip":
                changed = [flipped(each, fault.bit) for each in messages]
            case _:
                self._act(fault)
                return messages
        self._struck.append(fault)
        return changed

    def _act(self, fault: Fault) -> None:
        self._struck.append(fault)
        if fault.kind in self._actions:
            self._actions[fault.kind]()
        else:
            time.sleep(fault.lasts_seconds)


class Faulty:
    """A communicator in whose messages faults strike."""

    def __init__(self, comm: Communicator, faults: Faults) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._faults = faults

    @property
    def came_ns(self) -> int:
        """As the communicator beneath has it."""
        return int(getattr(self._comm, "came_ns", 0))

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        instead = self._faults.sent_as(outgoing)
        if instead is None:
            self._comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)
            return
        for message in instead:
            self._comm.send(message, to=to)
        self._comm.recv(into=into, source=source, reduce=reduce)

    def send(self, outgoing: Array, *, to: int) -> None:
        instead = self._faults.sent_as(outgoing)
        for message in [outgoing] if instead is None else instead:
            self._comm.send(message, to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        self._comm.recv(into=into, source=source, reduce=reduce)


def flip(array: Array, bit: int) -> None:
    """Change one bit of a contiguous array, counted from the lowest of its first byte on."""
    array.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8


def flipped(array: Array, bit: int) -> Array:
    """A copy with one bit changed; beyond the end `bit` counts on from the beginning.

    >>> flipped(np.array([1, 2], np.uint8), 1 + 16).tolist()
    [3, 2]
    """
    changed = np.array(array, order="C", copy=True)
    if changed.nbytes:
        flip(changed, bit % (8 * changed.nbytes))
    return changed
