"""Quick checks of a function, which find whether it has an error but not which."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zerosim.grading.claim import ClaimsOf
from zerosim.grading.claims import STAGE_TRIALS
from zerosim.grading.mends import ALL, NOTHING, SOME, Quickly
from zerosim.grading.tiny import EVEN
from zerosim.grading.trained import first_difference
from zerosim.grading.variants import ELSEWHERE, HOSTS
from zerosim.proofs.proof import faults, roots, run
from zerosim.proofs.subject import Subject, subject

RANKS = (2, 3, 1, 4)
"""Numbers of ranks for a quick check of a collective, those first on which most errors show."""


def verdict(claims: ClaimsOf, failed: int, function: Callable[..., Any]) -> str:
    """The verdict on an edited function whose claim number `failed` did not hold before."""
    everything = True
    for number, claim in enumerate(claims(function)):
        if claim.law or claim.needs:
            break
        wrong = claim.complaint() is not None
        if wrong and number <= failed:
            return NOTHING
        everything = everything and not wrong
    return ALL if everything else SOME


def arrives(examined: Subject, sizes: Sequence[int] = RANKS) -> bool:
    """Whether all data arrive on a few numbers of ranks."""
    return all(
        not any(faults(examined, run(examined, size, size, root), size, root))
        for size in sizes for root in roots(examined, size))


def arrives_as(name: str, function: Callable[..., Any]) -> bool:
    """Whether all data arrive, for an exercise with its collective's name in its own."""
    return arrives(subject(function, name.removesuffix("_left")))


def arrives_elsewhere(function: Callable[..., Any]) -> bool:
    return arrives(replace(subject(function, "reduce_scatter"), promise=ELSEWHERE))


def arrives_on_hosts(function: Callable[..., Any]) -> bool:
    return all(arrives(hosts.subject(function), (hosts.ranks,)) for hosts in HOSTS[1:5])


def trains(name: str, step: Callable[..., Any]) -> bool:
    """Whether a stage trains to the bits of the library's stage on two ranks."""
    trial = STAGE_TRIALS[name](step)
    return all(
        first_difference(trial.trained(tiny), trial.due(tiny), tiny, trial.stage, trial.variant) is None
        for tiny in (EVEN[1], EVEN[3]))


QUICKLY: dict[str, Quickly] = {
    "reduce_scatter_elsewhere": arrives_elsewhere, "all_reduce_two_level": arrives_on_hosts,
    **{name: partial(trains, name) for name in STAGE_TRIALS},
}
DIRECTED = ("reduce_scatter_left", "reduce_scatter_elsewhere", "all_reduce_two_level")
"""Exercises in which the route matters; an edit that only delivers the data does not repair them."""
