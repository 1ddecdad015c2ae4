"""Times of collectives by size: every algorithm against the MPI library's own call, in the same rounds.

    bus bandwidth    bytes of the vector over seconds, times the share of it that each rank must send, as in NCCL's
                     tests: 2 (N − 1) / N for an all-reduce, (N − 1) / N for an all-gather or a reduce-scatter, 1 for a
                     broadcast
"""

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

from zerosim.collectives.arrays import all_gather, all_reduce, broadcast, reduce_scatter
from zerosim.collectives.table import ALGORITHMS, find
from zerosim.commands.benches.samples import SampleRow, by_turns, on_rank_0, sample
from zerosim.commands.output import standard_output
from zerosim.core.allocation import Array
from zerosim.core.comm import Communicator
from zerosim.core.errors import UsageError
from zerosim.core.files import write_text
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import Subject, named_subject
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.worlds.mpi_communicator import MpiCommunicator

SIZES = tuple(1 << power for power in range(10, 27, 2))
"""Bytes of the whole vector."""
COLLECTIVES: dict[str, Callable[..., Array]] = {
    "all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter, "broadcast": broadcast,
}
OWN = "MPI's own"
Own = Mapping[str, Callable[[Array, Array], object]]
"""The MPI library's own collectives, from one array to another."""


def bench(arguments: argparse.Namespace, comm: MpiCommunicator) -> dict[str, Any] | None:
    """Time collectives; None on ranks other than 0."""
    users = users_collective(arguments, comm.size)
    rows = on_rank_0(comm, time_collectives, comm.own_collectives(), arguments.rounds, SIZES, users)
    if rows is None:
        return None
    line = None if users else fit(rows)
    show_collectives(standard_output(arguments), rows, comm.library, line)
    if arguments.toml and line is not None:
        write_text(arguments.toml, measured_toml(line))
    return {"library": comm.library, "fit": line, "collectives": rows}


def users_collective(arguments: argparse.Namespace, ranks: int) -> Subject | None:
    """The user's function, proved on these ranks; raises `UsageError` if it is not right or its kind is not timed."""
    if arguments.function is None:
        return None
    if arguments.toml:
        raise UsageError("--toml needs the times of all collectives; remove FILE.py:FUNCTION")
    users = named_subject(arguments.function, arguments.collective)
    if users.collective not in COLLECTIVES:
        raise UsageError(f"{users.name} is an {users.collective}; times are taken of {', '.join(COLLECTIVES)}")
    if not (proof := prove(users, ranks)).holds:
        raise UsageError(f"{users.name} is not proved on {ranks} ranks: {proof.faults[0].what}; zerosim prove says why")
    return users


