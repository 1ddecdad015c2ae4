"""Times of collectives by size: every algorithm against the MPI library's own call, in the same run.

Rounds alternate: each times every algorithm at one size, so a disturbance affects all of them. Figures are medians
over rounds, of the slowest rank.

    algorithm bandwidth   bytes of the vector over seconds
    bus bandwidth         the algorithm bandwidth times the share of the vector that each rank must send, as in NCCL's
                          tests: 2 (N − 1) / N for an all-reduce, (N − 1) / N for an all-gather or a reduce-scatter,
                          1 for a broadcast
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

import numpy as np

from zerosim.collectives.arrays import all_gather, all_reduce, broadcast, reduce_scatter
from zerosim.collectives.choosing import LONG, SHORT, choose
from zerosim.collectives.table import ALGORITHMS
from zerosim.commands.benches.samples import Sample, SampleRow
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.words import toml
from zerosim.proofs.subject import Subject
from zerosim.worlds.objects import broadcast_object, gather_objects

SIZES = tuple(1 << power for power in range(10, 27, 2))
"""Bytes of the whole vector."""
TARGET_SECONDS = 0.02
"""The time of the calls that are timed together."""
MOST_CALLS = 1000
COLLECTIVES: dict[str, Callable[..., Array]] = {
    "all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter, "broadcast": broadcast,
}
SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks, "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks, "broadcast": lambda ranks: 1.0,
}
OWN = "MPI's own"
Own = Mapping[str, Callable[[Array, Array], object]]
"""The MPI library's own collectives, from one array to another."""


def sample(
    collective: str, algorithm: str, ranks: int, vector_bytes: int, rounds: Sequence[Sequence[float]], *, chosen: bool
) -> Sample:
    """An algorithm at one size, and the library's own call in the same rounds; bandwidths in bytes per second.

    `chosen`: "auto" chooses the algorithm.
    """
    seconds, own_seconds = rounds
    bandwidth = vector_bytes / statistics.median(seconds)
    return Sample(
        {"collective": collective, "algorithm": algorithm, "ranks": ranks, "bytes": vector_bytes, "chosen": chosen},
        {"seconds": seconds, "own_seconds": own_seconds},
        {"algorithm_bandwidth": bandwidth, "bus_bandwidth": bandwidth * SHARES[collective](ranks)})


def time_collectives(
    comm: Communicator, own: Own, rounds: int, sizes: Sequence[int] = SIZES, users: Subject | None = None
) -> list[Sample]:
    """The times of every algorithm that supports these ranks, and of the library's `own`, at every size.

    With a user's function, only its kind of collective is timed.
    """
    return [
        timed for collective in (COLLECTIVES if users is None else [users.collective]) for size in sizes
        for timed in time_one(comm, collective, size - size % (4 * comm.size), own, rounds, users)
    ]


