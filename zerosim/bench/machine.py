"""What this machine's processes reach while all of its ranks are at work: the figures of a [cluster], in one table.

    products    of a layer, forward and backward, with 512 rows and with 64
    bandwidth   of calls that work on so many bytes: in a core's cache, and beyond
    functions   numbers a second of what memory does not bound, at the size of what is worked on at a time; of copies,
                from and to memory that no cache of a core's has, as what a stage copies is
    update      AdamW on a million weights
    launch      of a call of NumPy's, with all of Python around it: a step of a model whose arrays are tiny
    link        two ranks that exchange: 8 bytes, and 2 MB, each message copied on its way as all messages are,
                out of one of several arrays and into another
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.allocation import allocate
from zerosim.bench.timings import Workload, batches_of, steps
from zerosim.comm import Communicator, Payload, Reduction
from zerosim.instruments.observed import Observed
from zerosim.optim.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.planner.cluster import cluster_of
from zerosim.planner.rehearsal import rehearse
from zerosim.scenario import ModelKeys, Scenario
from zerosim.scenario.machine import ClusterKeys, DeviceKeys, Functions, LinkKeys
from zerosim.training.build import replica

WIDTH, WIDE, NARROW, LAYERS = 1024, 512, 64, 6
SETS = (2**18, 2**20, 2**22, 2**24, 2**26)
PIECE = (256, 128)
WEIGHTS = 2**20
COPIED, ROOMS = 2**19, 12
SMALL, LARGE = 8, 2**21
LASTS = 2e-3
"""Seconds that a probe is repeated for in a round."""
TINY = Workload(ModelKeys(kind="transformer", layers=2, width=4, heads=2), batch=2, inputs=4, outputs=5)


@dataclass(frozen=True)
class Probe:
    """`run` does `work`: operations, numbers, bytes, or calls."""

    name: str
    run: Callable[[], Any]
    work: float
    message: bool = False
    """Whether both ranks must do so equally often; then waiting for the other is all that can be disturbed."""


def probes(comm: Communicator) -> Iterator[Probe]:
    """All that is measured, on one rank."""
    yield from products()
    yield from bandwidths()
    yield from functions()
    yield update()
    yield tiny_step()
    for name, size, times in (("small", SMALL, 20), ("large", LARGE, 2)):
        yield Probe(name, exchanging(comm, size, times), times, message=True)


def full(*shape: int) -> Any:
    return np.full(shape, 0.5, np.float32)


def zeros(*shape: int) -> Any:
    found = np.empty(shape, np.float32)
    found[...] = 0.0
    return found


def products() -> Iterator[Probe]:
    """Probes of products, with many rows and with few; layers alternate, so that weights rest where a step has them."""
    for name, rows in (("wide", WIDE), ("narrow", NARROW)):
        layers = itertools.cycle([zeros(WIDTH, WIDTH) for _ in range(LAYERS)])
        yield Probe(name, partial(through_layer, layers, zeros(rows, WIDTH), zeros(rows, WIDTH)), 6 * rows * WIDTH**2)


def through_layer(layers: Iterator[Any], x: Any, y: Any) -> None:
    """Multiply through a layer: forward, and both products of backward."""
    weight, gradient = next(layers), next(layers)
    np.matmul(x, weight.T, out=y)
    np.matmul(y.T, x, out=gradient)
    np.matmul(y, weight, out=x)


def bandwidths() -> Iterator[Probe]:
    for size in SETS:
        x, y, z = (full(size // 12) for _ in range(3))
        yield Probe(f"bandwidth {size}", partial(np.multiply, x, y, out=z), 3 * x.nbytes)


def functions() -> Iterator[Probe]:
    x, out, rows = full(*PIECE), full(*PIECE), full(PIECE[0], 1)
    table, places = full(PIECE[0], PIECE[1]), np.arange(PIECE[0]) * 7 % PIECE[0]
    yield from (
        Probe("exp", lambda: np.exp(x, out=out), x.size),
        Probe("tanh", lambda: np.tanh(x, out=out), x.size),
        Probe("max", lambda: np.max(x, axis=-1, keepdims=True, out=rows), x.size),
        Probe("sum", lambda: np.sum(x, axis=-1, keepdims=True, out=rows), x.size),
        Probe("mean", lambda: np.mean(x, axis=-1, keepdims=True, out=rows), x.size),
        Probe("take", lambda: np.take(table, places, axis=0, out=out, mode="clip"), x.size),
        Probe("scatter", lambda: np.add.at(table, places, x), x.size),
        Probe("copyto", copying(), COPIED),
    )


def copying() -> Callable[[], None]:
    """Copy from array to array, among so many that none is in a core's cache when its turn comes."""
    arrays = itertools.cycle([zeros(COPIED) for _ in range(ROOMS)])
    return lambda: np.copyto(next(arrays), next(arrays))


