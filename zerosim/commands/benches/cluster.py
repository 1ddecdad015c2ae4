"""Measurement of this machine as a cluster of two ranks, and of training steps against their plans.

Rounds alternate: each measures every figure of the machine and one step of every model, so a disturbance affects all.
Figures are medians over rounds; steps are those of the rank that waited less.

Steps are measured in processor seconds, not by the wall clock. While other programs use the machine, steps sometimes
take twice as long and short probes do not; the processor seconds of the rank that waited less do not change, and on a
quiet machine both clocks agree.

The rates of this machine's processes while all ranks are busy: the figures of a [cluster].

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
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zerosim.commands.benches.samples import WARM_UP, Sample
from zerosim.commands.benches.timings import RANKS, Workload, batches_of, plain, steps
from zerosim.core.comm import Communicator, among
from zerosim.core.words import toml
from zerosim.plan.cluster import NS, cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import ModelKeys, Scenario
from zerosim.scenario.machine import ClusterKeys, DeviceKeys, Functions, LinkKeys
from zerosim.stages.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.verdict.shapes import NoNumbers
from zerosim.worlds.objects import broadcast_object, gather_objects

UNDISTURBED = 0.97
"""Waiting ranks poll, so a rank without competition uses a whole core; a smaller share means that others used it."""
MOST_SECONDS = 30.0
"""The time limit of all rounds, however few samples are undisturbed."""
FEWEST = 3
"""The number of samples taken even if all are disturbed."""
MEASURED: dict[str, tuple[str, Workload]] = {
    "784-1024-1024-1024-10 MLP": ("zero3", Workload(ModelKeys(hidden=(1024, 1024, 1024)), 128, 784, 10)),
    "784-2048-512-10 MLP": ("ddp", Workload(ModelKeys(hidden=(2048, 512), activation="gelu"), 256, 784, 10)),
    "GPT-2's shape, 4 × 256": (
        "zero2", Workload(ModelKeys(kind="transformer", layers=4, width=256, heads=8), 4, 128, 65)),
    "Llama's shape, 2 × 512": (
        "zero1", Workload(
            ModelKeys(kind="transformer", architecture="llama", layers=2, width=512, heads=8), 4, 64, 256)),
}
"""The measured models, each with its stage."""


def measure_cluster(
    comm: Communicator, rounds: int, subjects: dict[str, tuple[str, Workload]] = MEASURED
) -> tuple[ClusterKeys, list[Sample]] | None:
    """The measured machine and the compared steps on rank 0, None on the other rank."""
    tried = list(probes(comm))
    tasks = {each.name: (each.run, repeats(each)) for each in tried}
    for name, (stage, workload) in subjects.items():
        tasks[name] = partial(next, steps(plain(comm, stage, workload))), 1
    found: dict[str, list[TimedRun]] = {name: [] for name in tasks}
    until = time.monotonic() + MOST_SECONDS
    wanted = list(tasks)
    while wanted:
        for name in wanted:
            found[name].append(sampled(comm, *tasks[name]))
        late = time.monotonic() > until
        wanted = broadcast_object(comm, [
            name for name in wanted if len(found[name]) < WARM_UP + FEWEST
            or (not late and len(own_cores(found[name][WARM_UP:])) < rounds)])
    if comm.rank != 0:
        return None
    seconds = {name: undisturbed(samples[WARM_UP:]) for name, samples in found.items()}
    cluster = measured_cluster({
        each.name: each.work / (fastest(found[each.name]) if each.message else statistics.median(seconds[each.name]))
        for each in tried})
    compared = [
        compared_step(name, stage, planned_seconds(cluster, stage, workload), seconds[name], len(found[name]) - WARM_UP)
        for name, (stage, workload) in subjects.items()
    ]
    return cluster, compared


class TimedRun(NamedTuple):
    """The processor seconds of a task, and the smallest share of a core that a rank had.

    Waiting ranks poll, so this equals wall-clock time if no other program uses the cores; otherwise the rank with
    fewer seconds has waited less for the other.
    """

    seconds: float
    share: float


def sampled(comm: Communicator, run: Callable[[], Any], times: int) -> TimedRun:
    """Run a task on both ranks at the same time; the sample of one run, on rank 0."""
    broadcast_object(comm, None)
    began, began_core = time.perf_counter(), time.process_time()
    for _ in range(times):
        run()
    seconds, core = time.perf_counter() - began, time.process_time() - began_core
    everyone = gather_objects(comm, (core / times, core / seconds)) or [(0.0, 1.0)]
    return TimedRun(min(each[0] for each in everyone), min(each[1] for each in everyone))


def own_cores(samples: Sequence[TimedRun]) -> list[TimedRun]:
    """The samples in which both ranks had a core each."""
    return [each for each in samples if each.share >= UNDISTURBED]


def undisturbed(samples: Sequence[TimedRun]) -> list[float]:
    """The seconds of undisturbed samples; if there are too few, of the third with the greatest shares."""
    found = own_cores(samples)
    if len(found) < FEWEST:
        found = sorted(samples, key=lambda each: -each.share)[: max(len(samples) // 3, FEWEST)]
    return [each.seconds for each in found]


def fastest(samples: Sequence[TimedRun]) -> float:
    """The fastest decile of messages: ranks wait for each other, and a disturbance only slows messages."""
    ordered = sorted(each.seconds for each in samples)
    return ordered[len(ordered) // 10]


def compared_step(model: str, stage: str, planned: float, seconds: Sequence[float], rounds: int) -> Sample:
    """A model's planned step, and the measured one in undisturbed rounds; `ratio` is planned over measured."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    return Sample({"model": model, "stage": stage}, {"step_seconds": seconds}, {
        "planned_seconds": planned, "quartiles": [low, high], "ratio": planned / middle, "used": len(seconds),
        "rounds": rounds})


