"""The times of operations, updates and collectives on a cluster, in integer nanoseconds.

    operation     its floating-point operations by the achieved rate of products, then the bytes that it reads and
                  writes, each number once, by the memory bandwidth; at least the launch of a kernel.
    loss          its passes over the outputs, in 32 bits; at least a launch
    update        the bytes of gradient, weights and state that it reads and writes; at least a launch
    collective    pipelined, the default: the bytes a rank sends, by the bandwidth of a ring through all ranks,
                  and a latency per step; or as written: message by message, see `fluid`

The first is the roofline of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model"
(2009), for an operation that does not overlap its two parts: it takes their sum, not the larger. So narrow matrix
products are slower without a further number. Fused attention computes its scores again in backward: five products,
where the code here has four (Dao, "FlashAttention-2", 2023, section 4.1).

The bandwidth of a pipelined ring is the least along it; rings enter and leave a host by all of its network cards
together. The number of steps between hosts is the number of hosts minus one, as in NCCL (src/graph/tuning.cc).

Pipelined is the default, because libraries run as many rings as there are cards, in slices. A ring as written uses one
network card of a host at a time and waits for whole chunks.

There are two kinds of kernels. `written` has the same arrays in memory as a run of zerosim, to the byte; tests need
it. `fused` leaves out what devices keep in registers; plans for a device need it.

"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from zerosim.autograd.graph import Step
from zerosim.autograd.operation import Shape
from zerosim.collectives import algorithm_of
from zerosim.collectives.narrow import OnNarrowWires
from zerosim.collectives.table import Algorithm
from zerosim.core.comm import Communicator, SomeRanks
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.cluster import HOST_BYTES_PER_SECOND, NS, Cluster
from zerosim.plan.fluid import written_ns
from zerosim.verdict.flows import with_messages


class Price(NamedTuple):
    """The price of a collective: its time, and what rank 0 sends."""

    ns: int
    sent_bytes: int
    messages: int


class Time(NamedTuple):
    """The time of an operation, and what bounds it."""

    ns: int
    bound: str


@dataclass(frozen=True, eq=False)
class Costs:
    """Prices on `cluster` for numbers of `itemsize` bytes over `ranks` ranks, computed once for equal arguments."""

    cluster: Cluster
    ranks: int
    itemsize: int
    _prices: dict[Any, Price] = field(default_factory=dict)
    _operations: dict[Any, Time] = field(default_factory=dict)
    _groups: dict[tuple[int, int], "Costs"] = field(default_factory=dict)

    def of_operation(self, step: Step, way: str) -> Time:
        """The time of an operation's `forward` or `backward`; fused attention computes its scores again in backward."""
        operation, operations = step.instruction.operation, step.forward_operations
        if way == "backward":
            again = self.cluster.fused and is_attention(step) and not self.cluster.software.score_keeps
            operations = step.backward_operations * 5 // 4 if again else step.backward_operations
        if self.cluster.fused and operation.sends and operation.multiplications is None:
            return Time(0, "memory")    # a library's collective copies nothing besides
        if (key := (step, way)) not in self._operations:
            frozen, adapter = adapted(step, way, self.cluster)
            moved = self.kernel_bytes(step, way) + self.cast_bytes(step, way) + adapter.moved
            moving, products = Time(self.moved_ns(moved), "memory"), self.products(step, operations - frozen)
            further = round(self.cluster.device.products_ns(adapter.operations, self.cluster.tuning.adapter_rank or 1))
            longest = max(moving, products)
            launch = Time(round(self.cluster.device.launch_ns * (1 + adapter.launches)), "launches")
            time = max(longest._replace(ns=moving.ns + products.ns + further), launch)
            routes = (operation.name, way) in ROUTING and self.cluster.fused
            if launches := self.cluster.software.launches[way == "backward"] * routes:
                time = Time(time.ns + round(launches * HOST_NS), "launches")
            self._operations[key] = time
        return self._operations[key]

    def kernel_bytes(self, step: Step, way: str) -> float:
        """The bytes that the kernels of an operation read and write.

        `passes` are those of kernels that compute in 32 bits, over the bytes of 16-bit operands: they move as much
        whatever the operands have.
        """
        operation, software = step.instruction.operation, self.cluster.software
        factor = software.moved(operation.name, way, multiplies=operation.multiplications is not None)
        if operation.name in software.passes:
            return factor * 2 * sum(count for count, _ in moved_arrays(step, way))
        scores = software.scores[way == "backward"] * scores_of(step) if any(software.scores) else 0.0
        return scores + factor * moved_bytes(step, way, self.itemsize)

    def products(self, step: Step, operations: int) -> Time:
        """The time of a step's matrix products without memory traffic; the weights' narrower side is the width."""
        device, software = self.cluster.device, self.cluster.software
        if not operations:
            return Time(0, "products")
        if is_attention(step):
            return Time(round(device.attention_ns(operations, step.shape[-2], software.attention)), "attention")
        ns = device.products_ns(operations, min(step.input_shapes["weight"][-2:])) / software.products
        return Time(round(ns), "products")

    def copied_ns(self, sent_bytes: int) -> int:
        """The time of the software's copies for a collective that sends `sent_bytes`: into and out of its buffers."""
        copies = self.cluster.software.copies
        return self.moved_ns(copies * sent_bytes) if copies else 0

    def cast_bytes(self, step: Step, way: str) -> int:
        """The bytes that casts to 8 bits read and write.

        With one scale per array, forward casts activations and weights, and backward casts the gradient of the output.
        Each number is read twice, for the range and for the value, and written to two copies, one of them transposed
        (Micikevicius et al., "FP8 formats for deep learning", 2022). With one scale per row, rows and columns are cast
        separately: forward casts the rows of activations and weights; backward casts their columns, and both of the
        gradient. A row stays in registers until it is cast, so it is read once; columns are read twice. With one scale
        for each 32 numbers, a tile is read once and written along rows and along columns (Transformer Engine, `mxfp8`).
        """
        if not self.cluster.fp8 or is_attention(step) or not step.forward_operations:
            return 0
        operands, gradient = prod(step.input_shapes["x"]) + prod(step.input_shapes["weight"]), prod(step.shape)
        if self.cluster.fp8 == "fp8_rowwise":
            by_rows, by_columns = self.itemsize + 1, 2 * self.itemsize + 1
            return operands * by_rows if way == "forward" else operands * by_columns + gradient * (by_rows + by_columns)
        cast = self.itemsize + 2 * 33 / 32 if self.cluster.fp8 == "mxfp8" else 2 * self.itemsize + 2
        return round((operands if way == "forward" else gradient) * cast)

    def loss_ns(self, outputs: Shape) -> int:
        """The time of a loss and its gradient: widen the outputs, take logarithms, write and round a gradient.

        A compiled loss reads the outputs twice and writes the gradient.
        """
        wide, narrow, device = 4 * prod(outputs), self.itemsize * prod(outputs), self.cluster.device
        rounding = 0 if self.itemsize == 4 else 2 * (wide + narrow)
        moved = 3 * narrow if self.cluster.software.loss == "compiled" else rounding + 4 * wide
        return round(max(device.moved_ns(moved), device.launch_ns))

    def moved_ns(self, moved_bytes: float) -> int:
        return round(self.cluster.device.moved_ns(moved_bytes))

    def update_ns(self, moved_bytes: int, *, on_host: bool = False) -> int:
        """The time of an optimizer step that reads and writes so much in one kernel on the device, or on its host."""
        device, moved = self.cluster.device, moved_bytes * self.cluster.software.update
        rate = HOST_BYTES_PER_SECOND if on_host else device.update_bandwidth
        return round((moved_bytes if on_host else moved) * NS / rate if rate else max(
            device.moved_ns(moved), device.launch_ns))

    def of(self, comm: Communicator) -> "Costs":
        """The costs of collectives among the ranks of `comm`: all ranks, or one group of a mesh."""
        stride = comm.stride if isinstance(comm, SomeRanks) else 1
        key = comm.size, stride
        if key == (self.ranks, 1):
            return self
        if key not in self._groups:
            self._groups[key] = Costs(self.cluster.seen_by(stride), comm.size, self.itemsize)
        return self._groups[key]

    def price(self, function: Callable[..., None], argument: Any, root: int = 0) -> Price:
        """The price of a collective on chunks of equal length, one per rank, or on one vector, from `root`.

        Each message of a reduce-scatter of codes is encoded, decoded and added.
        """
        if isinstance(function, OnNarrowWires):
            chunk, algorithm = argument[0], with_messages(algorithm_of(function.collective))
            length = function.wire.encoded_bytes(len(chunk))
            passes_ns = self.moved_ns(function.encoding_bytes(chunk)) + self.moved_ns(length + 4 * chunk.nbytes)
            price = self._price(algorithm, length, True, 0)
            return price._replace(ns=price.ns + algorithm.messages(0, self.ranks) * passes_ns)
        chunked = isinstance(argument, Sequence)
        length = argument[0].nbytes if chunked else argument.nbytes
        key = (function, length, chunked, root)
        if key not in self._prices:
            self._prices[key] = self._price(with_messages(algorithm_of(function)), length, chunked, root)
        return self._prices[key]

    def _price(self, algorithm: Algorithm, length: int, chunked: bool, root: int) -> Price:
        if self.ranks == 1:
            return Price(0, 0, 0)
        lengths = [length] * self.ranks if chunked else [*map(len, split(Extent(length, np.uint8), self.ranks))]
        if self.cluster.pipelined:
            ns = self.pipelined_ns(algorithm, algorithm.sent_bytes(lengths, root, root))
        else:       # message by message; rank 0 is the root
            whole = algorithm.collective == "broadcast"
            ns = written_ns(
                (lambda comm, chunks: algorithm.function(comm, chunks[:], 0)) if whole else algorithm.function,
                sum(lengths), 1, self.cluster, self.ranks)
        messages = algorithm.messages(0, self.ranks, root)
        return Price(ns, algorithm.sent_bytes(lengths, 0) if chunked else messages * length, messages)

    def pipelined_ns(self, algorithm: Algorithm, sent_bytes: int) -> int:
        """The time of pipelined rings through all ranks, one per network card, on slices of messages.

        A two-level collective runs the rings within hosts first, then those between hosts, which share a host's cards.
        """
        if algorithm.per_host:
            return self._two_level_ns(algorithm, sent_bytes)
        cluster, steps = self.cluster, algorithm.steps(self.ranks)
        hosts = cluster.hosts(self.ranks)
        between = -(-steps * (hosts - 1) // (self.ranks - 1))
        latency = between * cluster.between.latency_ns + (steps - between) * cluster.inside.latency_ns
        return latency + cluster.slowest(self.ranks).transfer_ns(sent_bytes)

    def _two_level_ns(self, algorithm: Algorithm, sent_bytes: int) -> int:
        cluster, per_host = self.cluster, min(algorithm.per_host, self.ranks)
        hosts, steps = -(-self.ranks // per_host), algorithm.steps(self.ranks)
        across = cluster.seen_by(per_host)
        between = steps * (hosts - 1) // (self.ranks - 1)
        between_bytes = sent_bytes * (hosts - 1) // (self.ranks - 1)
        links = ((cluster.slowest(per_host), steps - between, sent_bytes - between_bytes),
                 (across.slowest(hosts), between, between_bytes))
        return sum(steps * link.latency_ns + link.transfer_ns(count) for link, steps, count in links)


class AdapterWork(NamedTuple):
    """What adapters add to an operation, and the widening of frozen weights."""

    operations: int = 0
    moved: float = 0.0
    launches: int = 0


def adapted(step: Step, way: str, cluster: Cluster) -> tuple[int, AdapterWork]:
    """The operations of a step that frozen weights spare, and what adapters add: y += B A x, and all gradients.

    Weights in few bits are widened to 16 for each use.
    """
    tuning, weight = cluster.tuning, step.input_shapes.get("weight")
    if not tuning.adapter_rank or weight is None or not step.forward_operations:
        return 0, AdapterWork()
    spared = step.backward_operations // 2 if way == "backward" and "weight" in step.wanted else 0
    widened = (tuning.frozen_bits / 8 + 2) * prod(weight) if tuning.frozen_bits else 0.0
    if not tuning.adapters(weight):
        return spared, AdapterWork(moved=widened)
    rows = prod(step.shape[:-1])
    once, passes = 2 * rows * tuning.adapters(weight), 1 + (way == "backward")
    numbers = passes * rows * (step.input_shapes["x"][-1] + 2 * step.shape[-1] + 2 * tuning.adapter_rank)
    return spared, AdapterWork(passes * once, widened + 2 * numbers, 2 * passes)


HOST_NS = 8000
"""Nanoseconds from one launch of PyTorch's host to the next, for kernels that the device does not keep waiting."""
ROUTING = ("queue_slots", "forward"), ("scatter_rows", "backward")
"""Operations that wait for the host, as tokens are sent to experts; in backward it is that of what fills the queues."""


def moved_bytes(step: Step, way: str, itemsize: int) -> int:
    """The bytes that an operation reads and writes; in backward also ∂L/∂y and the wanted gradients.

    `itemsize` is that of arrays to which no policy gave a dtype.
    """
    return sum(count * (dtype.itemsize if dtype else itemsize) for count, dtype in moved_arrays(step, way))


def moved_arrays(step: Step, way: str) -> list[tuple[int, np.dtype[Any] | None]]:
    """The lengths and dtypes of the arrays that an operation reads and writes."""
    operation, shapes = step.instruction.operation, {**step.input_shapes, "y": step.shape}
    names = ["y", *step.needed, *step.wanted] if way == "backward" else ["y", *step.input_shapes]
    if way == "forward" and operation.moves and operation.needs and not operation.passes:
        names = ["y", "y"]
    return [(prod(shapes[name]), step.dtypes[name]) for name in names]


def is_attention(step: Step) -> bool:
    """Whether the matrix products of a step, if any, have no weights."""
    return "weight" not in step.input_shapes


def scores_of(step: Step) -> int:
    """The products of a query and a key in attention over heads; 0 for other operations."""
    heads, (width, *others) = step.instruction.settings.get("heads", 0), (
        shape[-1] for shape in step.input_shapes.values())
    of_both = (width if others else step.shape[-1]) + step.shape[-1]
    return heads * step.forward_operations // (2 * of_both) if heads and is_attention(step) else 0
