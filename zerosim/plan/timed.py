"""What a rehearsed step waits for: overlapped work, updates, quantisation; and passes that stand for others like them.

    pass      forward or backward of a micro-batch through a piece of a pipeline; without a pipeline both together
    value     the time of a pass, all that it counts, and its memory beyond what was alive before

Without a pipeline two micro-batches in a row with equal values stand for all up to the last one, which may reduce
gradients. In a pipeline each kind of rank is rehearsed by itself, with a few micro-batches: a pass has the same value
in every micro-batch but the first, which has no gradients to add to, and the last. Which pass waits for which, and for
how long, is that of any pipeline (`verdict.pipelines`): waiting for a pass of another rank is the bubble, and waiting
for its result on the way is exposed communication.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from zerosim.autograd.player import FLOAT_BYTES
from zerosim.collectives.narrow import WireFormat
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator
from zerosim.models.units import Unit
from zerosim.observe.ledger import Curve, Ledger
from zerosim.observe.observed import ObservedObject
from zerosim.observe.trace import Span
from zerosim.plan.clock import VirtualClock
from zerosim.plan.costs import Costs
from zerosim.plan.sharing import Sharing
from zerosim.stages.pipeline import Pipeline
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.schedules import Slot
from zerosim.stages.second_channel import Pending, SecondChannel, Work
from zerosim.training.config import Config
from zerosim.verdict.shapes import NoNumbers

ALL = "all kinds"
"""The key of the bytes of all kinds together."""


class TimedChannel(SecondChannel):
    """Overlapped work in the clock's stream; the step waits where its result is used, or only at its update."""

    def __init__(self, comm: Communicator, clock: VirtualClock, *, until_update: bool = False) -> None:
        super().__init__(comm)
        self._clock, self._until_update = clock, until_update
        self._ready_ns = WeakKeyDictionary[Pending, int]()

    def begin(self, work: Work) -> Pending:
        with self._clock.overlapped():
            pending = super().begin(work)
        self._ready_ns[pending] = self._clock.stream_ns
        return pending

    def wait(self, unit: Unit, pending: Pending) -> Array:
        if self._until_update:
            self._clock.due_ns = max(self._ready_ns[pending], self._clock.due_ns)
        else:
            self._clock.wait(self._ready_ns[pending])
        return pending.take()


class TimedUpdates(NoNumbers):
    """An update rule that leaves weights and state unchanged and takes the time to read and write them.

    The first update of a step allocates the buffers of an optimizer step over all parameters, which later updates
    share; software that has such buffers also holds 16-bit gradients widened to 32 bits there. An update on the host
    allocates nothing on the device.
    """

    def __init__(
        self, config: Config, clock: VirtualClock, costs: Costs, sharing: Sharing, allocate: Allocator
    ) -> None:
        super().__init__(config.rule)
        self._config, self._clock, self._costs, self._sharing, self._allocate = config, clock, costs, sharing, allocate
        self._on_host = "optimizer" in config.placement.on_host
        self.buffers: Any = None
        """The buffers, from the first update to the end of the step."""

    def update(
        self, unit: Unit, start: int, weights: Any, gradient: Any, state: Any, *, out: Any = None, **_: Any
    ) -> None:
        self._clock.wait(self._clock.due_ns)
        cluster, share = self._costs.cluster, self._sharing.share     # states in 8 bits have fused kernels
        update_bytes = 0.0 if cluster.tuning.states_in_8_bits else cluster.software.update_bytes
        if update_bytes and self.buffers is None and not self._on_host:
            update_bytes += FLOAT_BYTES * (gradient.dtype.itemsize < FLOAT_BYTES)
            trained = sum(self._config.placement.of(one, "optimizer").length * share(one.name)
                          for one in self._config.model.units if not one.frozen)
            self.buffers = self._allocate(round(trained * update_bytes), np.uint8, kind="buffers", owner="update")
        arrays = [weights, weights, *state.values(), *state.values(), gradient, *([] if out is None else [out])]
        self._take(sum(len(array) * array.dtype.itemsize for array in arrays) * share(unit.name))

    def apply(self, unit: Unit, start: int, weights: Any, differences: Any, **_: Any) -> None:
        self.update(unit, start, weights, differences, {})

    def of_matrices(self, unit: Unit, differences: Any, *, step: int) -> None:
        """Take the time to read and write the differences; a user's products of matrices take longer."""
        self._take(2 * differences.nbytes)

    def _take(self, moved_bytes: float) -> None:
        self._clock.compute("update", self._costs.update_ns(round(moved_bytes), on_host=self._on_host))


def timed_wire(wire: WireFormat, clock: VirtualClock, costs: Costs) -> Any:
    """A wire format that writes nothing and takes the time to read and write numbers and codes.

    Encoding reads its numbers twice, for scales and for codes.
    """
    def take(moved_bytes: int) -> None:
        clock.compute("quantization", costs.moved_ns(moved_bytes))

    return ObservedObject(wire, {
        "encode": lambda x, out: take(2 * x.nbytes + out.nbytes), "decode": lambda x, out: take(x.nbytes + out.nbytes)})