def planned_seconds(cluster: ClusterKeys, stage: str, workload: Workload) -> float:
    """The planned seconds of a step on two ranks of the measured machine."""
    config = batches_of(RANKS, stage, workload).config
    return rehearse(config, cluster_of(cluster, Scenario().origin, RANKS)).clock.now_ns / NS


def cluster_toml(cluster: ClusterKeys) -> str:
    """The keys of a cluster whose device and inner link are tables.

    >>> from zerosim.scenario.machine import DeviceKeys, LinkKeys
    >>> measured = ClusterKeys(DeviceKeys(1e12, 1e11, 8e9), 8, LinkKeys(5.0, 10.0))
    >>> print(cluster_toml(measured).partition("[cluster.device]")[0])
    [cluster]
    devices_per_host = 8
    collectives = "pipelined"
    kernels = "written"
    <BLANKLINE>
    [cluster.inside]
    latency_us = 5.0
    gigabytes_per_second = 10.0
    <BLANKLINE>
    <BLANKLINE>
    """
    found = asdict(cluster)
    keys = ("devices_per_host", "collectives", "kernels", "inside", "device")
    return toml({"cluster": four_digits({key: found[key] for key in keys})})


def measured_toml(fit: Mapping[str, float], switches: Mapping[str, int]) -> str:
    """The links within a host, and the limit of short all-gathers, as measured by `bench collectives`.

    >>> print(measured_toml({"message_seconds": 5e-6, "byte_seconds": 1e-10}, {"all_gather": 65536}))
    [cluster]
    short_gather_kb = 65.54
    <BLANKLINE>
    [cluster.inside]
    latency_us = 5.0
    gigabytes_per_second = 10.0
    <BLANKLINE>
    """
    short = {"short_gather_kb": switches["all_gather"] / 1e3} if "all_gather" in switches else {}
    link = {"latency_us": 1e6 * fit["message_seconds"],
            "gigabytes_per_second": 1e-9 / max(fit["byte_seconds"], 1e-15)}
    return toml({"cluster": four_digits({**short, "inside": link})})


def four_digits(value: Any) -> Any:
    """A value with all its numbers rounded to four digits."""
    if isinstance(value, dict):
        return {key: four_digits(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [*map(four_digits, value)]
    return float(f"{value:.4g}") if isinstance(value, float) else value


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
