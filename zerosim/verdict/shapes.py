"""The memory that every rank must hold within a step: the stage's own code, run on shapes alone.

A rank runs two steps, because arrays of one step may meet those of the next. It has no peers: collectives take their
buffers and send nothing, and all ranks need the same bytes. Nothing is computed or allocated, so any model can be
examined.

These figures follow the code, so they cannot find a fault of a shipped stage; a user's stage is compared with the
shipped one that shards the same states. Therefore what a stage keeps between steps, needs and sends is stated apart
from its code: `resting`, and the list of collectives in `traffic`. Tests have peaks by hand. With traffic from shapes
as well, about half as many faults planted in stages would be noticed.

A world that copies messages, and runs overlapped work on a second thread, holds more: `overlapped_bytes` at most for
that work, and the copies themselves (`traffic.message_copies`).
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zerosim.autograd.graph import Step
from zerosim.autograd.player import Perform, perform
from zerosim.autograd.tape import Policy
from zerosim.autograd.tape_collectives import Direction, TapeGroup, over
from zerosim.collectives.narrow import OnNarrowWires, WireFormat
from zerosim.core.allocation import Allocator, Kind
from zerosim.core.extents import Extent, extent
from zerosim.core.sharding import Directions, padded
from zerosim.observe.ledger import Ledger
from zerosim.observe.observed import Observed, ObservedAllocator
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.second_channel import Pending, SecondChannel, Work
from zerosim.stages.square_sums import SquareSums
from zerosim.stages.storage import HostMemory
from zerosim.stages.update import UpdateRule
from zerosim.stages.users_stage import SHIPPED
from zerosim.training.build import Parts, replica, stepping
from zerosim.training.config import Config
from zerosim.verdict.flows import LoneRank


class TapeCall(NamedTuple):
    """A call of a collective on the tape: over a direction, of a flat array, with further arguments."""

    direction: str
    collective: str
    elements: int
    itemsize: int
    args: tuple[int, ...]


@dataclass(frozen=True)
class ExpectedMemory:
    """The memory of a rank in all steps of a run."""

    peak_bytes: Mapping[Kind, int]
    """The peak of each kind."""
    bounded: frozenset[Kind]
    """The kinds whose peak is only an upper bound: gradients, if an overlapped reduction makes copies."""
    peak_total: int
    """The peak of all kinds together."""
    overlapped_bytes: int
    """The peak of the buffers of overlapped work."""
    host_peak_bytes: Mapping[Kind, int]
    """The peak of each kind on the host."""
    moved_bytes: Mapping[str, int]
    """The bytes copied to the host and back in all steps, by kind and direction."""
    operations: Mapping[str, int]
    """Floating-point operations of matrix products in all steps: forward, backward and recomputation."""
    tape_calls: Mapping[TapeCall, int]
    """The collectives on the tape in all steps."""


_KNOWN: weakref.WeakKeyDictionary[Config, dict[int, ExpectedMemory]] = weakref.WeakKeyDictionary()


def expected(config: Config, updates: int | None = None) -> ExpectedMemory:
    """The memory of a rank in a run's steps; `updates` of them, by default all, were not skipped.

    It is computed once for a config, and forgotten with it.

    >>> from zerosim.models.units import Task
    >>> from zerosim.scenario.schema import Scenario
    >>> from zerosim.training.config import configured
    >>> row, *_ = Scenario().rows                                # 64-64-64-10, 16 samples at a time
    >>> expected(configured(row, Task(64, 10, "cross_entropy"))).peak_bytes["activations"]
    17024
    """
    updates = config.steps_here if updates is None else updates
    known = _KNOWN.setdefault(config, {})
    if updates in known:
        return known[updates]
    steps, skipped = config.steps_here, config.steps_here - updates
    run = StepsOnShapes(config, min(steps, 2), skipped=not updates)
    bytes_moved, once = run.moved_in(updates or steps), len(run.moved) or 1
    if updates and skipped:
        bytes_moved += StepsOnShapes(config, 1, skipped=True).moved_in(skipped)
    in_place = config.addition.collective is not None and config.arithmetic.wire == config.arithmetic.accumulate
    known[updates] = ExpectedMemory(
        peak_bytes=dict(run.ledger.peak),
        bounded=frozenset({"gradients"}) if config.parallel.overlap and not in_place else frozenset(),
        peak_total=run.ledger.peak_total,
        overlapped_bytes=run.overlapped.peak["buffers"],
        host_peak_bytes=dict(+run.host.peak),
        moved_bytes=dict(+bytes_moved),
        operations={what: run.replica.tape.operations[what] // once * steps
                    for what in ("forward", "backward", "recomputation")},
        tape_calls={call: count // once * steps for call, count in run.calls.total.items()},
    )
    return known[updates]


class StepsOnShapes:
    """Steps of rank 0 on shapes, their ledgers, and the bytes that each step moves to the host and back."""

    def __init__(self, config: Config, steps: int, *, skipped: bool) -> None:
        self.ledger, self.overlapped, self.host = Ledger(), Ledger(), Ledger()
        self.moved: list[Counter[str]] = []
        self.calls = TapeCalls(config.directions)
        comm = Uncalled(LoneRank(0, config.directions.data))
        second = Lingering(comm, ObservedAllocator(extent, self.ledger), self.overlapped)
        wire = config.arithmetic.weights_wire and SilentWire(config.arithmetic.weights_wire)
        self.replica = on_shapes(
            config, comm, second.allocate, self.calls,
            HostMemory(ObservedAllocator(extent, self.host), lambda what, owner, into, source: self.host.moved(
                what, owner, source.nbytes)),
            NoNumbers(config.rule), NoSums(np.inf if skipped else 0.0, self.calls, config.whole),
            gathers=second, reducing=second, weights_wire=wire)
        shipped = SHIPPED[frozenset(config.stage.sharded)]
        neighbours = Unconnected(config, self.calls.group("ends", 2))
        run = stepping(config, shipped, Observed(LoneRank(0, 1)), self.replica, neighbours, [])
        self.replica.begin(lambda unit: extent(
            padded(unit.count, config.directions.data), np.float32, kind="parameters", owner=unit.name))
        self.replica.state.updates = config.done
        for ledger in (self.ledger, self.overlapped, self.host):
            ledger.begin_peak()
        for number in range(1, steps + 1):
            before = Counter(self.host.moved_bytes)
            run(whole_batch(config, number))
            self.moved.append(self.host.moved_bytes - before)

    def moved_in(self, steps: int) -> Counter[str]:
        """The bytes that so many steps move: all steps after the first move as much as the last one here."""
        if not self.moved:
            return Counter()
        return self.moved[0] + Counter({what: (steps - 1) * count for what, count in self.moved[-1].items()})


def on_shapes(
    config: Config, comm: Observed, allocate: Allocator, calls: "TapeCalls", host: HostMemory, rule: Any,
    norms: "NoSums", *, gathers: SecondChannel, reducing: SecondChannel, weights_wire: WireFormat | None,
    perform: Perform | None = None, policy: Policy | None = None, states: Allocator | None = None,
) -> Replica:
    """A replica of a row on shapes: its code with an update `rule` and `norms` that compute nothing.

    `comm` has collectives that take buffers and send nothing; those on the tape are noted by `calls`. `perform` runs
    its operations, by default as `calls` does, and `policy` replaces the tape's. Weights arrive by `gathers`;
    `reducing` runs overlapped reductions. `states` allocates states that rest on the device, by default as `allocate`.
    """
    wire = config.arithmetic.gradients_wire and SilentWire(config.arithmetic.gradients_wire)
    tensor = calls.group("tensor", config.directions.tensor)
    return replica(config, comm, allocate, perform=perform or calls.perform, host=host, policy=policy, parts=Parts(
        rule, norms, gathers, reducing, states or allocate, tensor, weights_wire, wire))


class TapeCalls:
    """The calls of collectives on the tape; `run` runs an operation."""

    def __init__(self, directions: Directions, run: Callable[..., Any] | None = None) -> None:
        self.total = Counter[TapeCall]()
        self._made: list[TapeCall] = []
        sizes = directions.groups.items()
        self.groups = {name: CountedGroup(name, size, note=self._made.append) for name, size in sizes}
        self.pipeline: dict[str, TapeGroup] = {
            "pipeline": CountedGroup("pipeline", directions.pipeline, note=self._made.append)}
        self._carried_out = over(self.groups, run or (
            lambda step, function, *arrays, **named: perform(step, function, *arrays, **undrawn(named))))

    def group(self, name: str, size: int) -> "CountedGroup":
        """A group whose calls are no operation's, and are counted at once."""
        return CountedGroup(name, size, note=lambda call: self.add([call]))

    def add(self, calls: Iterable[TapeCall]) -> None:
        """Count calls."""
        self.total.update(calls)

    def count(self, work: Callable[[], object]) -> None:
        """Count the calls of work outside the tape."""
        self._made.clear()
        work()
        self.add(self._made)

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """Run an operation, and count its calls."""
        self._made.clear()
        result = self._carried_out(step, function, *arrays, **named)
        self.add(self._made)
        return result


