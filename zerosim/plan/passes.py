"""Passes as values: a pass of a micro-batch is rehearsed once on one rank, and stands for all that are like it.

    pass      forward or backward of a micro-batch through a piece of a pipeline; without a pipeline both together
    value     the time of a pass, all that it counts, and its memory beyond what was alive before
    slots     the passes of a rank in the order in which its schedule runs them

Without a pipeline two micro-batches in a row with equal values stand for all up to the last one, which may reduce
gradients. In a pipeline each kind of rank is rehearsed by itself, with a few micro-batches: a pass has the same value
in every micro-batch but the first, which has no gradients to add to, and the last. One loop over the slots of all ranks
gives their times: a pass begins when its rank is free and what it needs has arrived. Messages each way follow one
another; waiting for a pass of another rank is the bubble, and waiting for its result on the way is exposed
communication.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from zerosim.core.allocation import Array
from zerosim.core.errors import ZerosimError
from zerosim.observe.ledger import Curve, Ledger
from zerosim.observe.trace import COLLECTIVES, Span
from zerosim.plan.clock import VirtualClock
from zerosim.stages.pipeline import Pipeline
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.schedules import Slot

ALL = "all kinds"
"""The key of the bytes of all kinds together."""


class Pass(NamedTuple):
    """The value of a pass; times and bytes are relative to its beginning."""

    ns: int
    sent_ns: int
    """The time up to the sending of its result; its gradients are reduced after that."""
    exposed_ns: int
    counts: dict[str, Counter[str]]
    peak: Counter[Any]
    left: Counter[Any]
    """The bytes that are alive after it; below 0 for those that it frees."""
    under_way: tuple[int, int]
    """The time for which the stream, and the gradients for which the update waits, are still under way."""
    spans: list[Span]
    curve: Curve

    def like(self, other: "Pass") -> bool:
        """Whether the next pass after two like these is like them too."""
        return self[:7] == other[:7]


@dataclass(eq=False)
class PassRecorder:
    """Records passes of a replica by its clock, its ledger, and the operations of its tape."""

    clock: VirtualClock
    ledger: Ledger
    operations: Counter[str]
    traced: bool
    """Whether spans are kept."""
    sent_ns: int = 0
    """The time at which the result of the last pass was sent."""

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """The counts of the clock and of the operations so far."""
        return {**self.clock.counts, "operations": self.operations}

    @contextmanager
    def recording(self, passes: list[Pass]) -> Iterator[None]:
        """Append this block to `passes`, as the value of a pass."""
        clock, ledger, before, began_ns = self.clock, self.ledger, alive(self.ledger), self.clock.now_ns
        counts, exposed_ns = {name: Counter(counts) for name, counts in self.counts.items()}, clock.exposed_ns
        peak, peak_total, spans, changes = ledger.peak, ledger.peak_total, len(clock.spans), len(ledger.curve)
        self.sent_ns = began_ns
        ledger.begin_peak()
        yield
        passes.append(Pass(
            clock.now_ns - began_ns, self.sent_ns - began_ns, clock.exposed_ns - exposed_ns,
            {name: less(counts_here, counts[name]) for name, counts_here in self.counts.items()},
            less(peak_of(ledger), before), less(alive(ledger), before),
            (max(clock.stream_ns - clock.now_ns, 0), max(clock.due_ns - clock.now_ns, 0)),
            [span.later(-began_ns) for span in clock.spans[spans:] if self.traced],
            [(at - began_ns, {kind: held - before[kind] for kind, held in now.items()})
             for at, now in ledger.curve[changes:]]))
        if not self.traced:
            clock.spans.clear()
        ledger.peak, ledger.peak_total = ledger.peak | peak, max(ledger.peak_total, peak_total)


def alive(ledger: Any) -> Counter[Any]:
    """The bytes that are alive, by kind and in all."""
    return Counter({**ledger.now, ALL: ledger.total})


def peak_of(ledger: Any) -> Counter[Any]:
    """The bytes at the peak of a ledger or rehearsal, by kind and in all."""
    return Counter({**ledger.peak, ALL: ledger.peak_total})


def less(now: Counter[Any], before: Counter[Any]) -> Counter[Any]:
    """The difference of two counts, by what differs.

    >>> less(Counter(a=3, b=1), Counter(a=1, b=1))
    Counter({'a': 2})
    """
    return Counter({key: now[key] - before[key] for key in now.keys() | before.keys() if now[key] != before[key]})


@dataclass(eq=False)
class RepeatingReplica(Replica):
    """A replica whose micro-batches are not run again once two in a row were alike, but for the last."""

    recorder: PassRecorder = field(kw_only=True)

    def parts(self, batch: Batch) -> Iterator[Batch]:
        last, repeated = list[Pass](), 0
        for part in super().parts(batch):
            if last[1:] and last[0].like(last[1]) and not part.last:
                repeated += 1
                continue
            if repeated:
                self.repeat(last[1], repeated)
            with self.recorder.recording(last):
                yield part
            last = last[-2:]

    def repeat(self, value: Pass, times: int) -> None:
        """Count a pass that leaves as much work under way as there was before it."""
        clock, ns = self.recorder.clock, times * value.ns
        clock.now_ns, clock.stream_ns, clock.due_ns = clock.now_ns + ns, clock.stream_ns + ns, clock.due_ns + ns
        clock.exposed_ns += times * value.exposed_ns
        add(self.recorder.counts, value, times)


def add(counts: dict[str, Counter[str]], value: Pass, times: int) -> None:
    """Add what a pass counts."""
    for name, total in counts.items():
        for key, count in value.counts[name].items():
            total[key] += times * count


@dataclass(eq=False)
class RecordedPipeline(Pipeline):
    """A pipeline whose passes are recorded, and which keeps its outputs until their backward if its software does."""

    recorder: PassRecorder = field(kw_only=True)
    keeps_outputs: bool = field(kw_only=True)
    values: dict[Slot, Pass] = field(default_factory=dict)
    base: Counter[Any] = field(default_factory=Counter)
    """The bytes that are alive before the first pass."""
    ended_ns: int = 0
    """The time at which the last pass has ended, and the update begins."""
    _outputs_kept: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def run(self, what: str, part: Batch, chunk: int) -> None:
        self.base = self.base or alive(self.recorder.ledger)
        passes = list[Pass]()
        with self.recorder.recording(passes):
            super().run(what, part, chunk)
        self.values[Slot(what, part.first, chunk)] = passes.pop()
        self.ended_ns = self.recorder.clock.now_ns

    def compute(self, what: str, part: Batch, chunk: int, given: list[Array]) -> list[Array]:
        self._outputs_kept.pop((part.first, chunk), None)
        outputs = super().compute(what, part, chunk, given)
        if self.keeps_outputs and what == "F":
            self._outputs_kept[part.first, chunk] = outputs
        return outputs

    def send(self, what: str, part: Batch, chunk: int, arrays: list[Array]) -> None:
        self.recorder.sent_ns = self.recorder.clock.now_ns
        super().send(what, part, chunk, arrays)


def like(slot: Slot, block: int, few: int) -> Slot:
    """The pass of a step of `few` micro-batches that is like a pass of a step of `block`."""
    number = slot.micro_batch
    if block == few:
        return slot
    return slot._replace(micro_batch=number if number == 0 else few - 1 if number == block - 1 else min(1, few - 1))


@dataclass
class RankTimes:
    """The times of a rank: the beginning of each pass, the end of the last one, and its waiting; its messages."""

    began_ns: list[int] = field(default_factory=list)
    ended_ns: int = 0
    idle_ns: int = 0
    exposed_ns: int = 0
    messages: list[Span] = field(default_factory=list)


SENT = {"F": "send_activation", "B": "send_gradient"}
"""The messages of passes that send their result."""


def times_of(
    slots: Sequence[Sequence[Slot]], value: Callable[[int, Slot], Pass], travels: Callable[[int, Slot], tuple[int, int]]
) -> list[RankTimes]:
    """The times of all ranks. `value(rank, slot)` is that of a pass; `travels(rank, slot)` are the nanoseconds and the
    bytes of its message. Raises `ZerosimError` for slots that wait for each other.
    """
    ranks, all_times = len(slots), [RankTimes() for _ in slots]
    sent, free_ns = dict[tuple[str, int, int], tuple[int, int]](), Counter[tuple[int, str]]()
    last, left = max(slot.chunk for slot in slots[0]) * ranks + ranks - 1, sum(map(len, slots))
    while left:
        before = left
        for rank, times in enumerate(all_times):
            for slot in slots[rank][len(times.began_ns) :]:
                piece, by = slot.chunk * ranks + rank, {"F": -1, "B": 1}.get(slot.what, 0)
                if by and 0 <= piece + by <= last:
                    if (slot.what, slot.micro_batch, piece + by) not in sent:
                        break
                    ended, arrives = sent[slot.what, slot.micro_batch, piece + by]
                    times.idle_ns += max(ended - times.ended_ns, 0)
                    times.exposed_ns += max(arrives - max(ended, times.ended_ns), 0)
                    times.ended_ns = max(arrives, times.ended_ns)
                cost = value(rank, slot)
                times.began_ns.append(times.ended_ns)
                ended = times.ended_ns + cost.sent_ns
                times.ended_ns += cost.ns
                if by and 0 <= piece - by <= last:
                    begins = max(ended, free_ns[rank, slot.what])
                    ns, count = travels(rank, slot)
                    free_ns[rank, slot.what] = begins + ns
                    times.messages.append(Span(
                        0, COLLECTIVES, 1, SENT[slot.what], "pipeline", begins, begins + ns, count))
                    sent[slot.what, slot.micro_batch, piece] = ended, begins + ns
                left -= 1
        if left == before:
            raise ZerosimError("the ranks of the pipeline wait for each other")
    return all_times


def together(
    rehearsal: Any, recorded: RecordedPipeline, slots: Sequence[Slot], times: RankTimes, began_ns: int, few: int,
    *, traced: bool,
) -> Any:
    """The rehearsal of a rank in a step of these slots, from that of `few` micro-batches by itself. What follows the
    passes begins at `began_ns`. If `traced`, it has all spans and a curve of memory.
    """
    block = 1 + max(slot.micro_batch for slot in slots)
    clock = replace(rehearsal.clock, spans=[], **{name: Counter(getattr(rehearsal.clock, name)) for name in (
        "computing_ns", "communicating_ns", "sent_counts", "sent_by", "bound_ns")})
    operations, later_ns = Counter(rehearsal.operations), began_ns - recorded.ended_ns
    counts = {**clock.counts, "operations": operations}
    for cost in recorded.values.values():
        add(counts, cost, -1)
        clock.exposed_ns -= cost.exposed_ns
    now, peak, curve = Counter(recorded.base), peak_of(rehearsal), rehearsal.curve[:1]
    for at, slot in zip(times.began_ns, slots, strict=True):
        cost = recorded.values[like(slot, block, few)]
        add(counts, cost, 1)
        clock.exposed_ns += cost.exposed_ns
        peak |= Counter({kind: now[kind] + more for kind, more in cost.peak.items()})
        if traced:
            clock.spans += [span.later(at) for span in cost.spans]
            curve += [(at + after, {str(kind): now[kind] + more for kind, more in held.items()})
                      for after, held in cost.curve]
        now.update(cost.left)
    for span in times.messages:
        clock.travel(span.what, span.unit, span.begin_ns, span.end_ns, span.bytes, 1)
    clock.spans += [span.later(later_ns) for span in rehearsal.clock.spans if span.begin_ns >= recorded.ended_ns]
    curve += [(at + later_ns, held) for at, held in rehearsal.curve if at >= recorded.ended_ns]
    clock.now_ns += later_ns
    clock.idle_ns = times.idle_ns + began_ns - times.ended_ns
    clock.exposed_ns += times.exposed_ns
    return replace(rehearsal, clock=clock, operations=operations, peak_total=peak.pop(ALL), peak=peak, curve=curve)
