"""The advice for each difference of a learner's step from the library's, and tests of equality."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.teach.grading.trained import Figures
from zerosim.teach.grading.verb_calls import StageCase
from zerosim.words import plural

ADVICE: Mapping[str, Mapping[str, str]] = tomllib.loads(
    resources.files("zerosim.teach.grading").joinpath("advice.toml").read_text("utf-8"))
"""The advice for each kind of difference and its subject: a verb, an argument, or an array."""
SCALED = ADVICE["gets"]["a scaled value"]


def sent_in(mine: Figures, due: Figures, variant: Mapping[str, Any]) -> str | None:
    """The replica's collective that sent a different number of bytes; None if none did."""
    for name in dict.fromkeys([*mine.by_collective, *due.by_collective]):
        (calls, sent), (due_calls, enough) = (each.by_collective.get(name, (0, 0)) for each in (mine, due))
        own = mine.sent_bytes - sum(sent for _, sent in mine.by_collective.values())
        if sent == enough or (own and sent < enough):
            continue
        told = (f"{name} sends {sent} bytes in {plural(calls, 'call')}; expected {enough} bytes in "
                f"{plural(due_calls, 'call')}")
        if name == "all_gather" and sent > enough and variant.get("reshard_after_forward") is False:
            return f"{told}: backward gathers again; keep the weights gathered by forward until then, for each unit"
        return told
    return None


def held_too_long(case: StageCase, kind: str) -> str:
    """The explanation of memory that is held too long: gradients until the last one, or arrays until the next unit."""
    backward = [number for number, call in enumerate(case.mine(0).calls) if call.verb == "backward"]
    reduced = [number for number, call in enumerate(case.mine(0).calls) if call.verb in ("reduce_scatter", "reduce")]
    if kind == "gradients" and len(backward) > 1 and reduced and reduced[0] > backward[1]:
        return (f"{len([each for each in backward if each < reduced[0]])} units have run backward before the first "
                "gradient is reduced, so their full gradients are in memory together: reduce each gradient, keep the "
                "shard and free the rest right after backward")
    return ADVICE["held"].get(kind, ADVICE["held"]["anything"])


def like(mine: Array, due: Array) -> bool:
    """Equal up to rounding, and not all zero."""
    return mine.shape == due.shape and bool(np.any(due)) and np.allclose(
        mine.astype(np.float64), due.astype(np.float64), rtol=1e-3, atol=1e-6)


def same(mine: Array, due: Array) -> bool:
    return mine.tobytes() == due.tobytes()


def factor(mine: Array, due: Array) -> float | None:
    """The factor between `due` and `mine`; None if there is none, or if it is 1."""
    large = np.abs(due) > 1e-3 * np.max(np.abs(due), initial=1e-12)
    if mine.shape != due.shape or not large.any():
        return None
    found = float(np.median(mine[large] / due[large]))
    alike = np.allclose(mine, found * due, rtol=1e-2, atol=1e-5 * float(np.max(np.abs(due))))
    return found if alike and abs(found - 1) > 1e-2 and abs(found) > 1e-6 else None


def times_of(mine: Array, due: Array) -> str | None:
    """The factor between `due` and `mine`, in words."""
    found = factor(mine, due)
    return None if found is None else times(found)


def times(number: float) -> str:
    """
    >>> times(2.0), times(0.25), times(-1.0)
    ('2 times', '1/4 of', '-1 times')
    """
    inverse = 1 / number
    return f"1/{inverse:.3g} of" if inverse > 1 and abs(inverse - round(inverse)) < 0.05 else f"{number:.3g} times"


def often(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
