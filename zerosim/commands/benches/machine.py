"""The rates of this machine's processes while all ranks are busy: the figures of a [cluster].

    products    of a layer, forward and backward, with 512 rows and with 64
    bandwidth   of calls by their bytes: within a core's cache, and beyond it
    functions   numbers per second of functions that memory does not bound, on arrays of a usual size; copies are
                measured outside a core's caches, as in the code of stages
    update      AdamW on a million weights
    launch      of a NumPy call with the Python around it: a step of a model with tiny arrays
    link        exchanges of two ranks: 8 bytes and 2 MB; each message is copied, from one of several arrays to another
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.comm import Communicator, among
from zerosim.commands.benches.timings import Workload, batches_of, plain, steps
from zerosim.figures.shapes import NoNumbers
from zerosim.optim.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import ModelKeys, Scenario
from zerosim.scenario.machine import ClusterKeys, DeviceKeys, Functions, LinkKeys

WIDTH, WIDE, NARROW, LAYERS = 1024, 512, 64, 6
SETS = (2**18, 2**20, 2**22, 2**24, 2**26)
PIECE = (256, 128)
WEIGHTS = 2**20
COPIED, ROOMS = 2**19, 12
SMALL, LARGE = 8, 2**21
PROCESSES = 2
"""The processes that share the memory of this machine."""
LASTS = 2e-3
"""Seconds for which a probe is repeated in a round."""
TINY = Workload(ModelKeys(kind="transformer", layers=2, width=4, heads=2), batch=2, inputs=4, outputs=5)


@dataclass(frozen=True)
class Probe:
    """A call `run` that does `work` operations, numbers, bytes, or calls."""

    name: str
    run: Callable[[], Any]
    work: float
    message: bool = False
    """Whether both ranks must run it equally often; a disturbance then lengthens only the waiting."""


def probes(comm: Communicator) -> Iterator[Probe]:
    """All probes of one rank."""
    yield from products()
    yield from bandwidths()
    yield from functions()
    yield update()
    yield tiny_step(comm)
    for name, size, times in (("small", SMALL, 20), ("large", LARGE, 2)):
        yield Probe(name, exchanging(comm, size, times), times, message=True)


def full(*shape: int) -> Any:
    return np.full(shape, 0.5, np.float32)


def zeros(*shape: int) -> Any:
    found = np.empty(shape, np.float32)
    found[...] = 0.0
    return found


def products() -> Iterator[Probe]:
    """Matrix products with many and with few rows; layers alternate, so weights are in the same caches as in a step."""
    for name, rows in (("wide", WIDE), ("narrow", NARROW)):
        layers = itertools.cycle([zeros(WIDTH, WIDTH) for _ in range(LAYERS)])
        yield Probe(name, partial(through_layer, layers, zeros(rows, WIDTH), zeros(rows, WIDTH)), 6 * rows * WIDTH**2)


def through_layer(layers: Iterator[Any], x: Any, y: Any) -> None:
    """The products of one layer: forward, and both of backward."""
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
    """A copy between arrays, among so many that none is in a core's cache."""
    arrays = itertools.cycle([zeros(COPIED) for _ in range(ROOMS)])
    return lambda: np.copyto(next(arrays), next(arrays))


def update() -> Probe:
    adamw = OPTIMIZERS["adamw"]
    weights, gradient, state = full(WEIGHTS), full(WEIGHTS), {slot: full(WEIGHTS) for slot in adamw.slots}
    moved = 2 * (weights.nbytes + sum(each.nbytes for each in state.values())) + gradient.nbytes
    return Probe("update", lambda: adamw.update(weights, gradient, state, 1, Hyperparameters()), moved)


def tiny_step(comm: Communicator) -> Probe:
    """A step with tiny arrays in one process; the optimizer is measured separately."""
    batches, mine = plain(among(comm, [comm.rank]), "ddp", TINY)
    step = steps((batches, replace(mine, rule=NoNumbers(batches.config.rule))))
    return Probe("tiny step", lambda: next(step), 1)


def exchanging(comm: Communicator, size: int, times: int) -> Callable[[], None]:
    arrays, other = itertools.cycle([zeros(-(-size // 4)) for _ in range(ROOMS)]), 1 - comm.rank

    def run() -> None:
        for _ in range(times):
            comm.exchange(next(arrays), to=other, into=next(arrays), source=other)

    return run


def repeats(probe: Probe) -> int:
    """The number of runs of a probe per round."""
    if probe.message:
        return 1
    probe.run()
    started = time.perf_counter()
    probe.run()
    return max(1, min(1000, round(LASTS / max(time.perf_counter() - started, 1e-7))))


def measured_cluster(rates: dict[str, float]) -> ClusterKeys:
    """The [cluster] from the work per second of each probe.

    Two plans of the tiny step, with launches of 0 and of 1 microsecond, give the number of launches.
    """
    config = batches_of(1, "ddp", TINY).config
    taken_ns, slower_ns = (
        time_of_tape(config, cluster_of(cluster_from(rates, launch_us), Scenario().origin, 1))
        for launch_us in (0.0, 1.0))
    launches = (slower_ns - taken_ns) / 1000
    return cluster_from(rates, max(1e6 / rates["tiny step"] - taken_ns / 1000, 0.0) / launches)


def time_of_tape(config: Any, cluster: Any) -> int:
    clock = rehearse(config, cluster).clock
    return clock.now_ns - clock.computing_ns["update"]


def cluster_from(rates: dict[str, float], launch_us: float) -> ClusterKeys:
    """The [cluster] with launches of `launch_us` microseconds; launches are short compared with the probes."""
    times, more = rates["wide"] / rates["narrow"], WIDE / NARROW
    half = max(WIDE * (times - 1) / (more - times), 0.0) if times < more else float(WIDE)
    by_size = tuple(rates[f"bandwidth {size}"] for size in SETS)
    transfer = max(1 / rates["large"] - 1 / rates["small"], 1e-9)
    return ClusterKeys(
        device=DeviceKeys(
            flops=rates["wide"] * (1 + half / WIDE), memory_bandwidth=by_size[-1],
            memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / PROCESSES,
            launch_us=launch_us, half_width=half, working_sets=tuple(map(float, SETS)), bandwidths=by_size,
            functions=Functions(**{each.name: rates[each.name] for each in fields(Functions)}),
        ),
        inside=LinkKeys(1e6 / rates["small"], LARGE / transfer / 1e9),
        collectives="written", kernels="written",
    )
