"""The algorithm that "auto" selects for a vector, by its bytes and the number of ranks.

Short vectors are sent whole in few steps, long ones in chunks. The algorithms among which "auto" selects by length
leave the same bits: they add in one order, or add nothing. A result therefore does not depend on the switch, which
`zerosim bench collectives` measures and `switch_at` sets.

The switches below are those of 2 and 4 processes on one host of 2 cores over shared memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from zerosim.collectives.table import ALGORITHMS, Algorithm, find, nearest
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError

SHORT = {"all_reduce": ("doubling",), "all_gather": ("doubling", "bruck")}
"""The algorithms for short vectors; the first that supports the number of ranks is used."""
LONG = {"all_reduce": ("rabenseifner",), "all_gather": ("ring",)}
SWITCHES = {"all_reduce": 32 << 10, "all_gather": 64 << 10}
"""The largest bytes of a whole vector that count as short, by collective."""


def choose(
    collective: str, size: int, vector_bytes: int, *, commutative: bool = True, short_bytes: int | None = None
) -> Algorithm:
    """The algorithm that "auto" selects for a vector of `vector_bytes` bytes on `size` ranks.

    Vectors are short up to `short_bytes`; None stands for the value in `SWITCHES`.

    >>> choose("all_reduce", size=4, vector_bytes=1024).name, choose("all_reduce", size=4, vector_bytes=1 << 20).name
    ('doubling', 'rabenseifner')
    >>> choose("all_gather", size=6, vector_bytes=1024).name, choose("broadcast", size=6, vector_bytes=1024).name
    ('bruck', 'tree')
    """
    most = SWITCHES.get(collective, 0) if short_bytes is None else short_bytes
    names = (SHORT if vector_bytes <= most else LONG).get(collective, ())
    able = [name for name in names if ALGORITHMS[f"{name}.{collective}"].serves(size)]
    return find(collective, able[0] if able else "auto", size, commutative=commutative)


@dataclass(frozen=True)
class BySize(Algorithm):
    """An algorithm outside the table that applies, to each vector, the algorithm that `choose` selects.

    >>> AUTO_ALL_GATHER.at(4, 1024).name, AUTO_ALL_GATHER.up_to(0).at(4, 1024).name
    ('doubling', 'ring')
    """

    short_bytes: int | None = None

    def at(self, size: int, vector_bytes: int) -> Algorithm:
        return choose(self.collective, size, vector_bytes, short_bytes=self.short_bytes)

    def up_to(self, short_bytes: int) -> "BySize":
        """This choice with `short_bytes` as its switch."""
        return replace(self, short_bytes=short_bytes)

    def carry_out(self, comm: Communicator, *arguments: Any) -> None:
        chunks = arguments[0]
        self.at(comm.size, sum(chunk.nbytes for chunk in chunks)).function(comm, *arguments)


AUTO_ALL_GATHER = BySize(**vars(ALGORITHMS["bruck.all_gather"]) | {
    "name": "auto", "title": "doubling or Bruck's algorithm for short vectors, the ring for long ones"})


@lru_cache(maxsize=1024)
def named(collective: str, algorithm: str, size: int, vector_bytes: int, *, commutative: bool = True) -> Algorithm:
    """The algorithm of this name, or the one that "auto" selects; raises `CollectiveError` as `find` does."""
    if algorithm == "auto":
        return choose(collective, size, vector_bytes, commutative=commutative)
    return find(collective, algorithm, size, commutative=commutative)


def switch_at(switches: Mapping[str, int]) -> None:
    """Set the largest bytes of a short vector, by collective. All ranks must set the same, before they call one.

    Raises `CollectiveError` for a collective that has one algorithm for all lengths.

    >>> switch_at({"all_reduce": 32 << 10})
    """
    for collective in switches:
        if collective not in SWITCHES:
            raise CollectiveError(f"no switch for {collective!r}{nearest(collective, list(SWITCHES))}")
    SWITCHES.update(switches)
    named.cache_clear()