def time_one(
    comm: Communicator, collective: str, vector_bytes: int, own: Own, rounds: int, users: Subject | None
) -> list[Sample]:
    """The times of all algorithms of a collective at one size."""
    names = [row.name for row in ALGORITHMS.values()
             if row.collective == collective and row.serves(comm.size) and not row.per_host]
    tasks = calls(comm, collective, vector_bytes // 4, own, names)
    if users is not None:
        reduction = [np.maximum] if users.takes_reduction else []
        tasks[users.name] = partial(users, comm, np.ones(vector_bytes // 4, np.float32), 0, *reduction)
    samples: dict[str, list[float]] = {name: [] for name in tasks}
    counts: dict[str, int] = {}
    for number in range(-1, rounds):
        for name, run in tasks.items():
            seconds = timed(comm, run, counts.get(name, 1))
            if number < 0:
                counts[name] = broadcast_object(comm, max(1, min(MOST_CALLS, int(TARGET_SECONDS / seconds))))
            else:
                samples[name].append(seconds)
    chosen = choose(collective, comm.size, vector_bytes).name
    return [sample(collective, name, comm.size, vector_bytes, (samples[name], samples[OWN]), chosen=name == chosen)
            for name in tasks]


def calls(
    comm: Communicator, collective: str, count: int, own: Own, names: Sequence[str]
) -> dict[str, Callable[[], object]]:
    """The calls to time: the library's own, and each algorithm on whole arrays, into existing memory."""
    whole, other = np.ones(count, np.float32), np.ones(count, np.float32)
    shard = np.ones(count // comm.size, np.float32)
    x, out = {
        "all_gather": (shard, other), "reduce_scatter": (whole, shard), "broadcast": (whole, whole),
    }.get(collective, (whole, other))
    function, more = COLLECTIVES[collective], {"reduce": np.maximum} if "reduce" in collective else {}
    found: dict[str, Callable[[], object]] = {OWN: partial(own[collective], x, out)}
    for name in names:
        found[name] = partial(function, comm, x, algorithm=name, out=out, **more)
    return found


def timed(comm: Communicator, run: Callable[[], object], times: int) -> float:
    """The seconds per call: on rank 0 those of the slowest rank, on others their own; all begin together."""
    broadcast_object(comm, gather_objects(comm, None))
    began = time.perf_counter()
    for _ in range(times):
        run()
    seconds = (time.perf_counter() - began) / times
    return float(max(gather_objects(comm, seconds) or [seconds]))


def measured_switches(found: Sequence[SampleRow]) -> dict[str, int]:
    """The vector bytes up to which the algorithm for short vectors is always faster, by collective, for `switch_at`.

    >>> at = [("doubling", 1024, 1.0), ("ring", 1024, 2.0), ("doubling", 4096, 3.0), ("ring", 4096, 2.0)]
    >>> keys = "collective", "algorithm", "bytes", "seconds"
    >>> measured_switches([dict(zip(keys, ("all_gather", *each))) for each in at])
    {'all_gather': 1024}
    """
    switches = {}
    for collective in SHORT:
        seconds = {(each["algorithm"], each["bytes"]): each["seconds"]
                   for each in found if each["collective"] == collective}
        sizes = sorted({size for _, size in seconds})
        names = [[name for name in some[collective] if (name, sizes[0]) in seconds] for some in (SHORT, LONG)] \
            if sizes else [[], []]
        if all(names):
            short, long = names[0][0], names[1][0]
            slower = [size for size in sizes if seconds[short, size] >= seconds[long, size]]
            switches[collective] = max((size for size in sizes if size < min(slower, default=inf)), default=0)
    return switches


def fit(found: Sequence[SampleRow]) -> dict[str, float]:
    """The seconds per message and per byte, fitted to ring all-reduces of the shortest and longest vector.

    >>> ring = {"collective": "all_reduce", "algorithm": "ring", "ranks": 2}
    >>> fit([ring | {"bytes": 1 << 10, "seconds": 4e-6}, ring | {"bytes": 1 << 20, "seconds": 1e-3}])["message_seconds"]
    2e-06
    """
    rings = sorted((each["bytes"], each["seconds"], each["ranks"]) for each in found
                   if (each["collective"], each["algorithm"]) == ("all_reduce", "ring"))
    (short, short_seconds, ranks), (long, long_seconds, _) = rings[0], rings[-1]
    messages, share = 2 * (ranks - 1), SHARES["all_reduce"](ranks)
    return {
        "message_seconds": round(short_seconds / messages, 12),
        "byte_seconds": (long_seconds - short_seconds) / (share * max(long - short, 1)),
    }


def measured_toml(fit: Mapping[str, float], switches: Mapping[str, int]) -> str:
    """The links within a host, and the limit of short all-gathers, as measured.

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
    rounded = ({key: float(f"{value:.4g}") for key, value in each.items()} for each in (short, link))
    return toml({"cluster": {**next(rounded), "inside": next(rounded)}})
