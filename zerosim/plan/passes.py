"""The step of a pipeline by its passes: each is rehearsed once on each kind of rank, by itself, and the schedule says
in which order a rank runs them. A pass begins when the rank is free and what it needs has arrived.

A pass takes as long, holds as much and sends as much in every micro-batch but the first, which has no gradients to add
to, and the last, which reduces them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from zerosim.autograd.tape import Total
from zerosim.core.allocation import Array
from zerosim.core.errors import ZerosimError
from zerosim.observe.memory import Ledger
from zerosim.plan.clock import VirtualClock
from zerosim.plan.timed import KeepingOutputs
from zerosim.stages.replica import Batch
from zerosim.stages.schedules import Slot


class Pass(NamedTuple):
    """The time of a pass, all that it counts, and its memory beyond what was alive before: at the peak, and after it.
    """

    ns: int
    until_sent_ns: int
    """The time up to the sending of its result; its gradients are reduced after that."""
    counts: dict[str, Counter[str]]
    peak: Counter[Any]
    left: Counter[Any]


ALL = "all kinds"
"""The key of the bytes of all kinds together."""


@dataclass(eq=False)
class NotedPipeline(KeepingOutputs):
    """A pipeline that notes its passes, each up to the beginning of the next."""

    ledger: Ledger = field(kw_only=True)
    clock: VirtualClock = field(kw_only=True)
    noted: dict[Slot, Pass] = field(default_factory=dict)
    base: Counter[Any] = field(default_factory=Counter)
    """The bytes alive before the first pass."""
    _sent_ns: int = 0
    _open: tuple[Slot, int, dict[str, Counter[str]], Counter[Any]] | None = None

    def receive(self, what: str, part: Batch, chunk: int) -> list[Array]:
        self._mark(Slot(what, part.first, chunk))
        return super().receive(what, part, chunk)

    def send(self, what: str, part: Batch, chunk: int, found: list[Array]) -> None:
        self._sent_ns = self.clock.now_ns
        super().send(what, part, chunk, found)

    def update(self) -> Total:
        self._mark(None)
        return super().update()

    def _mark(self, slot: Slot | None) -> None:
        """End the pass under way, and begin the next."""
        counts = {name: Counter(each) for name, each in self._counts.items()}
        alive, peak = Counter[Any](self.ledger.now), Counter[Any](self.ledger.peak)
        alive[ALL], peak[ALL] = self.ledger.total, self.ledger.peak_total
        if self._open is not None:
            last, began_ns, before, held = self._open
            self.noted[last] = Pass(self.clock.now_ns - began_ns, self._sent_ns - began_ns, less(counts, before),
                                    Counter({kind: peak[kind] - held[kind] for kind in peak}),
                                    Counter({kind: alive[kind] - held[kind] for kind in alive}))
        self.base = self.base or alive
        self._open = slot and (slot, self.clock.now_ns, counts, alive)
        self.ledger.begin_peak()

    @property
    def _counts(self) -> dict[str, Any]:
        exposed = Counter({"exposed": self.clock.exposed_ns})
        return {**self.clock.counts, "waiting": exposed, "operations": self.replica.tape.operations}


def less(counts: dict[str, Counter[str]], before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    return {name: Counter({key: count - before[name][key] for key, count in found.items()})
            for name, found in counts.items()}


class Times(NamedTuple):
    """The end of a rank's last pass, and its waiting for passes of others and for messages."""

    ended_ns: int
    idle_ns: int
    exposed_ns: int


def times_of(
    passes: Sequence[Sequence[Slot]], lasts: Callable[[int, Slot], tuple[int, int]], travels: Callable[[int, Slot], int]
) -> list[Times]:
    """The times of each rank. `lasts(rank, slot)` is the time of a pass, and that until its result is sent;
    `travels(rank, slot)` is the time of its message, which follow one another each way.
    """
    ranks, sent, free_ns = len(passes), dict[tuple[str, int, int], tuple[int, int]](), Counter[tuple[int, str]]()
    last = max(each.chunk for each in passes[0]) * ranks + ranks - 1
    done, found = [0] * ranks, [Times(0, 0, 0)] * ranks
    while any(done[rank] < len(mine) for rank, mine in enumerate(passes)):
        before = sum(done)
        for rank, mine in enumerate(passes):
            for slot in mine[done[rank] :]:
                piece, by = slot.chunk * ranks + rank, {"F": -1, "B": 1}.get(slot.what, 0)
                now, idle, exposed = found[rank]
                if by and 0 <= piece + by <= last:
                    if (slot.what, slot.micro_batch, piece + by) not in sent:
                        break
                    ended, arrives = sent[slot.what, slot.micro_batch, piece + by]
                    idle += max(ended - now, 0)
                    exposed += max(arrives - max(ended, now), 0)
                    now = max(arrives, now)
                ns, until_sent_ns = lasts(rank, slot)
                found[rank] = Times(now + ns, idle, exposed)
                ended = now + until_sent_ns
                free_ns[rank, slot.what] = max(ended, free_ns[rank, slot.what]) + (
                    travels(rank, slot) if by and 0 <= piece - by <= last else 0)
                sent[slot.what, slot.micro_batch, piece] = ended, free_ns[rank, slot.what]
                done[rank] += 1
        if sum(done) == before:
            raise ZerosimError(f"the ranks of the pipeline wait for each other after {before} passes")
    return found


def like(slot: Slot, block: int, few: int) -> Slot:
    """The pass of a step of `few` micro-batches that is like a pass of a step of `block`."""
    number = slot.micro_batch
    return slot._replace(micro_batch=number if number == 0 else few - 1 if number == block - 1 else min(1, few - 1))


def together(
    found: Any, mine: NotedPipeline, slots: Sequence[Slot], times: Times, began_ns: int, few: int, block: int,
) -> Any:
    """The rehearsal of a rank in a step of `block` micro-batches, from that of `few` by itself; what follows the passes
    begins at `began_ns`."""
    often = Counter(like(each, block, few) for each in slots)
    clock = replace(found.clock, **{name: Counter(getattr(found.clock, name)) for name in (
        "computing_ns", "communicating_ns", "sent_counts", "sent_by", "bound_ns")})
    clock.now_ns = began_ns + found.clock.now_ns - sum(each.ns for each in mine.noted.values())
    clock.idle_ns, operations = times.idle_ns + began_ns - times.ended_ns, Counter(found.operations)
    clock.exposed_ns += times.exposed_ns
    for slot, each in mine.noted.items():
        for name, total in {**clock.counts, "operations": operations}.items():
            for key, count in each.counts[name].items():
                total[key] += (often[slot] - 1) * count
        clock.exposed_ns += (often[slot] - 1) * each.counts["waiting"]["exposed"]
    now, peak = Counter(mine.base), Counter({**found.peak, ALL: found.peak_total})
    for slot in slots:
        each = mine.noted[like(slot, block, few)]
        peak |= Counter({kind: now[kind] + more for kind, more in each.peak.items()})
        now.update(each.left)
    return replace(found, clock=clock, operations=operations, peak_total=peak.pop(ALL), peak=peak)
