"""A law: two sides that must be equal, tested on examples, and a message if they are not.

    examined    the function under examination, callable with an example: the result of each rank
    x           an example: a vector for each rank, drawn by Hypothesis
    sides       the result of each rank, and the expected one

Under MPI every rank draws the same examples, since Hypothesis is derandomized, and judges the gathered results of all,
so all ranks come to the same end without a leader.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypedDict, Unpack

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from zerosim.collectives import ALGORITHMS
from zerosim.core.errors import Deadlock, UsageError
from zerosim.core.orders import AddingOrder
from zerosim.proofs import strategies
from zerosim.proofs.cause import diagnosis, of_run
from zerosim.proofs.clock import clock_moved
from zerosim.proofs.ended import raised
from zerosim.proofs.example import Example, SeenRun, seen_run
from zerosim.proofs.proof import LIMIT_SECONDS, WHOLE_BUCKETS, prove, same_sum
from zerosim.proofs.subject import Subject, named_subject
from zerosim.proofs.subject import subject as subject_of
from zerosim.proofs.values import DTYPES, FLOATS, in_turn, same_numbers
from zerosim.worlds.local import spawn
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.objects import broadcast_object, gather_objects

SHOWN_RANKS, SHOWN_ELEMENTS = 8, 12
PATIENCE_SECONDS = 2.0
"""The seconds that a rank waits under MPI for a message of the examined function before it is a deadlock."""


class LawBroken(AssertionError):
    """A law does not hold on `example`: its name, and for each rank its input, its result, and the expected one."""

    def __init__(self, message: str, example: Example) -> None:
        super().__init__(message)
        self.example = example


class Failed(Exception):
    """The examined function raised an exception or deadlocked."""


class Stranded(BaseException):
    """A rank failed under MPI: messages may be left over, so no further example can be tried."""


class Keywords(TypedDict, total=False):
    """The keywords of laws and of `check`.

    `collective` is needed if the function's name does not contain it. `order`, `sent_bytes` and `messages` are declared
    as in a row of `zerosim.collectives.ALGORITHMS`, where those of our algorithms are. With `comm=zs.connect()` the
    function is examined on all ranks that the launcher started; all of them call this alike, and end alike.
    """

    collective: str | None
    comm: MpiCommunicator | None
    order: AddingOrder | None
    sent_bytes: Callable[[Sequence[int], int, int], int] | None
    """`sent_bytes(chunk_bytes, rank, root)`"""
    messages: Callable[[int, int, int], int] | None
    """`messages(rank, size, root)`"""


@dataclass(frozen=True)
class Examined:
    """A function under examination, its declarations as in `Keywords`, and the world in which it runs."""

    subject: Subject
    comm: MpiCommunicator | None = None
    order: AddingOrder | None = None
    sent_bytes: Callable[[Sequence[int], int, int], int] | None = None
    messages: Callable[[int, int, int], int] | None = None

    @property
    def payloads(self) -> bool:
        """Whether NaNs are held to their bits: those that are copied."""
        return not self.subject.kind.reducing

    def seen(self, x: Example) -> list[SeenRun]:
        """What each rank did, in the local world or on all ranks that the launcher started."""
        with np.errstate(all="ignore"), clock_moved(inspect.unwrap(self.subject.function), x.later_seconds):
            if self.comm is None:
                try:
                    return spawn(lambda comm: seen_run(self.subject, comm, x), x.size, seed=x.seed, sends=x.sends,
                                 limit_seconds=LIMIT_SECONDS)
                except Exception as error:
                    raise Failed(raised(error, self.subject.file)) from error
            try:
                outcome: Any = seen_run(self.subject, channel(self.comm), x)
            except Exception as error:
                where = "" if isinstance(error, Deadlock) else f" (raised on rank {self.comm.rank} of {self.comm.size})"
                outcome = Failed(raised(error, self.subject.file) + where)
        outcomes = broadcast_object(self.comm, gather_objects(self.comm, outcome))
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
        if not failures and (lost := sum(outcome.messages - outcome.received for outcome in outcomes)):
            failures = [Failed(f"{lost} message(s) were sent that no rank received: every send needs its receive")]
        if failures:
            channel.cache_clear()
            raise next((failure for failure in failures if "waited" not in str(failure)), failures[0])
        return list(outcomes)

    def __call__(self, x: Example) -> list[Any]:
        """The result of each rank, None for a rank without one."""
        return [seen.result for seen in self.seen(x)]


@cache
def channel(comm: MpiCommunicator) -> MpiCommunicator:
    """The channel that examined functions use; all ranks make it together."""
    return comm.channel(PATIENCE_SECONDS)


Sides = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True)
class Law:
    """One law. Called with a function it returns None, or raises `LawBroken` with the smallest example found."""

    name: str
    says: str
    collectives: tuple[str, ...]
    sides: Callable[[Examined, Example], Sides]
    values: tuple[str, ...]
    reductions: bool
    needs: str | None

    def missing(self, examined: Examined) -> str | None:
        """What the function lacks for this law to apply; None if it applies."""
        there = {
            None: True,
            "an argument that is not worked on in place": examined.subject.keeps_argument,
            "an array that it returns": examined.subject.manner == "array",
            "the local world, where a send can wait": examined.comm is None,
            "order=": examined.order, "sent_bytes=": examined.sent_bytes, "messages=": examined.messages,
        }
        if examined.subject.collective not in self.collectives:
            return " or ".join(self.collectives)
        return None if there[self.needs] else self.needs

    def __call__(
        self, function: Callable[..., Any] | Subject, *, examples: int = 100, **keywords: Unpack[Keywords]
    ) -> None:
        """Let Hypothesis search for an example that breaks the law, and shrink it."""
        __tracebackhide__ = True    # pytest shows the test and the message
        examined = under_examination(function, **keywords)
        if needed := self.missing(examined):
            raise UsageError(f"{self.name} does not apply to {examined.subject.name}: it needs {needed}")
        found: list[LawBroken] = []

        # Hypothesis derives the seed of its examples from the source of this function.
        def attempt(x: Example) -> None:
            try:
                self.judge(examined, x)
            except LawBroken as broken:
                found.append(broken)
                if examined.comm is not None and isinstance(broken.__context__, Failed):
                    raise Stranded from broken.__cause__
                raise

        subject, comm = examined.subject, examined.comm
        drawn = strategies.examples(
            ranks=strategies.rank_counts().filter(subject.serves) if comm is None else st.just(comm.size),
            values=[kind for kind in self.values if comm is None or kind != "symbols"], even=subject.even,
            rooted=subject.kind.rooted,
            reduction=strategies.reductions() if self.reductions and subject.takes_reduction else None)
        controlled = settings(
            max_examples=examples, deadline=None, database=None, derandomize=True, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
        )
        try:
            controlled(given(drawn)(attempt))()
            for x in self.sure_examples(examined):
                attempt(x)
        except (LawBroken, Stranded) as broken:
            smallest, x = found[-1], found[-1].example
            proof = prove(subject, x.size)
            lines = str(diagnosis(proof) or of_run(subject, x.size, x.root)).splitlines()
            raise LawBroken("\n  ".join([str(smallest), *lines]), x) from broken.__cause__
        except Flaky:
            raise LawBroken(f"{found[-1]}\n  but not when repeated: does it read uninitialized memory?",
                            found[-1].example) from None

    def sure_examples(self, examined: Examined) -> Iterator[Example]:
        """An example of every kind of values in every dtype, and a long one, none of which is left to chance."""
        subject, comm = examined.subject, examined.comm
        sizes = [comm.size] if comm else [size for size in (3, 2, 4, 1) if subject.serves(size)][:1]
        for size in sizes:
            for kind in self.values if len(self.values) > 1 else ():
                for dtype in () if kind == "symbols" else DTYPES.get(kind, FLOATS):
                    yield Example(in_turn(size, 8 * size, dtype, kind))
            yield Example(in_turn(size, WHOLE_BUCKETS * size, "float64", self.values[-1]))

    def judge(self, examined: Examined, x: Example) -> None:
        """Raise `LawBroken` unless both sides are equal."""
        try:
            with np.errstate(all="ignore"):
                have, expected = self.sides(examined, x)
        except Failed as failed:
            raise LawBroken(self.report(examined.subject, x, str(failed)), x) from failed.__cause__
        if not all(map(partial(same, payloads=examined.payloads), have, expected)):
            raise LawBroken(self.report(examined.subject, x, self.says, have, expected, examined.payloads), x)

    def report(self, subject: Subject, x: Example, what: str, have: Sequence[Any] = (),
               expected: Sequence[Any] = (), payloads: bool = True) -> str:
        """The law, the setting, and a line for each rank."""
        dtype = "symbols" if x.vectors[0].dtype == object else x.vectors[0].dtype
        setting = [f"{x.size} rank{'s' * (x.size > 1)}", f"{x.count} × {dtype}"]
        setting += [f"root {x.root}"] * subject.kind.rooted
        setting += [f"reduce=np.{getattr(x.reduce, '__name__', x.reduce)}"] * (x.reduce is not np.add)
        lines = [f"{subject.name} breaks {self.name}: {', '.join(setting)}", f"  {what}"]
        for rank in range(min(x.size, SHOWN_RANKS)):
            line = f"  rank {rank} starts with {shown(subject.kind.brought(x.vectors[rank], rank, x.size, x.root))}"
            if have:
                line += f", has {shown(have[rank])}"
                if not same(have[rank], expected[rank], payloads):
                    line += f", expected {shown(expected[rank])}{unshown(have[rank], expected[rank], payloads)}"
            lines.append(line)
        return "\n".join(lines)


def under_examination(function: Callable[..., Any] | Subject, **keywords: Unpack[Keywords]) -> Examined:
    """`function` with its declarations, by the caller or, for our own algorithms, by their table."""
    if not isinstance(function, Subject):
        ours = [name for name, row in ALGORITHMS.items() if row.function == function]
        function = named_subject(ours[0]) if ours else subject_of(function, keywords.get("collective"))
    row = function.algorithm
    declared = {} if row is None else {"order": row.order, "sent_bytes": row.sent_bytes, "messages": row.messages}
    given: dict[str, Any] = {keyword: value for keyword, value in keywords.items() if keyword != "collective"}
    return Examined(function, **declared | given)


def same(have: Any, expected: Any, payloads: bool = True) -> bool:
    """Equal to the byte; sums of symbols up to a + b = b + a, which changes no bit but those of a NaN.

    All NaNs are alike unless `payloads` count.

    >>> same(np.array([0.0]), np.array([-0.0])), same(np.array([np.nan]), np.array([-np.nan]), payloads=False)
    (False, True)
    """
    if not (isinstance(have, np.ndarray) and isinstance(expected, np.ndarray)):
        return type(have) is type(expected) and bool(have == expected)
    if have.dtype == object:
        return have.shape == expected.shape and all(map(same_sum, have.tolist(), expected.tolist()))
    return same_numbers(have, expected, payloads=payloads)


def shown(side: Any) -> str:
    """The result of a rank in words, its first elements if it is long.

    >>> shown(np.arange(3.0)), shown(None), shown("8 bytes")
    ('[0.0, 1.0, 2.0]', 'nothing', '8 bytes')
    """
    if side is None:
        return "nothing"
    if not isinstance(side, np.ndarray):
        return str(side)
    more = f", … {side.size - SHOWN_ELEMENTS} more" if side.size > SHOWN_ELEMENTS else ""
    return f"[{', '.join(map(str, side[:SHOWN_ELEMENTS].tolist()))}{more}]"


def unshown(have: Any, expected: Any, payloads: bool) -> str:
    """The first element that differs, in words, if `shown` leaves it out."""
    if not (isinstance(have, np.ndarray) and isinstance(expected, np.ndarray) and have.shape == expected.shape):
        return ""
    apart = (at for at in range(have.size) if not same(have[at : at + 1], expected[at : at + 1], payloads))
    at = next(apart, 0)
    return f" (first in element {at}: {have[at]}, expected {expected[at]})" if at >= SHOWN_ELEMENTS else ""


def law(
    *collectives: str, values: Sequence[str] = ("exact",), reductions: bool = False, needs: str | None = None
) -> Callable[[Callable[[Examined, Example], Sides]], Law]:
    """A decorator that makes a law of the function that computes its two sides; the docstring is its statement."""

    return lambda sides: Law(
        sides.__name__, (sides.__doc__ or "").strip(), collectives, sides, tuple(values), reductions, needs)
