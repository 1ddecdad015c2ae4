"""A law: two sides that must be equal, tested on examples, and a message if they are not.

    examined    the function under examination, callable with an example: the result of each rank
    x           an example: a vector for each rank, drawn by Hypothesis
    sides       the result of each rank, and the expected one
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from zerosim.collectives import ALGORITHMS
from zerosim.errors import UsageError
from zerosim.numerics import orders
from zerosim.payloads.terms import Sum, Term, commuted, leaves
from zerosim.teach.proofs.diagnosis import ONLY_ADDS, Diagnosis, command, of_its_order, of_what_is_sent, why
from zerosim.teach.proofs.proof import prove
from zerosim.teach.proofs.subject import Subject, named_subject
from zerosim.teach.proofs.subject import subject as subject_of
from zerosim.testing import strategies
from zerosim.testing.example import Example, Failed, Ground, Launched, LawBroken, SeenExample, Stranded, local
from zerosim.worlds.mpi_communicator import MpiCommunicator

SHOWN_RANKS = 8
SHOWN_ELEMENTS = 12

SentBytes = Callable[[Sequence[int], int, int], int]
"""`sent_bytes(chunk_bytes, rank, root)`: the bytes that `rank` sends for chunks of these lengths."""

Messages = Callable[[int, int, int], int]
"""`messages(rank, size, root)`: the number of messages that `rank` sends."""


@dataclass(frozen=True)
class Examined:
    """A function under examination, its declarations, and the world in which it runs."""

    subject: Subject
    ground: Ground
    order: orders.AddingOrder | None
    sent_bytes: SentBytes | None
    messages: Messages | None

    @property
    def launched(self) -> bool:
        return isinstance(self.ground, Launched)

    def seen(self, x: Example) -> list[SeenExample]:
        """The result of each rank, and the messages that it sent."""
        return self.ground(self.subject, x)

    def __call__(self, x: Example) -> list[Any]:
        """The result of each rank, None for a rank without one."""
        return [seen.result for seen in self.seen(x)]


Sides = tuple[Sequence[Any], Sequence[Any]]


@dataclass(frozen=True)
class Law:
    """One law. Called with a function it returns None, or raises `LawBroken` with the smallest example found.

    `collective` is needed if the function's name does not contain it. `order`, `sent_bytes` and `messages`
    are declared as in a row of `zerosim.collectives.ALGORITHMS`. With `comm=zs.connect()` the function is examined
    on all ranks that the launcher started; all of them call the law alike, and end alike.
    """

    name: str
    says: str
    collectives: tuple[str, ...]
    sides: Callable[[Examined, Example], Sides]
    values: tuple[str, ...]
    reductions: bool
    needs: str | None

    def applies(self, examined: Examined) -> bool:
        """Whether it applies to this function: to its collective, with all declarations that the law needs."""
        return examined.subject.collective in self.collectives and self.missing(examined) is None

    def missing(self, examined: Examined) -> str | None:
        """The requirement besides the right collective that is missing; None if none is."""
        there = {
            None: True,
            "an argument that is not worked on in place": examined.subject.keeps_argument,
            "an array that it returns": examined.subject.manner == "array",
            "the local world, where a send can wait": not examined.launched,
            "order=": examined.order,
            "sent_bytes=": examined.sent_bytes,
            "messages=": examined.messages,
        }
        return None if there[self.needs] else self.needs

    def __call__(
        self,
        function: Callable[..., Any] | Subject,
        *,
        collective: str | None = None,
        comm: MpiCommunicator | None = None,
        examples: int = 100,
        order: orders.AddingOrder | None = None,
        sent_bytes: SentBytes | None = None,
        messages: Messages | None = None,
    ) -> None:
        examined = under_examination(
            function, collective=collective, comm=comm, order=order, sent_bytes=sent_bytes, messages=messages
        )
        if not self.applies(examined):
            needed = self.missing(examined) or " or ".join(self.collectives)
            raise UsageError(f"{self.name} does not apply to {examined.subject.name}: it needs {needed}")
        self.hold(examined, examples)

    def hold(self, examined: Examined, examples: int) -> None:
        """Test that many examples, here or on all ranks."""
        ground = examined.ground
        if isinstance(ground, Launched):
            ground.lead_or_follow(examined.subject, lambda: self.search(examined, examples))
        else:
            self.search(examined, examples)

    def search(self, examined: Examined, examples: int) -> None:
        """Let Hypothesis search for an example that breaks the law, and shrink it."""
        found: list[LawBroken] = []

        def attempt(x: Example) -> None:
            try:
                self.judge(examined, x)
            except LawBroken as broken:
                found.append(broken)
                raise

        controlled = settings(
            max_examples=examples, deadline=None, database=None, derandomize=True, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
        )
        try:
            controlled(given(self.examples(examined))(attempt))()
        except LawBroken as broken:
            raise self.diagnosed(examined, broken) from broken.__cause__
        except Flaky:
            raise LawBroken(
                f"{found[-1]}\n  but not when repeated: does it read uninitialized memory?",
                found[-1].example,
            ) from None
        except Stranded as stranded:
            raise stranded.broken from None

    def diagnosed(self, examined: Examined, broken: LawBroken) -> LawBroken:
        """The broken law with its cause, if symbols or ranks show one."""
        example = broken.example
        assert example is not None
        lines = str(diagnosed(self.name, examined.subject, example)).splitlines()
        return LawBroken("\n  ".join([str(broken), *lines]), example)

    def examples(self, examined: Examined) -> st.SearchStrategy[Example]:
        """The strategy for examples of this law."""
        subject, values = examined.subject, self.values
        if isinstance(examined.ground, Launched):
            ranks: st.SearchStrategy[int] = st.just(examined.ground.comm.size)
            values = strategies.ARITHMETIC if values == ("symbols",) else values
        else:
            ranks = strategies.rank_counts().filter(subject.serves)
        chosen = self.reductions and subject.takes_reduction
        return strategies.examples(
            ranks=ranks, values=values, even=subject.even, rooted=subject.kind.rooted,
            reduction=strategies.reductions() if chosen else None,
        )

    def judge(self, examined: Examined, x: Example) -> None:
        """Raise `LawBroken` unless both sides are equal."""
        try:
            have, due = self.sides(examined, x)
        except Failed as failed:
            broken = LawBroken(self.report(examined.subject, x, str(failed)), x)
            if examined.launched:
                raise Stranded(broken) from failed
            raise broken from failed.__cause__
        if not all(map(same, have, due)):
            raise LawBroken(self.report(examined.subject, x, self.says, have, due), x)

    def report(
        self, subject: Subject, x: Example, what: str, have: Sequence[Any] = (), due: Sequence[Any] = ()
    ) -> str:
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
                line += "" if same(have[rank], due[rank]) else f", expected {shown(due[rank])}"
            lines.append(line)
        return "\n".join(lines)


def under_examination(
    function: Callable[..., Any] | Subject,
    *,
    collective: str | None = None,
    comm: MpiCommunicator | None = None,
    order: orders.AddingOrder | None = None,
    sent_bytes: SentBytes | None = None,
    messages: Messages | None = None,
) -> Examined:
    """`function` with its declarations, by the caller or, for our own algorithms, by their table."""
    if not isinstance(function, Subject):
        ours = [name for name, row in ALGORITHMS.items() if row.function == function]
        function = named_subject(ours[0]) if ours else subject_of(function, collective)
    row = function.algorithm
    if row is not None:
        order, sent_bytes, messages = order or row.order, sent_bytes or row.sent_bytes, messages or row.messages
    return Examined(function, local if comm is None else Launched(comm), order, sent_bytes, messages)


def same(have: Any, due: Any) -> bool:
    """Equal to the byte; sums of symbols up to a + b = b + a, which changes no bit.

    >>> same(np.array([0.0]), np.array([-0.0])), same(np.array([np.nan]), np.array([np.nan]))
    (False, True)
    """
    if not (isinstance(have, np.ndarray) and isinstance(due, np.ndarray)):
        return type(have) is type(due) and bool(have == due)
    if have.dtype == object:
        return have.shape == due.shape and all(map(same_sum, have.tolist(), due.tolist()))
    return have.dtype == due.dtype and have.tobytes() == due.tobytes()


def same_sum(have: Any, due: Any) -> bool:
    if have == due or not isinstance(have, Sum):
        return bool(have == due)
    return all(isinstance(leaf, Term) for leaf in leaves(have)) and commuted(have) == commuted(due)


def shown(side: Any) -> str:
    """
    >>> shown(np.arange(3.0)), shown(None), shown("8 bytes")
    ('[0.0, 1.0, 2.0]', 'nothing', '8 bytes')
    """
    if side is None:
        return "nothing"
    if not isinstance(side, np.ndarray):
        return str(side)
    more = f", … {side.size - SHOWN_ELEMENTS} more" if side.size > SHOWN_ELEMENTS else ""
    return f"[{', '.join(map(str, side[:SHOWN_ELEMENTS].tolist()))}{more}]"


def law(
    *collectives: str,
    values: Sequence[str] = ("exact",),
    reductions: bool = False,
    needs: str | None = None,
) -> Callable[[Callable[[Examined, Example], Sides]], Law]:
    """A decorator that makes a law of the function that computes its two sides; the docstring is its statement."""

    def made(sides: Callable[[Examined, Example], Sides]) -> Law:
        return Law(
            sides.__name__, (sides.__doc__ or "").strip(), collectives, sides, tuple(values), reductions, needs
        )

    return made


OWN_WORDS = {
    "inputs_stay_unchanged": "it changes its argument, which belongs to the caller: begin with x = x.copy()",
    "results_stay_as_they_are": "its result shares memory with a reused buffer, a default argument or a global: "
                                "return a copy (result.copy()), or create the buffer in the function",
}
"""The words for laws about one property."""

COUNTS = ("sends_the_declared_bytes", "sends_the_declared_messages")


NUMBERS_ALONE = "right on symbols, wrong on these numbers: does it convert, round or compare what it adds?"


def diagnosed(law: str, subject: Subject, example: Example) -> Diagnosis:
    """The reason why `subject` breaks the law of this name, and the command that shows it."""
    proof = prove(subject, example.size)
    assert proof.case is not None
    if not proof.case.wrong_somewhere:
        if law in COUNTS:
            return of_what_is_sent(subject, example.size)
        if law in OWN_WORDS:
            return Diagnosis(OWN_WORDS[law], command(proof.case))
        if law == "adds_in_the_declared_order" and proof.order:
            return of_its_order(subject, example.size)
    found = why(subject, example.size, example.root)
    return found or Diagnosis(NUMBERS_ALONE if example.reduce is np.add else ONLY_ADDS, command(proof.case))
