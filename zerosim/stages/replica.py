"""The replica: one rank's training state, and the verbs in which stages are written.

A flat buffer is full (one unit, padded, as `sharding` cuts it) or a shard (this rank's chunk of it); its layout says
which. A frozen unit has weights only: the verbs for gradients and updates skip it.

- The order of events is in the stages. Variants are strategies behind the verbs, invisible to the code of the stages.
- A verb for gradients names its unit, because a trace could not assign its messages otherwise.
- `keep` and `keep_shard` record layouts. A stage that keeps in full what it should shard is detected by its bytes.
- `prefetch`, `reshard`, `wait_for_reduction` and `recompute` are lines of the stages that do nothing unless requested.
- The update follows the backward loop: clipping and skipping a step need all gradients.
- Prefetched and overlapped collectives run on a second channel (`second_channel.py`).
- A doubt: verbs, strategies and state are one class; were they three, every stage would name three.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from zerosim.autograd.tape import Tape, Total
from zerosim.core.allocation import Allocator, Array, Kind
from zerosim.core.comm import Communicator, Payload
from zerosim.core.errors import CollectiveError
from zerosim.core.sharding import Layout, Mesh, split
from zerosim.models.units import Model, Unit
from zerosim.stages.arithmetic import Arithmetic
from zerosim.stages.second_channel import Pending, SecondChannel
from zerosim.stages.storage import GRADIENTS, WEIGHTS, Storage, TrainingState
from zerosim.stages.update import MASTER, UpdateRule

Reduced = Array | Pending | None
"""The full buffer of a gradient, a pending one, or None for a frozen unit."""

Fill = Callable[["Replica", Unit, list[Array], Communicator], Array]
"""`fill(replica, unit, empty, comm)` returns the buffer in `empty` with all weights of a unit; the list is emptied, so
only the caller holds it."""

Initial = Callable[[Unit], Array]
"""A unit's float32 weights before the first step, unpadded."""


@dataclass(frozen=True)
class Batch:
    """This rank's micro-batches of step `step`, numbered from 1, and the number of targets that count in the batch of
    all ranks."""

    step: int
    inputs: list[Array]
    targets: list[Array]
    counted: int
    first: int
    """The number of the first of these micro-batches in the batch of all ranks."""
    last: bool = True
    """Whether these are the last micro-batches of the step."""

    @property
    def samples(self) -> int:
        """`counted`, by the name that stages of users have known."""
        return self.counted


@dataclass(frozen=True)
class Collectives:
    """The collectives of a replica; the first argument of each is the unit or purpose."""

    reduce_scatter: Callable[[str, Communicator, Total, Callable[[Array], Array]], Array]
    add_replicas: Callable[[str, Communicator, Array], None]
    """All-reduces a chunk in place over the ranks that hold copies of it; does nothing without copies."""
    all_gather: Callable[[str, Communicator, Sequence[Payload]], None]
    gather_norms: Callable[[str, Communicator, Sequence[Payload]], None]
    broadcast: Callable[[str, Communicator, Payload, int], None]


class Publishing:
    """Publishes updated weights to the ranks that do not own them, by an all-gather; subclasses have other ways."""

    def update(self, replica: "Replica", unit: Unit, weights: Array) -> None:
        replica.optimizer_step(unit, weights)

    def publish(self, replica: "Replica", unit: Unit, full: Array) -> None:
        replica.all_gather(unit, full)


class Gathering:
    """Gathers the full weights of a unit at each use, by `fill`; they are freed with the caller's reference.

    Subclasses gather earlier, or keep weights longer.
    """

    def __init__(self, fill: Fill) -> None:
        self._fill = fill

    def gather(self, replica: "Replica", unit: Unit) -> Array:
        return self._fill(replica, unit, [replica.full(unit, "parameters")], replica.comm)

    def prefetch(self, replica: "Replica", unit: Unit | None) -> None:
        """Nothing to do: weights are gathered at their use."""

    def reshard(self, replica: "Replica", unit: Unit, full: Array) -> None:
        """Nothing to do: the gathering holds no reference."""


def with_next(units: Sequence[Unit], *, then: Sequence[Unit] = ()) -> Iterator[tuple[Unit, Unit | None]]:
    """Each unit with the next one; the last of `units` precedes the first of `then`.

    >>> list(with_next("ab", then="cd")), list(with_next("ab"))
    ([('a', 'b'), ('b', 'c')], [('a', 'b'), ('b', None)])
    >>> list(with_next("", then="c"))
    []
    """
    return zip(units, [*units[1:], next(iter(then), None)], strict=False)


