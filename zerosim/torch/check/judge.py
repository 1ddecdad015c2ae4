"""Judges the records of all ranks: does each optimizer see the mean over ranks and micro-batches, on equal weights?

No PyTorch and no communication: records are data. A finding needs a wrong program that computes what was seen, and no
right one that does, or a distance beyond every right answer's bound with all terms observed (`causes.py`).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from zerosim.core.words import plural
from zerosim.torch.check import alike
from zerosim.torch.check.applied import clipping, updates_of
from zerosim.torch.check.book import NOT_JUDGED, WITHIN, Book
from zerosim.torch.check.gradients import CHANGED, Answer, View, answers, cause_of
from zerosim.torch.check.record import Record, RecordError, Step, Term

FINISHED = "0"
"""How a script ends that has run to its end."""


def judged(records: list[Record]) -> dict[str, Any]:
    """The document of a check; raises `RecordError`, in one line, for records that cannot be judged."""
    ranks = sorted(record.facts.rank for record in records)
    if ranks != [*range(max(record.facts.size for record in records))]:
        raise RecordError(f"there are records of {len(ranks)} of {max(record.facts.size for record in records)} ranks; "
                          "nothing can be judged")
    try:
        return judge(sorted(records, key=lambda record: record.facts.rank))
    except Exception as error:  # an error of the check ends only the check
        raise RecordError(f"the records cannot be judged: {type(error).__name__}: {error}"[:300].replace("\n", " ")
                          ) from error


def judge(records: list[Record]) -> dict[str, Any]:
    """The document of a check, from the records of all ranks in their order."""
    for record in records:
        for step in record.steps:
            step.rank = record.facts.rank
    first, groups = records[0].facts, {(*range(len(records)),)}
    ended = all(record.ended == FINISHED for record in records)
    book = Book({"trained": bool(first.trainer), "no parts": not first.row, "together": first.trainer.startswith(
        ("FSDP2", "FullySharded", "DeepSpeed")) or (
            ended and all(record.facts.sent < record.facts.elements for record in records))})
    if any(record.facts.communicates and not record.facts.row and 1 < len(record.facts.group) < len(records)
           for record in records):
        groups = {(*record.facts.group,) for record in records}  # the others hold other parts of the model
    for group in sorted(groups):
        members, previous = [records[rank] for rank in group], dict[int, list[Step]]()
        every, marked = rounds(members), {name for record in members for name in record.facts.experts}
        if any("all_to_all" in record.facts.communicates for record in members):  # experts may have no mark
            different = {name for steps in every for name, _, _ in alike.differences(steps)}
            marked |= different if different < {name for steps in every for name in steps[0].weights} else set()
        members[0].facts.experts = sorted(marked)
        for steps in every:
            judge_round(book, members, steps, previous.get(steps[0].optimizer), len(groups) > 1)
            previous[steps[0].optimizer] = steps
        if len(every) < min(len(record.steps) for record in members):
            book.judge("gradient", NOT_JUDGED, "the ranks update different parameters")
        alike.others(book, every)
    in_several_steps(book)
    every = rounds(records)
    numbers(book, records, ended)
    alike.same_samples(book, records, every)
    alike.samplers(book, records)
    if all(record.facts.trainer or not record.facts.communicates for record in records) and not first.row:
        alike.overlaps(book, records)
    count = min(len(record.steps) for record in records)
    if count:
        updates_of(book, records)
    return book.document(count, {"updates": max(sum(record.facts.updates.values()) for record in records),
                                 "ranks": len(records)})


def in_several_steps(book: Book) -> None:
    """Find what would be a script's choice in one step: micro-batches that it clears, gradients that it multiplies."""
    for lost in book.lost.values():
        terms = [(step, term) for step, term in lost if term is not None]
        if len(terms) > 1:
            book.find(terms[0][0], "gradient of the last micro-batch only", "the gradients of earlier micro-batches "
                      f"are cleared in {len(terms)} of {len(lost)} steps (zero_grad in the loop)",
                      line=terms[0][1].line, proved=len(terms) == len(lost), bound=True, untouched=True)
    for scaled in book.scaled.values():
        low, high = max(low for _, low, _ in scaled), min(high for _, _, high in scaled)
        if len(scaled) > 1 and low <= high:
            book.find(scaled[0][0], "multiplied by a constant", f"in {len(scaled)} steps the gradients are the mean "
                      f"multiplied by {(low + high) / 2:.6g}, by the script")


def rounds(records: list[Record]) -> list[list[Step]]:
    """The updates that all of these ranks have made, in the order of the first: of the same parameters, if they can.

    A rank may have an optimizer of its own, such as that of a probe. A closure's evaluations are steps of one number.
    """
    columns = []
    for record in records:
        names = {step.optimizer: (*step.parameters,) for step in record.steps if step.parameters}
        column, seen = dict[Any, Step](), Counter[Any]()
        for step in record.steps:
            key = names.get(step.optimizer, step.optimizer), step.number
            column[key, seen[key]] = step
            seen[key] += 1
        columns.append(column)
    on_all = [key for key in columns[0] if all(key in column for column in columns)]
    alike_named = [[column[key] for column in columns] for key in on_all]
    return alike_named or [[*steps] for steps in zip(*(record.steps for record in records), strict=False)]


