"""A virtual machine that times the messages of a learner's collective over links with known rates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import FluidProgram, ReceiveFrom, Transfer, last_end_ns
from zerosim.plan.network import Noting, links
from zerosim.sharding import split
from zerosim.words import short
from zerosim.worlds.local import spawn

ELEMENTS = 64
"""The length of each chunk while messages are recorded; their bytes are scaled afterwards."""

Collective = Callable[..., None]
"""`collective(comm, chunks, reduce)`"""


@dataclass(frozen=True)
class TimedMachine:
    """Hosts of equal devices, and the length of a vector."""

    ranks: int
    per_host: int
    inside: Link
    between: Link
    vector_bytes: int

    def __str__(self) -> str:
        hosts, vector = self.ranks // self.per_host, f"a vector of {self.vector_bytes // 10**6} MB"
        if hosts == 1:
            return f"{self.ranks} ranks over links of {self.inside.title}, {vector}"
        links = f"{self.inside.title} inside and {self.between.title} between"
        return f"{hosts} hosts of {self.per_host} ranks, {links}, {vector}"

    def ns(self, collective: Collective) -> int:
        """The end of the last rank; all ranks begin at 0."""
        programs = spawn(lambda comm: noted(collective, comm), self.ranks)
        cluster = Cluster(Device("", 1, 1, 1), self.per_host, self.inside, self.between, pipelined=False, fused=False)
        scale = self.vector_bytes // (self.ranks * ELEMENTS * 4)
        return last_end_ns([list(map(longer(scale), each)) for each in programs], links(cluster, self.ranks))

    def too_slow(self, took_ns: int, limit_ns: int) -> str | None:
        """The error if a collective took longer than `limit_ns`."""
        if took_ns <= limit_ns:
            return None
        return f"on {self} it takes {short(took_ns / 1e6)} ms; {short(limit_ns / 1e6)} are enough"


def noted(collective: Collective, comm: Any) -> FluidProgram:
    """The sends and receives of this rank."""
    noting = Noting(comm)
    collective(noting, split(np.zeros(comm.size * ELEMENTS, np.float32), comm.size), np.add)
    return noting.program


def longer(scale: int) -> Callable[[Any], Transfer | ReceiveFrom]:
    """Messages with `scale` times their bytes.

    >>> longer(3)(Transfer(1, 8)), longer(3)(ReceiveFrom(0))
    (Transfer(to=1, bytes=24), ReceiveFrom(source=0))
    """
    return lambda step: Transfer(step.to, step.bytes * scale) if isinstance(step, Transfer) else step


ONE_HOST = TimedMachine(8, 8, Link("10 GB/s and 5 µs", 5_000, 10e9), Link("", 5_000, 10e9), 64 * 10**6)
TWO_HOSTS = TimedMachine(8, 4, Link("100 GB/s", 2_000, 100e9), Link("10 GB/s", 10_000, 10e9), 64 * 10**6)
