"""The claims of each exercise, in a learner's words, the most basic first.

Proofs and trainings need only zerosim; laws need Hypothesis and are checked where it is installed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zerosim.collectives import ALGORITHMS
from zerosim.teach.grading.exercises import EXERCISES, Claim, ClaimsOf
from zerosim.teach.grading.pairs import OnVectors, on_vectors, pair_claims
from zerosim.teach.grading.proved import added_in, everything_arrives, rounds_at_most, sent_as
from zerosim.teach.grading.schedules import on_numbers, schedule_claims
from zerosim.teach.grading.stages import StageTrial
from zerosim.teach.grading.variants import (
    elsewhere_claims,
    fsdp_claims,
    kept_claims,
    kept_trial,
    left_claims,
    parts_claims,
    parts_trial,
    trial_claims,
    two_levels,
)
from zerosim.teach.grading.verb_calls import LearnersStep
from zerosim.teach.proofs.subject import Subject, subject

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


def ring_claims(name: str, function: Callable[..., Any]) -> list[Claim]:
    """The claims of a ring: correct, with its order of addition, messages, bytes and time."""
    row, examined = ALGORITHMS[f"ring.{name}"], subject(function, name)
    found = everything_arrives(examined)
    if row.order is not None:
        order = row.order
        found.append(Claim(
            "every chunk is added in the declared order", lambda: added_in(examined, order), 2))
    found.append(Claim(
        "every rank sends the messages and the bytes of the ring", lambda: sent_as(examined, row), 2))
    return with_laws(name, examined, found)


def tree_claims(name: str, function: Callable[..., Any]) -> list[Claim]:
    """The claims of a tree: correct, in the least number of rounds."""
    examined = subject(function, name)
    quick = Claim("it takes ⌈log2 N⌉ rounds from every root",
                  lambda: rounds_at_most(examined, lambda size: (size - 1).bit_length()), 2)
    return with_laws(name, examined, [*everything_arrives(examined), quick])


def with_laws(name: str, examined: Subject, found: Sequence[Claim]) -> list[Claim]:
    """The claims in `found`, and laws for the remaining points."""
    return [*found, *law_claims(examined, EXERCISES[name] - sum(claim.points for claim in found))]


def stage_claims(stage: str, step: Callable[..., Any]) -> list[Claim]:
    """The claims of a stage: the bits of one process, and the bytes sent and kept that the formulas state."""
    return trial_claims(StageTrial(stage, step, in_parts=True), sent=2, kept=2)


CLAIMS: dict[str, ClaimsOf] = {
    "reduce_scatter": partial(ring_claims, "reduce_scatter"),
    "all_gather": partial(ring_claims, "all_gather"),
    "all_reduce": partial(ring_claims, "all_reduce"),
    "broadcast": partial(tree_claims, "broadcast"),
    "reduce": partial(tree_claims, "reduce"),
    "zero1_step": partial(stage_claims, "zero1"),
    "zero2_step": partial(stage_claims, "zero2"),
    "zero3_step": partial(stage_claims, "zero3"),
    "reduce_scatter_left": left_claims,
    "reduce_scatter_elsewhere": elsewhere_claims,
    "all_reduce_two_level": two_levels,
    "zero2_each_part_step": parts_claims,
    "zero3_kept_step": kept_claims,
    "fsdp_step": fsdp_claims,
    "split_pair": pair_claims,
    "one_f_one_b_step": schedule_claims,
}

STAGE_TRIALS: dict[str, Callable[[LearnersStep], StageTrial]] = {
    "zero1_step": partial(StageTrial, "zero1"),
    "zero2_step": partial(StageTrial, "zero2"),
    "zero3_step": partial(StageTrial, "zero3"),
    "zero2_each_part_step": parts_trial,
    "zero3_kept_step": kept_trial,
    "fsdp_step": partial(StageTrial, "zero3"),
}
"""The training of each exercise that is a step of a stage."""

ON_VECTORS: dict[str, Callable[[Callable[..., Any]], OnVectors]] = {
    "split_pair": on_vectors, "one_f_one_b_step": on_numbers}
"""The exercises whose arrays lie in a vector, one after the other."""