def share(collective: str, ranks: int) -> float:
    """The share of a vector that each rank must send."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}.get(collective, (ranks - 1) / ranks)


def time_collectives(
    comm: Communicator, own: Own, rounds: int, sizes: Sequence[int] = SIZES, users: Subject | None = None
) -> list[SampleRow]:
    """The times of every algorithm that supports these ranks, and of the library's `own`, at every size.

    They run on whole arrays, into existing memory. With a user's function, only its kind of collective is timed.
    """
    rows = list[SampleRow]()
    for collective, size in itertools.product(COLLECTIVES if users is None else [users.collective], sizes):
        vector_bytes = size - size % (4 * comm.size)
        count = vector_bytes // 4
        whole, other, shard = (np.ones(length, np.float32) for length in (count, count, count // comm.size))
        x, out = {"all_gather": (shard, other), "reduce_scatter": (whole, shard), "broadcast": (whole, whole)}.get(
            collective, (whole, other))
        more = {"reduce": np.maximum} if "reduce" in collective else {}
        tasks: dict[str, Callable[[], object]] = {OWN: partial(own[collective], x, out)}
        for row in ALGORITHMS.values():
            if row.collective == collective and row.serves(comm.size) and not row.per_host:
                tasks[row.name] = partial(COLLECTIVES[collective], comm, x, algorithm=row.name, out=out, **more)
        if users is not None:
            tasks[users.name] = partial(
                users, comm, np.ones(count, np.float32), 0, *([np.maximum] if users.takes_reduction else []))
        seconds, chosen = by_turns(comm, rounds, tasks), find(collective, "auto", comm.size).name
        for name in tasks:
            timed = sample({"collective": collective, "algorithm": name, "ranks": comm.size, "bytes": vector_bytes,
                            "chosen": name == chosen}, {"seconds": seconds[name], "own_seconds": seconds[OWN]})
            bandwidth = vector_bytes * share(collective, comm.size) / timed["seconds"]
            rows.append(timed | {"bus_bandwidth": bandwidth})
    return rows


def fit(rows: Sequence[SampleRow]) -> dict[str, float]:
    """The seconds per message and per byte, fitted to ring all-reduces of the shortest and longest vector.

    >>> ring = {"collective": "all_reduce", "algorithm": "ring", "ranks": 2}
    >>> fit([ring | {"bytes": 1 << 10, "seconds": 4e-6}, ring | {"bytes": 1 << 20, "seconds": 1e-3}])["message_seconds"]
    2e-06
    """
    rings = sorted((row["bytes"], row["seconds"], row["ranks"]) for row in rows
                   if (row["collective"], row["algorithm"]) == ("all_reduce", "ring"))
    (short, short_seconds, ranks), (long, long_seconds, _) = rings[0], rings[-1]
    byte_seconds = (long_seconds - short_seconds) / (share("all_reduce", ranks) * max(long - short, 1))
    return {"message_seconds": round(short_seconds / (2 * (ranks - 1)), 12), "byte_seconds": byte_seconds}


def measured_toml(line: Mapping[str, float]) -> str:
    """The links within a host, as measured.

    >>> print(measured_toml({"message_seconds": 5e-6, "byte_seconds": 1e-10}))
    [cluster.inside]
    latency_us = 5.0
    gigabytes_per_second = 10.0
    <BLANKLINE>
    """
    latency, speed = (float(f"{value:.4g}") for value in (
        1e6 * line["message_seconds"], 1e-9 / max(line["byte_seconds"], 1e-15)))
    return f"[cluster.inside]\nlatency_us = {latency}\ngigabytes_per_second = {speed}\n"


def show_collectives(
    console: Console, rows: Sequence[SampleRow], library: str, line: Mapping[str, float] | None
) -> None:
    """Print a table for each collective: a row for each size, a column for each algorithm's ratio to the library."""
    for collective in dict.fromkeys(row["collective"] for row in rows):
        some = {(row["bytes"], row["algorithm"]): row for row in rows if row["collective"] == collective}
        sizes, (_, *names) = dict.fromkeys(size for size, _ in some), dict.fromkeys(name for _, name in some)
        chosen = [next((row for (at, _), row in some.items() if at == size and row["chosen"]), some[size, OWN])
                  for size in sizes]
        show_words(console, f"{collective} on {chosen[0]['ranks']} ranks: times of {library}, and ratios to them; "
                            "*: chosen by \"auto\"; GB/s: its bus bandwidth")
        show_grid(console, [f"{size:,}" for size in sizes], [
            Column("µs", [f"{1e6 * some[size, OWN]['seconds']:.1f}" for size in sizes]),
            *(Column(name, [f"{some[size, name]['ratio']:.2f}{'*' * some[size, name]['chosen']}" for size in sizes])
              for name in names),
            Column("bus GB/s", [f"{row['bus_bandwidth'] / 1e9:.2f}" for row in chosen])], "bytes")
    if line is not None:
        console.print(f"Fitted to the ring: a message takes {1e6 * line['message_seconds']:.1f} µs and "
                      f"{1e9 * line['byte_seconds']:.3f} ns for each byte")