def update() -> Probe:
    adamw = OPTIMIZERS["adamw"]
    weights, gradient, state = full(WEIGHTS), full(WEIGHTS), {slot: full(WEIGHTS) for slot in adamw.slots}
    moved = 2 * (weights.nbytes + sum(each.nbytes for each in state.values())) + gradient.nbytes
    return Probe("update", lambda: adamw.update(weights, gradient, state, 1, Hyperparameters()), moved)


class OnlyRank:
    """A communicator of one rank, which has nobody to send to."""

    rank, size = 0, 1

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None: ...
    def send(self, outgoing: Payload, *, to: int) -> None: ...
    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None: ...


class NoRule:
    """A rule that updates nothing: the optimizer is measured by itself."""

    slots = ()

    def __init__(self, rule: Any) -> None:
        self.precision = rule.precision

    def update(self, *_: Any, **__: Any) -> None:
        """Weights stay as they are."""


def tiny_step() -> Probe:
    """One process alone takes a step whose arrays are tiny."""
    alone = OnlyRank()
    batches = batches_of(1, "ddp", TINY)
    mine = replica(batches.config, Observed(alone), allocate)
    rule: Any = NoRule(mine.rule)
    step = steps((batches, replace(mine, comm=alone, rule=rule)))
    return Probe("tiny step", lambda: next(step), 1)


def exchanging(comm: Communicator, size: int, times: int) -> Callable[[], None]:
    arrays, other = itertools.cycle([zeros(-(-size // 4)) for _ in range(ROOMS)]), 1 - comm.rank

    def run() -> None:
        for _ in range(times):
            comm.exchange(next(arrays), to=other, into=next(arrays), source=other)

    return run


def repeats(probe: Probe) -> int:
    """The number of times that a probe runs in a round."""
    if probe.message:
        return 1
    probe.run()
    started = time.perf_counter()
    probe.run()
    return max(1, min(1000, round(LASTS / max(time.perf_counter() - started, 1e-7))))


def measured_cluster(seconds: dict[str, float]) -> ClusterKeys:
    """The [cluster] of figures: of each probe's `work`, the seconds that it took.

    Launches are counted by planning the tiny step with launches of no time, and with launches of one microsecond.
    """
    free = cluster_from(seconds, 0.0)
    (config,) = [batches_of(1, "ddp", TINY).config]
    taken_ns, slower_ns = (
        time_of_tape(config, cluster_of(each, Scenario().origin, 1)) for each in (free, cluster_from(seconds, 1.0)))
    launches = (slower_ns - taken_ns) / 1000
    return cluster_from(seconds, max(1e6 * seconds["tiny step"] - taken_ns / 1000, 0.0) / launches)


def time_of_tape(config: Any, cluster: Any) -> int:
    clock = rehearse(config, cluster).clock
    return clock.now_ns - clock.computing_ns["update"]


def cluster_from(seconds: dict[str, float], launch_us: float) -> ClusterKeys:
    """The [cluster] for a launch of so many microseconds; launches are short beside what probes do."""

    def rate(work: float, name: str) -> float:
        return work / seconds[name]

    flops, narrow = (rate(6 * rows * WIDTH**2, name) for rows, name in ((WIDE, "wide"), (NARROW, "narrow")))
    times, more = flops / narrow, WIDE / NARROW
    half = max(WIDE * (times - 1) / (more - times), 0.0) if times < more else float(WIDE)
    bytes_of = {size: 3 * 4 * (size // 12) for size in SETS}
    by_size = [rate(bytes_of[size], f"bandwidth {size}") for size in SETS]
    numbers = float(PIECE[0] * PIECE[1])
    named = {name: rate(numbers, name) for name in ("exp", "tanh", "max", "sum", "mean", "take", "scatter")}
    named["copyto"] = rate(COPIED, "copyto")
    update_bytes = 7 * 4 * WEIGHTS
    transfer = max(seconds["large"] - seconds["small"], 1e-9)
    return ClusterKeys(
        device=DeviceKeys(
            flops=flops * (1 + half / WIDE), memory_bandwidth=by_size[-1], memory=memory_bytes(), launch_us=launch_us,
            half_width=half, working_sets=tuple(map(float, SETS)),
            bandwidths=tuple(by_size), functions=Functions(**named, update=rate(update_bytes, "update")),
        ),
        inside=LinkKeys(1e6 * seconds["small"], LARGE / transfer / 1e9),
        collectives="written", kernels="written",
    )


def memory_bytes() -> float:
    """The bytes of this machine's memory that each of two processes may have."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