@dataclass(eq=False)
class Replica:
    """One rank's training state, and the collectives, memory and strategies of its steps."""

    comm: Communicator
    model: Model
    tape: Tape
    rule: UpdateRule
    arithmetic: Arithmetic
    accumulation: str
    """`boundary`, `micro_batch` or `layered`: micro-batches run forward and backward one after another, and ranks add
    their gradients after the last one (PyTorch's `no_sync` around all others, DeepSpeed's gradient accumulation
    boundary) or after each; or all run through a unit before the next unit."""
    norms: "Callable[[Replica], Iterable[float]]"
    """The square sums for the norm of the gradients, in the same order on every rank."""
    collectives: Collectives
    publishing: Publishing
    gathering: Gathering
    allocate: Allocator
    storage: Storage
    state: TrainingState
    reduces_to_all: bool = False
    """Whether all ranks get the sum of all gradients, as after an all-reduce."""
    overlap: SecondChannel | None = None
    """The channel on which gradients are reduced during the next unit's backward; None without overlap."""
    unreduced: dict[Unit, Total] = field(default_factory=dict)
    """This rank's gradients of the micro-batches so far, if they are reduced after the last one."""
    reducing: list[tuple[Callable[[Unit, Array], None], Unit, Pending]] = field(default_factory=list)
    """The gradients under reduction on that channel, each with the verb that will keep it."""
    factor: float | None = None
    """The factor of this step's gradients; None if the step is skipped."""
    in_parts: bool = False
    """Whether a step is within its loop over `parts`."""

    @property
    def mesh(self) -> Mesh:
        """The mesh of this rank."""
        return self.state.placement.mesh

    @property
    def units(self) -> Sequence[Unit]:
        """All units, each once."""
        return self.model.units

    @property
    def trained(self) -> list[Unit]:
        """The units that are not frozen."""
        return [unit for unit in self.units if not unit.frozen]

    @property
    def forward_units(self) -> Sequence[Unit]:
        """The units in the order of forward; a unit with several segments occurs several times."""
        return self.model.forward_units

    @property
    def backward_units(self) -> Sequence[Unit]:
        """The units in the order of backward, down to the lowest trained one."""
        return self.model.backward_units

    @property
    def loss_name(self) -> str:
        return self.model.task.loss

    def begin(self, initial: Initial) -> None:
        """Allocate and initialise the states that the stage keeps, before the first step.

        The optimizer's slots begin with zeros, and its master copy with the initial weights.
        """
        for unit in self.units:
            flat = initial(unit)
            self.load(unit, WEIGHTS, flat)
            for slot in () if unit.frozen else self.rule.slots:
                self.load(unit, slot, flat if slot == MASTER else flat[:0])

    def load(self, unit: Unit, what: str, flat: Array) -> None:
        """Keep this rank's part of the weights of a unit, then of each slot of the optimizer; 0 where `flat` ends."""
        kind: Kind = "parameters" if what == WEIGHTS else "optimizer"
        layout, precision = self.state.placement.of(unit, kind), self.rule.precision
        dtype = precision.weights if what == WEIGHTS else precision.state
        own = flat[layout.start : layout.start + layout.length]
        kept = self.storage.allocator(kind)(layout.length, dtype, kind=kind, owner=unit.name)
        kept[: len(own)], kept[len(own) :] = own, 0
        if what != WEIGHTS:
            self.state.optimizer[unit][what] = kept
            return
        self.state.weights[unit] = kept
        if not unit.frozen:
            self.state.optimizer[unit] = {}

    def full(self, unit: Unit, kind: Kind, dtype: npt.DTypeLike | None = None) -> Array:
        """An uninitialised full buffer, by default of gathered weights."""
        length = self.state.placement.full(unit).length
        return self.allocate(length, dtype or self.arithmetic.compute, kind=kind, owner=unit.name)

    def own(self, full: Array) -> Array:
        """This rank's chunk of a full buffer, as a view."""
        own: Array = split(full, self.mesh.group)[self.mesh.place]
        return own

    def zero_grad(self, batch: Batch) -> None:
        """Begin a step: free the gradients of the last one. Raises `CollectiveError` within the loop over `parts`."""
        if self.in_parts:
            raise CollectiveError("zero_grad is called within the loop over replica.parts(batch), and would free the "
                                  "gradients of earlier parts; call it once, before that loop")
        self.state.gradients.clear()
        self.state.accumulated.clear()
        self.state.gradient_layouts.clear()
        self.unreduced.clear()
        self.state.step = batch.step
        self.tape.loss_scale = self.state.scaling.loss_scale
        self.tape.first_micro_batch = batch.first

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """The micro-batches that run forward and backward together: one or, with layered accumulation, all."""
        if self.accumulation == "layered":
            parts = [batch]
        else:
            parts = [replace(batch, inputs=[x], targets=[y], first=batch.first + number,
                             last=number == len(batch.inputs) - 1)
                     for number, (x, y) in enumerate(zip(batch.inputs, batch.targets, strict=True))]
        try:
            for part in parts:
                self.in_parts, self.tape.first_micro_batch = True, part.first
                yield part
        finally:
            self.in_parts = False

    def forward_after(self, part: Batch) -> Sequence[Unit]:
        """The units of the next forward after `part`; none after the last part."""
        return () if part.last else self.forward_units

    def at_boundary(self, part: Batch, unit: Unit, gradient: Total) -> Total:
        """The gradient if it is to be reduced now; otherwise None, and it is accumulated until the next micro-batch."""
        if gradient is None or part.last or self.accumulation == "micro_batch":
            return gradient
        self.unreduced[unit] = gradient
        return None

    def gather(self, unit: Unit) -> Array:
        """The full weights of a unit, which stay allocated as long as the caller refers to them."""
        if "parameters" not in self.state.placement.sharded:
            raise CollectiveError(
                f"gather fills the full weights of {unit.name} from shards, but this stage keeps them in full: use "
                f"replica.state.weights[unit]"
            )
        return self.gathering.gather(self, unit)

    def prefetch(self, unit: Unit | None) -> None:
        """Start to gather the weights of the next unit, if the scenario requests prefetching."""
        self.gathering.prefetch(self, unit)

    def reshard(self, unit: Unit, full: Array) -> None:
        """Free full weights after forward, unless the scenario keeps them until backward."""
        self.gathering.reshard(self, unit, full)

    def reduce_scatter(self, unit: Unit, gradient: Total) -> Reduced:
        """Add the ranks' gradients of a unit; this rank's chunk of the returned full buffer is the sum."""
        if gradient is None:
            return None
        if isinstance(gradient, np.ndarray):
            self._expect_full("reduce_scatter", unit, gradient)
        if self.overlap is None:
            return self._reduce_scattered(unit, [gradient], self.comm)
        return self.overlap.begin(partial(self._reduce_scattered, unit, [gradient]))

    def _reduce_scattered(self, unit: Unit, gradient: list[Total], comm: Communicator) -> Array:
        """The reduced gradient; the list is emptied, so that only this call holds the gradient."""
        within, across = self.mesh.within(comm), self.mesh.across(comm)
        full = self.collectives.reduce_scatter(unit.name, within, gradient.pop(), self._rounded_for_the_wire)
        self.collectives.add_replicas(unit.name, across, self.own(full))
        return full

    def reduce(self, unit: Unit, gradient: Total) -> Reduced:
        """Reduce-scatter, or all-reduce if the scenario says so; then the whole buffer is the sum."""
        full = self.reduce_scatter(unit, gradient)
        return self.all_gather(unit, full) if self.reduces_to_all else full

    def all_gather(self, unit: Unit, full: Reduced) -> Reduced:
        """Fill a full buffer of a unit from the chunks that the ranks own."""
        if self.overlap is not None and isinstance(full, Pending):
            return self.overlap.begin(partial(self._all_gathered, unit, full))
        return full if full is None else self._all_gathered(unit, full, self.comm)

    def _all_gathered(self, unit: Unit, full: Array | Pending, comm: Communicator) -> Array:
        filled = full.take() if isinstance(full, Pending) else full
        within = self.mesh.within(comm)
        self.collectives.all_gather(unit.name, within, split(filled, within.size))
        return filled

    def wait_for_reduction(self) -> None:
        """Keep the gradients reduced on the second channel, if the scenario requests overlap."""
        for keep, unit, pending in self.reducing:
            assert self.overlap is not None
            keep(unit, self.overlap.wait(unit, pending))
        self.reducing.clear()

    def keep(self, unit: Unit, full: Reduced) -> None:
        """Keep a unit's gradient, added to that of earlier parts of the batch."""
        if isinstance(full, Pending):
            self.reducing.append((self.keep, unit, full))
        elif full is not None:
            self._expect_full("keep", unit, full)
            self._keep(unit, full, self.state.placement.full(unit))

    def keep_shard(self, unit: Unit, full: Reduced) -> None:
        """Keep this rank's chunk of a unit's gradient, added to that of earlier parts of the batch."""
        if isinstance(full, Pending):
            self.reducing.append((self.keep_shard, unit, full))
        elif full is not None:
            self._expect_full("keep_shard", unit, full)
            shard = self.storage.keep(unit.name, self.own(full), "gradients")
            self._keep(unit, shard, self.state.placement.shard(unit))

    def _keep(self, unit: Unit, gradient: Array, layout: Layout) -> None:
        self.state.gradient_layouts[unit] = layout
        allocate = self.storage.allocator("gradients")
        if self.arithmetic.accumulates_in_float32:
            wide = self._copied(unit.name, gradient, np.float32, "gradients", allocate)
            self._accumulate(self.state.accumulated, unit, wide)
        narrow = self.rule.precision.weights
        if gradient.dtype != narrow:
            gradient = self._copied(unit.name, gradient, narrow, "gradients", allocate)
        self._accumulate(self.state.gradients, unit, gradient)

    def unscale_and_clip(self) -> None:
        """Agree on the factor of all gradients, or to skip this update, from the norm if it is needed."""
        sums = self.norms(self) if self.state.scaling.needs_norm else ()
        self.factor = self.state.scaling.factor(sums)
        self.state.updates += self.factor is not None

    def update(self, unit: Unit, weights: Array) -> None:
        """Compute this step's updates of `weights`, in the layout of the optimizer state, and apply them."""
        if not unit.frozen and self.factor is not None:
            layout = self.state.placement.of(unit, "optimizer")
            sharded = layout.length < self.state.placement.full(unit).length
            given = "replica.own(full), this rank's chunk" if sharded else "the full weights"
            if len(weights) < layout.length:
                kept = "{}, this rank's shard" if "parameters" in self.state.placement.sharded else "replica.own({})"
                given = kept.format("replica.state.weights[unit]")
            self._expect("update", unit, weights, layout, f"as many as the optimizer state has: pass {given}")
            if unit not in self.state.gradient_layouts:
                raise CollectiveError(
                    f"update found no gradient of {unit.name}: keep or keep_shard it first, after zero_grad(batch)"
                )
            self.publishing.update(self, unit, weights)

    def publish(self, unit: Unit, full: Array) -> None:
        """Send the updated weights of a unit to all ranks; each rank has updated its chunk."""
        if not unit.frozen and self.factor is not None:
            self._expect_full("publish", unit, full)
            self.publishing.publish(self, unit, full)

    def _expect_full(self, verb: str, unit: Unit, buffer: Array) -> None:
        words = "a full buffer; the call selects this rank's chunk itself"
        self._expect(verb, unit, buffer, self.state.placement.full(unit), words)

    def _expect(self, verb: str, unit: Unit, buffer: Array, layout: Layout, words: str) -> None:
        if len(buffer) != layout.length:
            raise CollectiveError(
                f"{verb} got {len(buffer)} elements of {unit.name}; expected {layout.length}, {words}"
            )

    def optimizer_step(self, unit: Unit, weights: Array, out: Array | None = None) -> None:
        """Update `weights` in place or, with `out`, write the differences to subtract from them there.

        The rule runs where the optimizer state is, on the device or on the host. It reads the weights only if there is
        no master copy.
        """
        storage, state, placement = self.storage, self.state.optimizer[unit], self.state.placement
        layout, here = placement.of(unit, "optimizer"), placement.tier("optimizer")
        near = storage.brought(unit.name, weights, "parameters", here, read=MASTER not in state)
        part = self.state.gradient_layouts[unit].part(self.reduced_gradients[unit], layout)
        gradient = storage.brought(unit.name, part, "gradients", here)
        kind: Kind
        differences = None if out is None else storage.brought(unit.name, out, "buffers", here, read=False)
        self.rule.update(unit, layout.start, near, gradient, state, step=self.state.step, count=self.state.updates,
                         factor=self.factor or 0.0, out=differences)
        kind, written = ("parameters", near) if differences is None else ("buffers", differences)
        storage.fill(unit.name, weights if out is None else out, written, kind, here, placement.tier(kind))

    @property
    def reduced_gradients(self) -> dict[Unit, Array]:
        """The gradients that the optimizer reads, in the layouts of `state.gradient_layouts`."""
        return self.state.accumulated if self.arithmetic.accumulates_in_float32 else self.state.gradients

    def sums(self, unit: Unit) -> list[Array]:
        """This rank's part of the sums of a unit's gradient, views."""
        wanted = self.state.placement.of(unit, "optimizer")
        return [gradient if self.reduces_to_all else kept.part(gradient, wanted)
                for what, kept, gradient in self.state.states_of(unit) if what in GRADIENTS]

    def _rounded_for_the_wire(self, full: Array) -> Array:
        if full.dtype == self.arithmetic.wire:
            return full
        return self._copied("wire", full, self.arithmetic.wire, "gradients", self.allocate)

    def _copied(self, owner: str, array: Array, dtype: npt.DTypeLike, kind: Kind, allocate: Allocator) -> Array:
        copy = allocate(len(array), dtype, kind=kind, owner=owner)
        copy[:] = array
        return copy

    def _accumulate(self, kept: dict[Unit, Array], unit: Unit, gradient: Array) -> None:
        if unit in kept:
            kept[unit] += gradient
        else:
            kept[unit] = gradient
