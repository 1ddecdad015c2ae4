"""The laws as claims; without Hypothesis, one claim that says how to install it."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from zerosim.grading.claim import Claim
from zerosim.proofs.subject import Subject

if TYPE_CHECKING:
    from zerosim.testing.law import Examined, Law

EXAMPLES = 40


def law_claims(examined: Subject, points: int) -> Iterator[Claim]:
    """Each law that applies, checked on numbers; they have `points` points in total, one each."""
    try:
        from zerosim.testing import LAWS  # noqa: PLC0415 - needs Hypothesis
        from zerosim.testing.law import under_examination  # noqa: PLC0415
    except ImportError:
        yield Claim(
            "its laws hold, on numbers", lambda: None, points,
            needs=f"Hypothesis: {sys.executable} -m pip install 'hypothesis>=6.100'")
        return
    asked: Any = under_examination(examined)
    for law in LAWS:
        if law.applies(asked):
            yield Claim(law.says, partial(broken, law, asked), law=law.name)


def broken(law: "Law", examined: "Examined") -> str | None:
    """The smallest example that breaks the law."""
    from zerosim.testing import LawBroken  # noqa: PLC0415 - it is there, since `law` is

    try:
        law.hold(examined, EXAMPLES)
    except LawBroken as found:
        return str(found)
    return None