@dataclass(frozen=True, kw_only=True)
class CountedGroup(Direction):
    """A group on shapes: its collectives are noted and send nothing."""

    note: Callable[[TapeCall], object]

    def __post_init__(self) -> None:
        for collective in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "shift"):
            object.__setattr__(self, collective, partial(self._note, collective))

    def _note(self, collective: str, flat: Any, *args: int) -> None:
        self.note(TapeCall(self.name, collective, len(flat), flat.dtype.itemsize, args))


class Unconnected:
    """A rank of a pipeline whose neighbours send and receive nothing."""

    def __init__(self, config: Config, ends: CountedGroup) -> None:
        self.add_over_ends = ends.all_reduce
        ranks = config.whole.of_pipeline if config.whole else (config,)
        self.place, self.size = ranks.index(config), len(ranks)

    def send(self, what: str, array: Any) -> None:
        """Does nothing."""

    recv = send


def whole_batch(config: Config, step: int = 1) -> Batch:
    """The micro-batches of a rank on shapes; tokens and labels are small enough to be real arrays."""
    samples, task = config.train.micro_batch, config.model.task
    inputs: Any = Extent((samples, task.inputs), config.arithmetic.compute)
    targets: Any = np.zeros(samples, np.int64)
    if task.tokens:
        inputs = targets = np.zeros((samples, task.inputs), np.int64)
    elif task.loss == "mean_squared_error":
        targets = Extent((samples, task.outputs), np.float32)
    return Batch(step, [inputs] * config.block, [targets] * config.block, config.samples * targets[0].size, 0)


