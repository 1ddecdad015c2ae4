"""Judges the records of all ranks: does each optimizer see the mean over ranks and micro-batches, on equal weights?

No PyTorch and no communication: records are data. A finding needs a wrong program that computes what was seen, and no
right one that does, or a distance beyond every right answer's bound with all terms observed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from zerosim.torch.check import alike
from zerosim.torch.check.book import EQUAL, NOT_JUDGED, WITHIN, Book, lines, unjudged
from zerosim.torch.check.gradients import Due, View, answers, cause_of
from zerosim.torch.check.record import Clip, Record, Step, Term

__all__ = ["judge", "lines", "unjudged"]
FINISHED = "0"
"""How a script ends that has run to its end."""


def judge(records: list[Record]) -> dict[str, Any]:
    """The document of a check, from the records of all ranks in their order."""
    book, groups = Book(), [[*range(len(records))]]
    of_trainer = [tuple(each.facts.group) for each in records]
    if any(each.facts.communicates and not each.facts.row and 1 < len(group) < len(records)
           for each, group in zip(records, of_trainer, strict=True)):
        groups = [[*group] for group in dict.fromkeys(of_trainer)]  # the others hold other parts of the model
    counts = [len(each.steps) for each in records]
    for group in groups:
        members = [records[rank] for rank in group]
        members[0].facts.experts = experts(members)
        previous: dict[int, list[Step]] = {}
        for steps in zip(*(each.steps for each in members), strict=False):
            Round(book, members, [*steps], previous.get(steps[0].optimizer), len(groups) > 1).judge()
            previous[steps[0].optimizer] = [*steps]
    for steps in zip(*(each.steps for each in records), strict=False):
        if any(each.facts.communicates for each in records):
            alike.activations(book, records, [*steps])
    last = records[0].steps[min(counts) - 1] if min(counts) else Step(0, 0)
    finished = all(each.ended == FINISHED for each in records)
    if len(set(counts)) > 1 and finished and not any(each.facts.obstacles for each in records):
        rank = next(rank for rank, count in enumerate(counts) if count != counts[0])
        book.find("update", Step(0, last.number + 1), rank, "unequal numbers of updates",
                  f"the ranks have made {counts} updates")
    for each in records:
        if each.facts.failed:
            book.judge("gradient", NOT_JUDGED, f"the check has ended on rank {each.facts.rank}: {each.facts.failed}")
    if not min(counts):
        book.judge("gradient", NOT_JUDGED, "no update was seen on all ranks")
    if all(each.facts.trainer or not each.facts.communicates for each in records) and not records[0].facts.row:
        alike.overlaps(book, records)
    parameters(book, records)
    return book.document(min(counts))


def experts(records: list[Record]) -> list[str]:
    """The parameters that are not the same on all ranks by intent.

    They have a mark; without one, where tokens are exchanged, they differ between ranks while others do not.
    """
    marked = {name for each in records for name in each.facts.experts}
    if any("all_to_all" in each.facts.communicates for each in records):
        rounds = [[*steps] for steps in zip(*(each.steps for each in records), strict=False)]
        apart = {name for steps in rounds for name, _, _ in alike.differences(steps)}
        names = {name for steps in rounds for name in steps[0].weights}
        marked |= apart if apart < names else set()
    return sorted(marked)


def parameters(book: Book, records: list[Record]) -> None:
    """Find parameters that get gradients and are never changed, whether an optimizer has them or not."""
    for record in records:
        steps = record.steps
        held = {name for step in steps for name in step.held}
        orphans = [step.orphans for step in steps]
        for name in orphans[0] if orphans else []:
            bits = {step.weights[name].bits for step in steps if name in step.weights}
            if name not in held and len(bits) <= 1 and (len(steps) == 1 or name in orphans[1]):
                count = len(orphans[0])
                book.find("parameters", steps[0], record.facts.rank, "a parameter that no optimizer has",
                          f"{name} gets gradients and is never updated ({count} such)", name)
                break
    stuck = [name for name, changes in book.changes.items() if len(changes) > 1 and not any(changes)]
    if stuck and any(any(changes) for changes in book.changes.values()):
        book.find("update", records[0].steps[0], records[0].facts.rank, "a parameter is never changed",
                  f"{stuck[0]} gets gradients, an optimizer has it, and no update has changed it ({len(stuck)} such)",
                  stuck[0])
    book.judge("parameters", EQUAL, "an optimizer has each parameter that gets a gradient")


@dataclass
class Round:
    """One update on the ranks of a group, and the one before it."""

    book: Book
    records: list[Record]
    steps: list[Step]
    previous: list[Step] | None
    parted: bool
    """Whether other groups of ranks hold other parts of the model."""

    def judge(self) -> None:
        skipped = [each.skipped for each in self.steps]
        if any(skipped):
            if not all(skipped):
                self.find(skipped.index(True), "update", "fp16 overflow skipped on one rank",
                          "GradScaler skipped the update here, other ranks made it")
            return None
        pipeline = any("messages" in each.facts.communicates for each in self.records)
        if pipeline and self.previous is not None:  # schedules run a stage once more to learn its shapes
            self.passes()
        held = [set(each.held) for each in self.steps]
        reason = self.obstacle(pipeline)
        if reason:
            return self.book.judge("gradient", NOT_JUDGED, reason)
        if any(each != held[0] for each in held) or len({each.optimizer for each in self.steps}) > 1:
            return self.book.judge("gradient", NOT_JUDGED, "the ranks update different parameters")
        if not any(each.terms for each in self.steps):
            return self.without_terms()
        if self.groups() and alike.weights(self.book, self.records, self.steps, self.previous):
            if alike.inputs(self.book, self.records, self.steps):
                alike.settings(self.book, self.records, self.steps)
                alike.states(self.book, self.records, self.steps, self.previous)
                alike.forwards(self.book, self.records, self.steps, self.previous)
                self.gradients()
            self.changes()
        return None

    def find(self, place: int, what: str, cause: str, text: str, parameter: str = "", elements: int = 0,
             line: str = "") -> None:
        self.book.find(what, self.steps[place], self.records[place].facts.rank, cause, text, parameter, elements, line)

    def obstacle(self, pipeline: bool) -> str:
        """Why gradients are not judged; empty if they are."""
        reasons = [why for each in self.steps for why in each.reasons]
        reasons += [why for each in self.records for why in each.facts.obstacles]
        if pipeline and not self.parted:
            reasons.append("a pipeline: its ranks hold stages of one model")
        elif any(each.facts.communicates and not each.facts.trainer for each in self.records) and (
                self.previous is None or self.apart(0)) and self.apart():
            reasons.append("ranks communicate within the forward and have different weights: they may hold parts "
                           "of one model")
        return next(iter(reasons), "")

    def apart(self, number: int | None = None) -> tuple[str, int, int] | None:
        """A parameter with different weights before this update, or that of this number, and the two ranks."""
        steps = self.steps if number is None else [each.steps[number] for each in self.records]
        return next(alike.differences(steps, self.records[0].facts.experts), None)

    def without_terms(self) -> None:
        seen = all(each.batches for each in self.steps) and not any(each.found for each in self.steps)
        weights = [one for step in self.steps for one in step.weights.values()]
        if seen and "?" in self.steps[0].held:
            self.find(0, "parameters", "optimizer built before sharding",
                      "none of its parameters belongs to the model that trains, and none has a gradient")
        elif weights and not any(one.trains for one in weights):
            self.find(0, "parameters", "all parameters are frozen", "requires_grad is False for each of them")
        else:
            self.book.judge("gradient", NOT_JUDGED, "no backward has reached a parameter of the optimizer")

    def passes(self) -> None:
        """In a pipeline every forward of a stage has its backward before the update, and all stages have as many."""
        counts = [each.passes for each in self.steps]
        lost = next((place for place, (there, back) in enumerate(counts) if 0 < back < there), None)
        if lost is not None:
            return self.find(lost, "inputs", "a micro-batch without a backward",
                             f"the stage made {counts[lost][0]} forwards and {counts[lost][1]} backwards before the "
                             "update")
        apart = alike.first_apart([there for there, _ in counts])
        if apart is not None and all(back for _, back in counts):
            self.find(apart, "inputs", "a rank with fewer micro-batches",
                      f"the stages made {[there for there, _ in counts]} forwards before the update")
        return None

    def groups(self) -> bool:
        """Whether no group of ranks trains a model of its own: where a trainer's group is smaller than the world."""
        own = [each.facts.group for each in self.records]
        apart = self.apart()
        if self.previous is None and apart and all(1 < len(group) < len(own) for group in own) and (
                not self.records[0].facts.row and own[apart[1]] != own[apart[2]]):
            self.find(0, "gradient", "the mean of a smaller group",
                      f"the trainer reduces over ranks {own[0]} of {len(own)}; the others train weights of their own")
            return False
        return True

    def changes(self) -> None:
        """Note which parameters the last update has changed, of those in 32 bits that had a gradient."""
        settings = [one for each in self.previous or () for one in each.settings]
        if self.previous is None or any(one.get("lr") == 0.0 for one in settings):
            return
        for name in self.previous[0].found:
            before, now = ([each.weights.get(name) for each in steps] for steps in (self.previous, self.steps))
            found = [each.found.get(name) for each in self.previous]
            if all(before) and all(now) and not any(one and one.narrow for one in before) and any(
                    part is not None and part.squares.any() for part in found):
                self.book.changes.setdefault(name, []).append(
                    any(one and other and one.bits != other.bits for one, other in zip(before, now, strict=True)))

    # -- gradients

    def gradients(self) -> None:
        facts = self.records[0].facts
        names = [name for name in self.steps[0].held if name not in facts.experts and any(
            name in each.terms or name in each.found for each in self.steps)]
        if facts.experts:
            self.book.judge("gradient", NOT_JUDGED, f"{facts.experts[0]} belongs to an expert")
        terms = [term for step in self.steps for of_name in step.terms.values() for term in of_name]
        micro = len({term.backward for term in terms}), len({term.backward for term in terms if not term.cleared})
        due = {name: answers(name, self.records, self.steps, self.previous, *micro) for name in names}
        infinite = {name: at for name in names if (at := due[name][0].infinite())}
        if infinite:
            name, (place, where) = next(iter(infinite.items()))
            self.book.judge("gradient", NOT_JUDGED, f"the gradient of {name} is NaN or infinite in step "
                            f"{self.steps[0].number} on rank {self.records[place].facts.rank}, {where}")
        judged = [due[name] for name in names if name not in infinite]
        if not judged:
            return
        usual: list[tuple[Due, View | None]] = []
        for divided in (False, True):
            tried = [tested(each, divided) for each in judged]
            usual = usual or tried
            if not any(view for _, view in tried):
                usual = tried
                break
        wrong = [(answer, view) for answer, view in usual if view is not None]
        if not (any(answer.lacks_cleared for answer, view in usual) and self.cleared()):
            self.verdict(wrong, judged)
        self.clipping(bool(wrong))

    def verdict(self, wrong: list[tuple[Due, View]], judged: list[list[Due]]) -> None:
        facts, due = self.records[0].facts, wrong[0][0] if wrong else None
        if due is None:
            self.book.judge("gradient", WITHIN, f"{facts.trainer or 'no trainer'}: the mean over "
                            f"{len(self.records)} ranks and their micro-batches, by the bound γ Σ|g|")
            return None
        view, count = wrong[0][1], len(judged)
        of_name = next(each for each in judged if each[0].name == due.name)
        cause, text = cause_of(due, view, [each for each in of_name if each is not due])
        if cause == "own gradient only" and "all_to_all" in facts.communicates and len(wrong) < count:
            cause, text = "", f"{due.name} may belong to an expert: the script exchanges tokens in the forward"
        if not cause:
            return self.book.judge("gradient", NOT_JUDGED, text)
        others = f"; {len(wrong)} of {count} parameters are concerned" if len(wrong) > 1 else ""
        line = next((terms[-1].line for terms in [self.steps[view.rank].terms.get(due.name)] if terms), "")
        return self.find(view.rank, "gradient", cause, f"the gradient of {due.name}: {text}{others}", due.name,
                         int(due.apart(view).sum()), line)

    def cleared(self) -> bool:
        """Whether the script clears the gradients of micro-batches unused, in two steps: once may be a choice."""
        for place, step in enumerate(self.steps):
            before = self.previous and lost(self.previous[place])
            if before and lost(step):
                self.book.find("gradient", (self.previous or self.steps)[place], self.records[place].facts.rank,
                               "gradient of the last micro-batch only",
                               "the gradients of earlier micro-batches are cleared (zero_grad in the loop)",
                               line=before.line)
                return True
        return False

    # -- clipping

    def clipping(self, wrong: bool) -> None:
        of_all = [each.clips for each in self.steps]
        counts = [len(each) for each in of_all]
        if not any(counts):
            return self.book.judge("clipping", NOT_JUDGED, "clip_grad_norm_ was not called")
        if len(set(counts)) > 1:
            place = counts.index(max(counts))
            return self.find(place, "clipping", "clipping on one rank", f"the ranks have clipped {counts} times",
                             line=of_all[place][0].line)
        if any(each.unscaled != step.unscaled for step in self.steps for each in step.clips):
            return self.find(0, "clipping", "clipping before unscaling",
                             "clip_grad_norm_ saw gradients that GradScaler had multiplied by "
                             f"{self.steps[0].scale:g}; call scaler.unscale_(optimizer) before it",
                             line=of_all[0][0].line)
        clips: list[Clip] = [each[0] for each in of_all]
        if wrong or max(counts) > 1 or clips[0].order != 2:
            return self.book.judge("clipping", NOT_JUDGED, "the gradient is not the mean, or is clipped in another way")
        parts = {(name, part.key): part.squares.sum() for each, step in zip(clips, self.steps, strict=True)
                 for name, part in step.before.items() if name in each.names}
        whole = float(np.sqrt(sum(parts.values())))
        for place, (each, step) in enumerate(zip(clips, self.steps, strict=True)):
            own = float(np.sqrt(sum(part.squares.sum() for name, part in step.before.items() if name in each.names)))
            before, after = (np.concatenate([part.sums for name, part in found.items() if name in each.names]
                                            or [np.zeros(1)]) for found in (step.before, step.found))
            if before.shape != after.shape or not before.any() or not np.isfinite(whole):
                continue
            factor = float(before @ after / (before @ before))
            slack = 64 * max(part.roundoff for part in step.found.values()) + 1e-5
            if abs(factor - min(1.0, each.most / (whole + 1e-6))) <= slack:
                self.book.judge("clipping", WITHIN, "by the norm of the whole gradient")
            elif abs(factor - min(1.0, each.most / (own + 1e-6))) <= slack:
                return self.find(place, "clipping", "clipping by the local norm",
                                 f"gradients were clipped by {own:.6g}, the norm of this rank's part; the whole "
                                 f"gradient's is {whole:.6g}", line=each.line)
            elif np.abs(after - factor * before).max() > slack * np.abs(before).max():
                self.book.judge("clipping", NOT_JUDGED, "gradients were changed after clipping")
            else:
                return self.find(place, "clipping", "another norm",
                                 f"gradients were multiplied by {factor:.6g}; their norm is {whole:.6g}",
                                 line=each.line)
        return None


def tested(of_name: list[Due], divided: bool) -> tuple[Due, View | None]:
    """The right answer that was found; else the usual one, and where the gradient differs from it."""
    such = [each for each in of_name if each.divided == divided]
    right = next((each for each in reversed(such) if each.wrong() is None), None)
    return (such[0], such[0].wrong()) if right is None else (right, None)


def lost(step: Step) -> Term | None:
    """A term that was cleared unused, where the last one, of the same line and weights, is all that was used."""
    for terms in step.terms.values():
        last = terms[-1]
        if not last.cleared and sum(not each.cleared for each in terms) == 1:
            for each in terms[:-1]:
                if (each.line, each.version) == (last.line, last.version):
                    return each
    return None
