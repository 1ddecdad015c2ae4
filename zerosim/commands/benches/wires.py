"""The errors of sums on narrow wires, for 2 to 32 ranks: a ring, which quantises at each hop, against two hops.

    ring       the naive quantised ring: each rank on the way encodes the partial sum again
    two_hop    qgZ on two hosts: an all-to-all within each host, and one between them
    hops       the most encodings of a contribution on the way to its chunk's owner, counted in a run
    error      ‖sum − due‖ / ‖due‖ over all chunks, where due is the float64 sum of the unquantised contributions

Every rank of the local world contributes standard normal numbers, 64 per chunk. The sums are computed by the
collectives that train, not by a formula. Nothing is timed, so every machine gets the same figures.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zerosim.allocation import Array, allocate
from zerosim.collectives import ring, two_level
from zerosim.collectives.narrow import OnNarrowWires
from zerosim.comm import Communicator, Payload
from zerosim.commands.benches.samples import Sample
from zerosim.numerics.wire_errors import wire_error
from zerosim.numerics.wires import CODES, wire
from zerosim.sharding import split
from zerosim.worlds.local import spawn

SIZES = (2, 4, 8, 16, 32)
COUNT = 64
"""Elements of a chunk."""
BLOCK = 32

ReduceScatter = Callable[..., None]
SUMS: dict[str, Callable[[int], ReduceScatter]] = {
    "ring": lambda ranks: ring.reduce_scatter,
    "two_hop": lambda ranks: two_level.in_two_hops(ranks // 2).reduce_scatter,
}
"""The compared reduce-scatters, by the number of ranks."""


class CountingWire:
    """A wire that adds 1 in decoding, so that with `max` as the reduction it counts hops."""

    def encoded_bytes(self, count: int) -> int:
        return count

    def encode(self, x: Any, out: Any) -> None:
        out[:] = x

    def decode(self, coded: Any, out: Any) -> None:
        out[:] = coded + 1


def measure_sums(
    sizes: Sequence[int] = SIZES, formats: Sequence[str] = tuple(CODES)
) -> list[Sample]:
    """The errors of all formats, algorithms and numbers of ranks.

    >>> [(each["algorithm"], each["ranks"], each["hops"], round(each["error"], 3))
    ...  for each in (sample.document() for sample in measure_sums((2, 8), ["int8"]))]
    [('ring', 2, 1, 0.003), ('ring', 8, 7, 0.01), ('two_hop', 2, 1, 0.003), ('two_hop', 8, 2, 0.006)]
    """
    return [
        Sample({"algorithm": name, "format": code, "ranks": ranks},
               figures={"hops": hops(adds(ranks), ranks), "error": error(adds(ranks), ranks, code)})
        for code in formats for name, adds in SUMS.items() for ranks in sizes
    ]


def contributions(ranks: int) -> Array:
    """The contributions of all ranks: float32 (ranks, elements)."""
    return np.random.default_rng(0).standard_normal((ranks, COUNT * ranks)).astype(np.float32)


def error(reduce_scatter: ReduceScatter, ranks: int, code: str) -> float:
    """The relative error of the sum of `contributions`."""
    brought = contributions(ranks)
    found = reduced(OnNarrowWires(reduce_scatter, wire(code, BLOCK), allocate), brought)
    return wire_error(found, [brought.sum(axis=0, dtype=np.float64)]).relative or 0.0


def hops(reduce_scatter: ReduceScatter, ranks: int) -> int:
    """The most hops of a contribution."""

    def largest(comm: Communicator, chunks: Sequence[Payload]) -> None:
        reduce_scatter(comm, chunks, np.maximum)

    counted = reduced(OnNarrowWires(largest, CountingWire(), allocate), np.zeros((ranks, ranks), np.float32))
    return int(np.concatenate(counted).max())


def reduced(narrow: OnNarrowWires, brought: Array) -> list[Array]:
    """The chunk of each rank after a reduce-scatter of the rows of `brought`."""

    def program(comm: Communicator) -> Array:
        chunks = split(brought[comm.rank].copy(), comm.size)
        narrow(comm, chunks)
        owned: Array = chunks[comm.rank]
        return owned

    return spawn(program, len(brought))