def undrawn(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation without their random draws: arrays have no numbers."""
    return {**named, "draws": lambda *_: None} if named.get("draws") else named


class Uncalled(Observed):
    """A communicator whose collectives are not called: they notify instruments and take their buffers."""

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def take_buffers(comm: Any, given: Any, *_: Any) -> Any:
            if isinstance(function, OnNarrowWires) and comm.size > 1:
                function.take_buffers(given[0])
            return given[0] if name == "reduce_scatter" else None

        return super().named(name, take_buffers)


class NoSums(SquareSums):
    """The norm of gradients without numbers, an infinite one to skip a step; square sums are still all-gathered."""

    def __init__(self, norm: float = 0.0, calls: "TapeCalls | None" = None, whole: Config | None = None) -> None:
        self._norm = norm
        self._calls = calls or TapeCalls(Directions())
        units = whole.model.units if whole else ()
        super().__init__(self._calls.groups, self._calls.pipeline, [unit for unit in units if not unit.frozen])

    def of_gradients(self, replica: Replica) -> Iterator[float]:
        self._calls.count(lambda: list(super(NoSums, self).of_gradients(replica)))
        yield self._norm

    def of_chunk(self, replica: Replica, chunk: int) -> list[float]:
        return [0.0 for _ in replica.trained]


class SilentWire:
    """A wire format that only has lengths."""

    def __init__(self, wire: WireFormat) -> None:
        self.encoded_bytes = wire.encoded_bytes

    def encode(self, x: Any, out: Any) -> None:
        """Nothing to write."""

    decode = encode


class NoNumbers:
    """An update rule that writes nothing."""

    def __init__(self, rule: UpdateRule) -> None:
        self.slots, self.precision = rule.slots, rule.precision

    def update(self, *_: Any, **__: Any) -> None:
        """Nothing to write."""

    apply = of_matrices = update


class Lingering(SecondChannel):
    """Overlapped work, done at once. The gradients that it was given live until it is awaited, as on a thread.

    The buffers of the work are counted in `overlapped`, too.
    """

    def __init__(self, comm: Observed, allocate: Allocator, overlapped: Ledger) -> None:
        super().__init__(comm)
        self._plain, self._overlapped = allocate, ObservedAllocator(allocate, overlapped)
        self._working = False

    def allocate(self, shape: Any, dtype: Any, *, kind: Kind, owner: str) -> Any:
        """An array of the step, or of the work that is under way."""
        return (self._overlapped if self._working else self._plain)(shape, dtype, kind=kind, owner=owner)

    def begin(self, work: Work) -> Pending:
        given = getattr(work, "args", ())
        arrays = [array for one in given if isinstance(one, list) for array in one]
        arrays += [array for one in given if isinstance(one, HeldResult) for array in one.held]
        self._working = True
        array = super().begin(work).take()
        self._working = False
        return HeldResult(array, arrays)


class HeldResult(Pending):
    """A pending array, and those that live until it is taken."""

    def __init__(self, array: Any, arrays: list[Any]) -> None:
        self._array, self.held = [array], arrays

    def take(self) -> Any:
        self.held.clear()
        return self._array.pop()
