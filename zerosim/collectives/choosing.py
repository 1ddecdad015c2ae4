"""The algorithm that "auto" takes for a vector, by its bytes and the number of ranks.

Short vectors are sent whole in few steps, long ones in chunks. Algorithms among which "auto" chooses by length leave
the same bits: they add in one order, or add nothing. So a result does not depend on where the switch is, which
`zerosim bench collectives` measures and `switch_at` sets.

The switches below are those of 2 and 4 processes on one host of 2 cores over shared memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from zerosim.collectives.table import ALGORITHMS, Algorithm, find, nearest
from zerosim.comm import Communicator
from zerosim.errors import CollectiveError

SHORT = {"all_reduce": ("doubling",), "all_gather": ("doubling", "bruck")}
"""The algorithms for short vectors, the first that serves the ranks."""
LONG = {"all_reduce": ("rabenseifner",), "all_gather": ("ring",)}
SWITCHES = {"all_reduce": 32 << 10, "all_gather": 64 << 10}
"""The bytes of the whole vector up to which it is short, by collective."""


def choose(
    collective: str, size: int, vector_bytes: int, *, commutative: bool = True, short_bytes: int | None = None
) -> Algorithm:
    """The algorithm that "auto" takes for a vector of so many bytes, on `size` ranks.

    Vectors are short up to `short_bytes`, or where it is None up to what `SWITCHES` has.

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
    """A row of no table: for each vector the algorithm that `choose` takes.

    >>> AUTO_ALL_GATHER.at(4, 1024).name, AUTO_ALL_GATHER.up_to(0).at(4, 1024).name
    ('doubling', 'ring')
    """

    short_bytes: int | None = None

    def at(self, size: int, vector_bytes: int) -> Algorithm:
        return choose(self.collective, size, vector_bytes, short_bytes=self.short_bytes)

    def up_to(self, short_bytes: int) -> "BySize":
        """This choice, with vectors that are short up to so many bytes."""
        return replace(self, short_bytes=short_bytes)

    def carry_out(self, comm: Communicator, *arguments: Any) -> None:
        chunks = arguments[0]
        self.at(comm.size, sum(chunk.nbytes for chunk in chunks)).function(comm, *arguments)


AUTO_ALL_GATHER = BySize(
    **{**{each.name: getattr(ALGORITHMS["bruck.all_gather"], each.name) for each in fields(Algorithm)},
       "name": "auto", "title": "doubling or Bruck's algorithm for short vectors, the ring for long ones"})


@lru_cache(maxsize=1024)
def named(collective: str, algorithm: str, size: int, vector_bytes: int, *, commutative: bool = True) -> Algorithm:
    """The algorithm of this name, or the one that "auto" takes; raises `CollectiveError` as `find` does."""
    if algorithm == "auto":
        return choose(collective, size, vector_bytes, commutative=commutative)
    return find(collective, algorithm, size, commutative=commutative)


def switch_at(switches: Mapping[str, int]) -> None:
    """Let vectors be short up to so many bytes, by collective. All ranks say the same, before they call one.

    Raises `CollectiveError` for a collective that has one algorithm for all lengths, and for no number of bytes.

    >>> switch_at({"all_reduce": 32 << 10})
    """
    for collective, most_bytes in switches.items():
        if collective not in SWITCHES:
            raise CollectiveError(f"no switch for {collective!r}{nearest(collective, list(SWITCHES))}")
        if isinstance(most_bytes, bool) or not isinstance(most_bytes, int) or most_bytes < 0:
            raise CollectiveError(f"switch of {collective} at {most_bytes!r}: give a number of bytes, 0 for never")
    SWITCHES.update(switches)
    named.cache_clear()