def numbers(book: Book, records: list[Record], ended: bool) -> None:
    """Say how many ranks and steps were not seen; updates are compared if all ranks have `ended`."""
    counts = [len(record.steps) for record in records]
    optimizers = {number for record in records for number in record.facts.updates}
    for number in optimizers if ended and not any(record.facts.obstacles for record in records) else ():
        updates = [record.facts.updates.get(number, 0) for record in records]
        names = {(*step.parameters,) for record in records for step in record.steps if step.optimizer == number}
        if len({*updates}) > 1 and len(names - {()}) == 1 and all(
                count or not record.steps for count, record in zip(updates, records, strict=True)):
            rank = next(rank for rank, count in enumerate(updates) if count != updates[0])
            book.find(Step(0, min(updates) + 1, rank=rank), "unequal numbers of updates",
                      f"the ranks have made {updates} updates")
    for facts in (record.facts for record in records if record.facts.failed):
        book.judge("gradient", NOT_JUDGED, f"the check has ended on rank {facts.rank}: {facts.failed}")
    if not min(counts):
        book.judge("gradient", NOT_JUDGED, "no update was seen" + (
            f" on all ranks; their numbers are {counts}" if len(counts) > 1 else ""))
    if len(records) == 1:
        book.judge("replicas", NOT_JUDGED, "there is one rank" + (
            "" if records[0].facts.grouped else ", without a process group"))


def unreached(book: Book, steps: list[Step]) -> None:
    """Say why no backward has reached a parameter of an optimizer."""
    weights = [weight for step in steps for weight in step.weights.values()]
    if all(step.batches for step in steps) and not any(step.gradients for step in steps) and "?" in steps[0].parameters:
        book.find(steps[0], "optimizer built before sharding",
                  "none of its parameters belongs to the model that trains, and none has a gradient")
    elif weights and not any(weight.trains for weight in weights):
        book.find(steps[0], "all parameters are frozen", "requires_grad is False for each of them")
    else:
        book.judge("gradient", NOT_JUDGED, "no backward has reached a parameter of the optimizer")


def judge_round(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None, parted: bool
                ) -> None:
    """Judge one update on the ranks of a group, after the one before it.

    `parted` says whether other groups of ranks hold other parts of the model.
    """
    first = steps[0]
    skipped = [step for step in steps if step.skipped]
    if 0 < len(skipped) < len(steps):
        book.find(skipped[0], "fp16 overflow skipped on one rank",
                  "GradScaler skipped the update here, other ranks made it")
    if skipped:
        return
    book.parameters |= {name: False for name in first.parameters if name not in book.parameters}
    for remark in first.remarks:
        if all(any((other.cause, other.value) == (remark.cause, remark.value) for other in step.remarks)
               for step in steps):
            book.find(first, remark.cause, remark.text, remark.parameter, line=remark.line)
    difference = next(alike.differences(steps, records[0].facts.experts), None)
    own = [record.facts.group for record in records]
    if reasons := [*obstacles(book, records, steps, previous, parted)]:
        book.judge("gradient", NOT_JUDGED, reasons[0])
    elif not any(step.terms for step in steps):
        unreached(book, steps)
    elif previous is None and difference and all(1 < len(group) < len(own) for group in own) and (
            not records[0].facts.row and own[difference[1]] != own[difference[2]]):
        book.find(first, "the mean of a smaller group", f"the trainer reduces over ranks {own[0]} of "
                  f"{len(own)}; the others train weights of their own", proved=False)
    elif alike.weights(book, records, steps, previous) and alike.inputs(book, records, steps):
        alike.settings(book, records, steps)
        alike.states(book, steps, previous)
        gradients(book, records, steps, previous)


def obstacles(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None, parted: bool
              ) -> Iterator[str]:
    """Why gradients are not judged: reasons of a step first, then those of the script."""
    first, facts = steps[0], records[0].facts
    yield from (why for step in steps for why in step.reasons)
    yield from (why for record in records for why in record.facts.obstacles)
    if any("messages" in record.facts.communicates for record in records):
        if previous is not None:  # schedules run a stage once more to learn its shapes
            alike.passes(book, steps)
        if not parted:
            yield "a pipeline: its ranks hold stages of one model"
    elif any(record.facts.communicates and not record.facts.trainer for record in records) and all(
            any(alike.differences(row, facts.experts)) for row in (steps, [record.steps[0] for record in records])):
        yield "ranks communicate within the forward and have different weights: they may hold parts of one model"
    if any((step.optimizer, {*step.parameters}) != (first.optimizer, {*first.parameters}) for step in steps):
        yield "the ranks update different parameters"


