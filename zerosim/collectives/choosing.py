"""The algorithm that "auto" takes for a vector, by its bytes and the number of ranks.

Short vectors are sent whole in few steps, long ones in chunks. Algorithms among which "auto" chooses by length leave
the same bits: they add in one order, or add nothing. So a result does not depend on where the switch is, which
`zerosim bench collectives` measures and `switch_at` sets.

The switches below are those of 2 and 4 processes on one host of 2 cores over shared memory.
"""

from collections.abc import Mapping
from functools import lru_cache

from zerosim.collectives.table import ALGORITHMS, Algorithm, find, nearest
from zerosim.errors import CollectiveError

SHORT = {"all_reduce": ("doubling",), "all_gather": ("doubling", "bruck")}
"""The algorithms for short vectors, the first that serves the ranks."""
LONG = {"all_reduce": ("rabenseifner",), "all_gather": ("ring",)}
SWITCHES = {"all_reduce": 32 << 10, "all_gather": 64 << 10}
"""The bytes of the whole vector up to which it is short, by collective."""


def choose(collective: str, size: int, vector_bytes: int, *, commutative: bool = True) -> Algorithm:
    """The algorithm that "auto" takes for a vector of so many bytes, on `size` ranks.

    >>> choose("all_reduce", size=4, vector_bytes=1024).name, choose("all_reduce", size=4, vector_bytes=1 << 20).name
    ('doubling', 'rabenseifner')
    >>> choose("all_gather", size=6, vector_bytes=1024).name, choose("broadcast", size=6, vector_bytes=1024).name
    ('bruck', 'tree')
    """
    names = (SHORT if vector_bytes <= SWITCHES.get(collective, 0) else LONG).get(collective, ())
    able = [name for name in names if ALGORITHMS[f"{name}.{collective}"].serves(size)]
    return find(collective, able[0] if able else "auto", size, commutative=commutative)


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
            raise CollectiveError(f"switch of {collective} at {most_bytes!r}: a number of bytes, 0 for never")
    SWITCHES.update(switches)
    named.cache_clear()
