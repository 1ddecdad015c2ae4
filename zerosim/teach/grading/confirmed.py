"""The grade of one submitted function: causes come from a separate process, points from this one.

This process never imports a submission. The examination looks for causes in the submission's process, so its answer may
be forged. Before the answer counts, the same claims are checked here once more, on ranks in separate processes, on
values drawn here, with messages routed through here.

Not confirmed are laws beyond these runs and the time of a training step; they count only if all else is confirmed. The
bytes that a rank keeps and holds are its own report. Values that ranks exchange through files instead of messages are
not detected.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zerosim.collectives import ALGORITHMS
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.errors import ScenarioError, ZerosimError
from zerosim.teach.grading.channel import MOST_TOLD, Ended, answer_of_process
from zerosim.teach.grading.claims import CLAIMS, ON_VECTORS, STAGE_TRIALS, from_the_right
from zerosim.teach.grading.contained import MARKER, Learner
from zerosim.teach.grading.exercises import (
    EXERCISES,
    PATIENCE_SECONDS,
    Claim,
    Grade,
    Item,
    cleaned,
    from_document,
    still_busy,
    unwritten,
)
from zerosim.teach.grading.pairs import OnVectors
from zerosim.teach.grading.proved import RANKS
from zerosim.teach.grading.separate_ranks import SeparateRanks

REFUTED = "it works only while ranks share a process; with separate ranks: "
FORGED = "the check's answer is malformed: leave the process in which the function runs as it is"


def grade_separately(
    file: str, name: str, patience_seconds: float = PATIENCE_SECONDS, learner: Learner = MARKER
) -> Grade:
    """The grade of one function, in a learner's process that ends with this one or after `patience_seconds`.

    A function that is not yet written is not run. Raises `ScenarioError` if the file cannot be imported.
    """
    line = unwritten(file, name)
    if line is not None:
        return Grade(name, "not yet written", complaint=f"line {line} still raises NotImplementedError")
    try:
        answer = answer_of_process("zerosim.teach.grading.examination", [file, name], patience_seconds, learner)
    except TimeoutError:
        return Grade(name, "does not end", complaint=still_busy(patience_seconds, file, ""))
    except Ended as error:
        if error.out_of_patience:
            return Grade(name, "does not end", complaint=still_busy(patience_seconds, file, error.complained))
        return Grade(name, "does not hold yet", complaint=cleaned(str(error)))
    try:
        if "unusable" in answer:
            raise ScenarioError(cleaned(answer["unusable"], MOST_TOLD).replace("\n", " "), file=file)
        grade = from_document(answer)
    except (KeyError, TypeError, ValueError):
        return Grade(name, "does not hold yet", complaint=FORGED)
    if grade.function != name:
        return Grade(name, "does not hold yet", complaint=FORGED)
    return confirmed(grade, file, learner)


def confirmed(grade: Grade, file: str, learner: Learner = MARKER) -> Grade:
    """The grade, without the points of items that fail on separate ranks.

    After a claim marked `first` that fails, no item counts. Laws, and claims about one process, count only if all other
    items hold.
    """
    if not possible(grade, claims_of(grade.function, stand_in)):
        return Grade(grade.function, "does not hold yet", complaint=FORGED)
    if not grade.earned:
        return grade
    items = list[Item]()
    with separate_ranks(file, grade.function, max(RANKS), learner) as ranks:
        claims = {claim.says: claim for claim in claims_of(grade.function, function_of(grade.function, ranks))}
        for item in grade.items:
            void = any(each.says in claims and claims[each.says].first and each.state != "holds" for each in items)
            items.append(replace(item, state="not asked") if void else again(item, claims.get(item.says)))
    refuted = next((item for item, was in zip(items, grade.items, strict=True) if item is not was), None)
    own = tuple(sorted(map(cleaned, ranks.used)))
    if refuted is None:
        return replace(grade, own=own)
    items = [item if item.says in claims and claims[item.says].separable else replace(item, state="not asked")
             for item in items]
    return replace(grade, state="does not hold yet", items=items, own=own,
                   complaint=f"not so: {refuted.says}\n{refuted.complaint}")


def stand_in(comm: Any, chunks: Any, root: int = 0, reduce: Any = None) -> None:
    """A function instead of the submission's, for reading claims."""


def claims_of(name: str, function: Any) -> list[Claim]:
    """The claims about an exercise, except laws."""
    return [claim for claim in CLAIMS[name](function) if not (claim.law or claim.needs)]


def separate_ranks(file: str, name: str, most: int, learner: Learner = MARKER) -> SeparateRanks:
    """Processes that run an exercise of a file; the order of addition that it claims is attributed."""
    order = from_the_right if name == "reduce_scatter_left" else None
    if (row := ALGORITHMS.get(f"ring.{name}")) is not None:
        order = row.order
    return SeparateRanks(file, name, most, learner, order)


def function_of(name: str, ranks: SeparateRanks) -> Any:
    """An exercise's function on separate ranks, with the calling convention of the exercise."""
    if name in STAGE_TRIALS:
        return ranks.step()
    if name in ON_VECTORS:
        return OnVectors(ranks.collective())
    rooted = name in COLLECTIVE_KINDS and COLLECTIVE_KINDS[name].rooted
    return ranks.collective(rooted=rooted, per_host=name == "all_reduce_two_level")


def possible(grade: Grade, claims: Sequence[Claim]) -> bool:
    """Whether an examination can give this answer: all claims with their points, laws only after the first."""
    if not grade.items:
        return grade.state in ("not yet written", "does not hold yet")
    if grade.state in ("not yet written", "does not end"):
        return False
    plain = [item for item in grade.items if not (item.law or item.state == "cannot be asked")]
    laws = [item for item in grade.items if item.law]
    due = [(claim.says, claim.points) for claim in claims]
    if [(item.says, item.points) for item in plain] != due or grade.earned > EXERCISES[grade.function]:
        return False
    if any(item.points != 1 for item in laws) or len({item.law for item in laws}) < len(laws):
        return False
    holding = [item.state in ("holds", "cannot be asked") for item in grade.items]
    return (grade.state in ("holds", "holds so far")) == all(holding) and (
        plain[0].state == "holds" or not any(item.earned for item in grade.items))


def again(item: Item, claim: Claim | None) -> Item:
    """The item with the result on separate ranks."""
    if item.state != "holds" or claim is None or not claim.separable:
        return item
    try:
        complaint = claim.complaint()
    except ZerosimError as error:
        complaint = str(error)
    except Exception:
        complaint = "a rank's result is not a record of a run"
    if complaint is None:
        return item
    return replace(item, state="does not hold", complaint=cleaned(f"{REFUTED}{complaint.splitlines()[0]}"))