def gradients(book: Book, records: list[Record], steps: list[Step], previous: list[Step] | None) -> None:
    """Judge the gradients of one update, and its clipping."""
    facts = records[0].facts
    names = [name for name in steps[0].parameters if name not in facts.experts and any(
        name in step.terms or name in step.gradients for step in steps)]
    if facts.experts:
        book.judge("gradient", NOT_JUDGED, f"{facts.experts[0]} differs between ranks by intent: an "
                   "expert, or left out of the reduction")
    terms = [term for step in steps for of_name in step.terms.values() for term in of_name]
    micro = len({term.backward for term in terms}), len({term.backward for term in terms if not term.cleared})
    answers_of = {name: answers(name, records, steps, previous, *micro) for name in names}
    infinite = {name: at for name in names if (at := answers_of[name][0].infinite())}
    if infinite:
        name, (rank, where) = next(iter(infinite.items()))
        book.judge("gradient", NOT_JUDGED, f"the gradient of {name} is NaN or infinite in step "
                   f"{steps[0].number} on rank {records[rank].facts.rank}, {where}")
    judged = [answers_of[name] for name in names if name not in infinite]
    if not judged:
        return
    tried = [tested(alternatives, divided=False) for alternatives in judged]
    if any(view for _, view in tried):
        divided = [tested(alternatives, divided=True) for alternatives in judged]
        tried = tried if any(view for _, view in divided) else divided
    if any(answer.divided and view is None and micro[0] > 1 and abs(steps[0].share * micro[0] - 1) < 1e-6
           for answer, view in tried):
        book.find(steps[0], "divided twice", f"losses are divided by the {micro[0]} micro-batches, and "
                  "gradients once more", names[0], proved=False)
    wrong = [(answer, view) for answer, view in tried if view is not None]
    lacking = any(answer.lacks_cleared for answer, view in tried if view is None)
    book.lost.setdefault((facts.rank, steps[0].optimizer), []).append((steps[0], next(
        filter(None, map(lost, steps)), None) if lacking else None))
    if verdict(book, records, steps, wrong, judged):
        book.micro_batches += max(micro[0], 1)
        book.parameters |= {alternatives[0].name: True for alternatives in judged}
    clipping(book, records, steps)


def verdict(book: Book, records: list[Record], steps: list[Step], wrong: list[tuple[Answer, View]],
            judged: list[list[Answer]]) -> bool:
    """Write down what these gradients are; False if they cannot be judged."""
    facts, count = records[0].facts, len(judged)
    mean = f"{facts.trainer or 'no trainer'}: the mean over {plural(len(records), 'rank')} and their micro-batches"
    if not wrong:
        book.judge("gradient", WITHIN, f"{mean}, by the bound γ Σ|g|")
        return True
    answer, view = wrong[0]
    named = [other for alternatives in judged for other in alternatives if other.name == answer.name]
    cause, text, evidence = cause_of(answer, view, [other for other in named if other is not answer])
    if cause == "own gradient only" and "all_to_all" in facts.communicates and len(wrong) < count:
        cause, text = "", f"{answer.name} may belong to an expert: the script exchanges tokens in the forward"
    if not cause:
        factors = [wrong_answer.factors() for wrong_answer, _ in wrong] if text.startswith(CHANGED) else [(np.inf, 0.0)]
        least, most = max(low for low, _ in factors), min(high for _, high in factors)
        scaled = least <= most or (all(low <= high for low, high in factors)
                                   and all(where.mask.sum() > 1 for _, where in wrong))
        book.judge("gradient", *((WITHIN, f"{mean}, multiplied by the script ({answer.name} by "
                                  f"{answer.ratio(view):.4g})") if scaled else (NOT_JUDGED, text)))
        book.scaled.setdefault((facts.rank, steps[0].optimizer), []).append((steps[0], least, most))
        return scaled
    others = f"; {len(wrong)} of {count} parameters are concerned" if len(wrong) > 1 else ""
    step = steps[view.rank]
    book.find(step, cause, f"the gradient of {answer.name}: {text}{others}", answer.name,
              int(answer.differing(view).sum()), step.terms[answer.name][-1].line
              if answer.name in step.terms else "", **evidence)
    return True


def tested(alternatives: list[Answer], divided: bool) -> tuple[Answer, View | None]:
    """The right answer that was found; else the usual one, and where the gradient differs from it."""
    such = [answer for answer in alternatives if answer.divided == divided]
    right = next((answer for answer in reversed(such) if answer.wrong() is None), None)
    return (such[0], such[0].wrong()) if right is None else (right, None)


def lost(step: Step) -> Term | None:
    """A term that was cleared unused, where the last one, of the same line and weights, is all that was used.

    Each had a batch of its own: a backward of the same forward may be one that is only looked at.
    """
    batches = [batch.given for batch in step.batches]
    for terms in step.terms.values():
        last = terms[-1]
        if not last.cleared and sum(not term.cleared for term in terms) == 1 and len(set(batches)) >= len(terms):
            for term in terms[:-1]:
                if (term.line, term.version) == (last.line, last.version) and term.part.sums.any():
                    return term
    return None
