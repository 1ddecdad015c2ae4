"""One example of a collective: each rank's vector, and the arguments of the call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.comm import Reduction
from zerosim.worlds.local import Sends


@dataclass(frozen=True, eq=False)
class Example:
    """A flat vector for each rank, of one length and dtype, and the arguments of the collective.

    `seed` fixes the order in which the ranks of the local world take turns, `sends` whether a send there waits.
    """

    vectors: tuple[Array, ...]
    root: int = 0
    reduce: Reduction = np.add
    seed: int = 0
    sends: Sends = "buffered"
    later_seconds: int = 0
    """By how much the clocks of the call are ahead."""
    calls_again: bool = False
    """Whether the function is called a second time, with zeros, before its first result is examined."""

    @property
    def size(self) -> int:
        return len(self.vectors)

    @property
    def count(self) -> int:
        """The number of elements in each vector."""
        return len(self.vectors[0])

    def but(self, vectors: Sequence[Array]) -> "Example":
        """The example with other vectors."""
        return replace(self, vectors=tuple(vectors))