class Pass(NamedTuple):
    """The value of a pass; times and bytes are relative to its beginning."""

    ns: int
    sent_ns: int
    """The time up to the sending of its result; its gradients are reduced after that."""
    counts: dict[str, Counter[str]]
    """What the clock counts."""
    peak: Counter[Any]
    left: Counter[Any]
    """The bytes that are alive after it; below 0 for those that it frees."""
    under_way: tuple[int, int]
    """The time for which the stream, and the gradients for which the update waits, are still under way."""
    spans: list[Span]
    curve: Curve

    def like(self, other: "Pass") -> bool:
        """Whether the next pass after two like these is like them too."""
        return self[:6] == other[:6]

    def add_to(self, counts: dict[str, Counter[str]], times: int) -> None:
        """Add what so many passes like this count."""
        for name, of in self.counts.items():
            counts[name].update({key: times * count for key, count in of.items()})


@dataclass(eq=False)
class PassRecorder:
    """Records passes of a replica by its clock and its ledger."""

    clock: VirtualClock
    ledger: Ledger
    sent_ns: int = 0
    """The time at which the result of the last pass was sent."""
    values: dict[Slot, Pass] = field(default_factory=dict)
    """The values of a pipeline's passes."""
    base: Counter[Any] = field(default_factory=Counter)
    """The bytes that are alive before a pipeline's first pass."""
    ended_ns: int = 0
    """The time at which a pipeline's last pass has ended, and the update begins."""

    @contextmanager
    def recording(self, keep: Callable[[Pass], None]) -> Iterator[None]:
        """Record what this block does as a pass, and give its value to `keep`."""
        clock, ledger, counts, began_ns = self.clock, self.ledger, copied(self.clock.counts), self.clock.now_ns
        before, peak, peak_total = in_all(ledger.now, ledger.total), ledger.peak, ledger.peak_total
        spans, changes = len(clock.spans), len(ledger.curve)
        self.sent_ns = began_ns
        ledger.begin_peak()
        yield
        keep(Pass(
            clock.now_ns - began_ns, self.sent_ns - began_ns,
            {name: less(of, counts[name]) for name, of in clock.counts.items()},
            less(in_all(ledger.peak, ledger.peak_total), before), less(in_all(ledger.now, ledger.total), before),
            (max(clock.stream_ns - clock.now_ns, 0), max(clock.due_ns - clock.now_ns, 0)),
            [span.later(-began_ns) for span in clock.spans[spans:]],
            [(at - began_ns, {kind: held - before[kind] for kind, held in now.items()})
             for at, now in ledger.curve[changes:]]))
        ledger.peak, ledger.peak_total = ledger.peak | peak, max(ledger.peak_total, peak_total)


def in_all(by_kind: Mapping[Any, int], total: int) -> Counter[Any]:
    """Bytes by kind, and those of all kinds together."""
    return Counter({**by_kind, ALL: total})


def copied(counts: Mapping[str, Counter[str]]) -> defaultdict[str, Counter[str]]:
    """A copy of counts, which changes by itself."""
    return defaultdict(Counter, {name: Counter(of) for name, of in counts.items()})


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
            with self.recorder.recording(last.append):
                yield part
            last = last[-2:]

    def repeat(self, value: Pass, times: int) -> None:
        """Count a pass that leaves as much work under way as there was before it."""
        clock, ns = self.recorder.clock, times * value.ns
        clock.now_ns, clock.stream_ns, clock.due_ns = clock.now_ns + ns, clock.stream_ns + ns, clock.due_ns + ns
        value.add_to(clock.counts, times)


@dataclass(eq=False)
class RecordedPipeline(Pipeline):
    """A pipeline whose passes are recorded, and which keeps its outputs until their backward if its software does."""

    recorder: PassRecorder = field(kw_only=True)
    keeps_outputs: bool = field(kw_only=True)
    _outputs_kept: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def run(self, what: str, part: Batch, chunk: int) -> None:
        recorder = self.recorder
        recorder.base = recorder.base or in_all(recorder.ledger.now, recorder.ledger.total)
        with recorder.recording(partial(recorder.values.__setitem__, Slot(what, part.first, chunk))):
            super().run(what, part, chunk)
        recorder.ended_ns = recorder.clock.now_ns

    def compute(self, what: str, part: Batch, chunk: int, given: list[Array]) -> list[Array]:
        self._outputs_kept.pop((part.first, chunk), None)
        outputs = super().compute(what, part, chunk, given)
        if self.keeps_outputs and what == "F":
            self._outputs_kept[part.first, chunk] = outputs
        self.recorder.sent_ns = self.recorder.clock.now_ns
        return outputs
