"""Measurement of this machine as a cluster of two ranks, and of training steps against their plans.

Rounds alternate: each measures every figure of the machine and one step of every model, so a disturbance affects all.
Figures are medians over rounds; steps are those of the rank that waited less.

Steps are measured in processor seconds, not by the wall clock. While other programs use the machine, steps sometimes
take twice as long and short probes do not; the processor seconds of the rank that waited less do not change, and on a
quiet machine both clocks agree.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zerosim.comm import Communicator
from zerosim.commands.benches.machine import measured_cluster, probes, repeats
from zerosim.commands.benches.samples import WARM_UP, Sample
from zerosim.commands.benches.timings import RANKS, Workload, batches_of, plain, steps
from zerosim.plan.cluster import NS, cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import ModelKeys, Scenario
from zerosim.scenario.machine import ClusterKeys
from zerosim.words import toml
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
