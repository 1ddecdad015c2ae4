"""What a scenario of collectives says: values on every rank, programs that move them, and what must come out."""

from dataclasses import dataclass, field

from zerosim.scenario.origin import Origin
from zerosim.scenario.rules import choice, integer, integers, maybe, rows, section, sections, text, texts

DTYPES = ("float16", "float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class CollectiveWorld:
    ranks: int = integer(4, at_least=1)
    sends: str = choice("buffered", ("buffered", "rendezvous"))


@dataclass(frozen=True)
class Values:
    """Random tensors of these lengths on every rank, or `given`: one row for each rank."""

    lengths: tuple[int, ...] = integers((1000,), at_least=0)
    dtype: str = choice("float32", DTYPES)
    seed: int = integer(0, at_least=0)
    given: tuple[tuple[float, ...], ...] = rows()


@dataclass(frozen=True)
class Program:
    """Collectives that a rank carries out one after the other, on all tensors in one bucket or on each by itself.

    A call is a collective ("all_reduce"), an algorithm ("ring.all_reduce") or a function of a file beside the
    scenario ("mine.py:my_all_reduce").
    """

    name: str = text("")
    calls: tuple[str, ...] = texts((), at_least=1)
    bucket: str = choice("all", ("all", "each"))


@dataclass(frozen=True)
class Expect:
    """What must be seen; what is not mentioned is not checked."""

    same_results: bool | None = maybe()
    ranks_agree: bool | None = maybe()
    same_bytes_sent: bool | None = maybe()
    same_messages: bool | None = maybe()
    results: tuple[tuple[float, ...], ...] = rows()


@dataclass(frozen=True)
class CollectiveScenario:
    """A whole scenario of collectives; `origin` says where its keys were written."""

    kind: str = choice("collective", ("collective",))
    title: str = text("")
    caption: str = text("")
    world: CollectiveWorld = section(CollectiveWorld)
    values: Values = section(Values)
    program: tuple[Program, ...] = sections(Program)
    expect: Expect = section(Expect)
    origin: Origin = field(default=Origin(), repr=False, compare=False)

    def __post_init__(self) -> None:
        ranks = self.world.ranks
        if not self.program:
            raise self.origin.error("there is no [[program]]; give one with calls = [...]", ("program",))
        for name, each in (("values.given", self.values.given), ("expect.results", self.expect.results)):
            path = tuple(name.split("."))
            if each and len(each) != ranks:
                raise self.origin.error(f"{name} has {len(each)} rows for {ranks} ranks; give one for each", path)
        if len({len(row) for row in self.values.given}) > 1:
            raise self.origin.error("values.given has rows of different lengths; make them equal", ("values", "given"))
