"""A scenario of collectives: values on every rank, programs that communicate them, and the expected results.

Scenarios of collectives are a kind of their own: values, programs, expectations. They share loader, positions and
error messages with those of training, and nothing else.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from zerosim.scenario.reading import Origin
from zerosim.scenario.values import SOME, Natural, Written, bounded, one_of

MOST_COLLECTIVE_RANKS = 4096
DTYPES = ("float16", "float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class CollectiveWorld:
    ranks: Annotated[int, bounded(1, MOST_COLLECTIVE_RANKS)] = 4
    sends: Annotated[str, one_of(("buffered", "rendezvous"))] = "buffered"


@dataclass(frozen=True)
class Values:
    """Random tensors of these lengths on every rank, or `given`: one row for each rank."""

    lengths: Annotated[tuple[Natural, ...], Meta(min_length=1)] = (1000,)
    dtype: Annotated[str, one_of(DTYPES)] = "float32"
    seed: Natural = 0
    given: tuple[tuple[Written, ...], ...] = ()


@dataclass(frozen=True)
class Program:
    """Collectives that a rank runs in sequence, on all tensors in one bucket or on each by itself.

    A call is a collective ("all_reduce"), an algorithm ("ring.all_reduce") or a function of a file beside the
    scenario ("mine.py:my_all_reduce").
    """

    calls: Annotated[tuple[str, ...], Meta(min_length=1)]
    name: str = ""
    bucket: Annotated[str, one_of(("all", "each"))] = "all"


@dataclass(frozen=True)
class Expect:
    """The expected observations; a key that is left out is not checked."""

    same_results: bool | None = None
    ranks_agree: bool | None = None
    same_bytes_sent: bool | None = None
    same_messages: bool | None = None
    results: tuple[tuple[Written, ...], ...] = ()


@dataclass(frozen=True)
class CollectiveScenario:
    """A whole scenario of collectives; `origin` has the positions of its keys."""

    kind: Annotated[str, one_of(("collective",))] = "collective"
    title: str = ""
    caption: str = ""
    world: CollectiveWorld = field(default_factory=CollectiveWorld)
    values: Values = field(default_factory=Values)
    program: Annotated[tuple[Program, ...], SOME] = ()
    expect: Expect = field(default_factory=Expect)
    origin: Origin = field(default=Origin(), repr=False, compare=False)

    def __post_init__(self) -> None:
        ranks = self.world.ranks
        if not self.program:
            raise self.origin.error("there is no [[program]]; give one with calls = [...]", ("program",))
        for name, values in (("values.given", self.values.given), ("expect.results", self.expect.results)):
            path = tuple(name.split("."))
            if values and len(values) != ranks:
                raise self.origin.error(f"{name} has {len(values)} rows for {ranks} ranks; give one for each", path)
        if len({len(row) for row in self.values.given}) > 1:
            raise self.origin.error("values.given has rows of different lengths; make them equal", ("values", "given"))
        for r, row in enumerate(self.values.given):
            for c, number in enumerate(row):
                if not fits(number, self.values.dtype):
                    raise self.origin.error(
                        f"values.given[{r}][{c}] is {number}, which {self.values.dtype} cannot hold; "
                        "give a different number or values.dtype", ("values", "given", r, c),
                    )


def fits(number: int | float, dtype: str) -> bool:
    """Whether an integer dtype holds exactly this number, or a float one a finite number near it.

    >>> fits(2**53 + 1, "int64"), fits(1.7, "int64"), fits(0.1, "float32"), fits(1e300, "float32")
    (True, False, True, False)
    """
    if np.dtype(dtype).kind == "i":
        limits = np.iinfo(dtype)
        return number == int(number) and int(limits.min) <= number <= int(limits.max)
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array(float(number)).astype(dtype)))
