"""What is claimed of each exercise, in a learner's words, and how it is found out, on the smallest example first."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from zerosim.collectives import ALGORITHMS
from zerosim.errors import ZerosimError
from zerosim.grading.claim import Claim, Claims
from zerosim.grading.stages import StageTrial
from zerosim.proofs.proof import prove, roots, run
from zerosim.proofs.subject import Subject, subject
from zerosim.report.figures import plural
from zerosim.testing import LAWS, Law, LawBroken
from zerosim.testing.law import Examined, under_examination

RANKS = range(1, 9)
EXAMPLES = 40


def ring_claims(name: str, function: Callable[..., Any]) -> Iterator[Claim]:
    """Right, and the ring: its order of addition, its messages, its bytes."""
    row = ALGORITHMS[f"ring.{name}"]
    return collective_claims(under_examination(
        subject(function, name), order=row.order, sent_bytes=row.sent_bytes, messages=row.messages
    ))


def tree_claims(name: str, function: Callable[..., Any]) -> Iterator[Claim]:
    """Right, and in as few rounds as a tree."""
    examined = under_examination(subject(function, name))
    yield from collective_claims(examined)
    yield Claim("it takes ⌈log2 N⌉ rounds, whichever the root", lambda: slow(examined.subject))


def collective_claims(examined: Examined) -> Iterator[Claim]:
    """Proved on symbols first, since that finds the place of a mistake; then every law, on numbers."""
    raise_what_it_raises(examined.subject)
    yield Claim(
        f"everything arrives where it belongs, once, on {RANKS[0]} to {RANKS[-1]} ranks",
        lambda: unproved(examined.subject),
    )
    for law in LAWS:
        if law.applies(examined):
            yield Claim(law.says, partial(broken, law, examined))


def raise_what_it_raises(examined: Subject) -> None:
    """Raise what the function raises by itself, on the fewest ranks but one, where there may be nothing to do."""
    for size in (*RANKS[1:], RANKS[0]):
        failure = run(examined, size, size).failure
        if failure is not None and not isinstance(failure, ZerosimError):
            raise failure


def unproved(examined: Subject) -> str | None:
    """The first fault, on the fewest ranks."""
    for size in RANKS:
        faults = prove(examined, size).faults
        if faults:
            right = f"right on {plural(size - 1, 'rank')}, but " if size > 1 else ""
            legend = "\n(g1 is what rank 1 brought, · what nobody wrote)" if "holds" in faults[0].what else ""
            return f"{right}on {plural(size, 'rank')}: {faults[0].what}{legend}"
    return None


def broken(law: Law, examined: Examined) -> str | None:
    """The smallest example that breaks the law."""
    try:
        law.hold(examined, EXAMPLES)
    except LawBroken as found:
        return str(found)
    return None


def slow(examined: Subject) -> str | None:
    """The first number of ranks that takes more rounds than doubling up to it."""
    for size in RANKS:
        for root in roots(examined, size):
            rounds, enough = run(examined, size, size, root).rounds, (size - 1).bit_length()
            if rounds > enough:
                return f"on {plural(size, 'rank')} from root {root} it takes {rounds} rounds, where {enough} are enough"
    return None


def stage_claims(stage: str, step: Callable[..., Any]) -> Iterator[Claim]:
    """The bits of one process, and what the formulas say of bytes sent and kept."""
    training = StageTrial(stage, step)
    yield Claim("it trains to the bits of one process", training.first_difference)
    yield Claim("every rank sends the bytes of the formula", training.sent_otherwise)
    yield Claim("every rank keeps between steps what the stage says, and no more", training.kept_otherwise)
    yield Claim("nothing is held longer than it is used", training.held_too_much)


CLAIMS: dict[str, Claims] = {
    "reduce_scatter": partial(ring_claims, "reduce_scatter"),
    "all_gather": partial(ring_claims, "all_gather"),
    "all_reduce": partial(ring_claims, "all_reduce"),
    "broadcast": partial(tree_claims, "broadcast"),
    "reduce": partial(tree_claims, "reduce"),
    "zero1_step": partial(stage_claims, "zero1"),
    "zero2_step": partial(stage_claims, "zero2"),
    "zero3_step": partial(stage_claims, "zero3"),
}
