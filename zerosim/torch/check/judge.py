"""Judges the records of all ranks: does each optimizer see the mean over ranks and micro-batches, on equal weights?

No PyTorch and no communication: records are data. A finding needs a wrong program that computes what was seen, and no
right one that does, or a distance beyond every right answer's bound with all terms observed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from zerosim.torch.check import alike
from zerosim.torch.check.book import EQUAL, NOT_JUDGED, WITHIN, Book
from zerosim.torch.check.gradients import Answer, View, answers, cause_of
from zerosim.torch.check.record import Record, Step, Term

FINISHED = "0"
"""How a script ends that has run to its end."""


def judge(records: list[Record]) -> dict[str, Any]:
    """The document of a check, from the records of all ranks in their order."""
    for record in records:
        for step in record.steps:
            step.rank = record.facts.rank
    book, groups = Book(), {(*range(len(records)),)}
    if any(record.facts.communicates and not record.facts.row and 1 < len(record.facts.group) < len(records)
           for record in records):
        groups = {(*record.facts.group,) for record in records}  # the others hold other parts of the model
    counts = [len(record.steps) for record in records]
    for group in sorted(groups):
        members = [records[rank] for rank in group]
        members[0].facts.experts = experts(members)
        previous: dict[int, list[Step]] = {}
        for steps in zip(*(record.steps for record in members), strict=False):
            Round(book, members, [*steps], previous.get(steps[0].optimizer), len(groups) > 1).judge()
            previous[steps[0].optimizer] = [*steps]
    for steps in zip(*(record.steps for record in records), strict=False):
        if any(record.facts.communicates for record in records):
            alike.activations(book, records, [*steps])
    last = records[0].steps[min(counts) - 1].number if min(counts) else 0
    finished = all(record.ended == FINISHED for record in records)
    rank = alike.first_different(counts)
    if rank is not None and finished and not any(record.facts.obstacles for record in records):
        book.find("update", Step(0, last + 1, rank=rank), "unequal numbers of updates",
                  f"the ranks have made {counts} updates")
    for facts in (record.facts for record in records):
        if facts.failed:
            book.judge("gradient", NOT_JUDGED, f"the check has ended on rank {facts.rank}: {facts.failed}")
    if not min(counts):
        book.judge("gradient", NOT_JUDGED, "no update was seen on all ranks")
    if all(record.facts.trainer or not record.facts.communicates for record in records) and not records[0].facts.row:
        alike.overlaps(book, records)
    parameters(book, records)
    return book.document(min(counts))


def experts(records: list[Record]) -> list[str]:
    """The parameters that are not the same on all ranks by intent.

    They have a mark; without one, where tokens are exchanged, they differ between ranks while others do not.
    """
    marked = {name for record in records for name in record.facts.experts}
    if any("all_to_all" in record.facts.communicates for record in records):
        rounds = [[*steps] for steps in zip(*(record.steps for record in records), strict=False)]
        different = {name for steps in rounds for name, _, _ in alike.differences(steps)}
        names = {name for steps in rounds for name in steps[0].weights}
        marked |= different if different < names else set()
    return sorted(marked)


def parameters(book: Book, records: list[Record]) -> None:
    """Find parameters that get gradients and are never changed, whether an optimizer has them or not."""
    for record in records:
        steps = record.steps
        updated = {name for step in steps for name in step.parameters}
        for name in steps[0].orphans if steps else ():
            bits = {step.weights[name].bits for step in steps if name in step.weights}
            if name not in updated and len(bits) <= 1 and (len(steps) == 1 or name in steps[1].orphans):
                book.find("parameters", steps[0], "a parameter that no optimizer has",
                          f"{name} gets gradients and is never updated ({len(steps[0].orphans)} such)", name)
                break
    stuck = [name for name, changes in book.changes.items() if len(changes) > 1 and not any(changes)]
    if stuck and any(any(changes) for changes in book.changes.values()):
        book.find("update", records[0].steps[0], "a parameter is never changed",
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
        skipped = [step for step in self.steps if step.skipped]
        if skipped:
            if len(skipped) < len(self.steps):
                self.book.find("update", skipped[0], "fp16 overflow skipped on one rank",
                               "GradScaler skipped the update here, other ranks made it")
            return None
        pipeline = any("messages" in record.facts.communicates for record in self.records)
        if pipeline and self.previous is not None:  # schedules run a stage once more to learn its shapes
            self.passes()
        if reason := self.obstacle(pipeline):
            return self.book.judge("gradient", NOT_JUDGED, reason)
        if len({(step.optimizer, frozenset(step.parameters)) for step in self.steps}) > 1:
            return self.book.judge("gradient", NOT_JUDGED, "the ranks update different parameters")
        if not any(step.terms for step in self.steps):
            return self.without_terms()
        if self.groups() and alike.weights(self.book, self.records, self.steps, self.previous):
            if alike.inputs(self.book, self.records, self.steps):
                alike.settings(self.book, self.records[0].facts.unknown, self.steps)
                alike.states(self.book, self.steps, self.previous)
                alike.forwards(self.book, self.steps, self.previous)
                self.gradients()
            self.changes()
        return None

    def obstacle(self, pipeline: bool) -> str:
        """Why gradients are not judged; empty if they are."""
        reasons = [why for step in self.steps for why in step.reasons]
        reasons += [why for record in self.records for why in record.facts.obstacles]
        if pipeline and not self.parted:
            reasons.append("a pipeline: its ranks hold stages of one model")
        elif any(record.facts.communicates and not record.facts.trainer for record in self.records) and (
                self.previous is None or self.difference(0)) and self.difference():
            reasons.append("ranks communicate within the forward and have different weights: they may hold parts "
                           "of one model")
        return next(iter(reasons), "")

    def difference(self, number: int | None = None) -> tuple[str, int, int] | None:
        """A parameter with different weights before this update, or that of this number, and the two ranks."""
        steps = self.steps if number is None else [record.steps[number] for record in self.records]
        return next(alike.differences(steps, self.records[0].facts.experts), None)

    def without_terms(self) -> None:
        seen = all(step.batches for step in self.steps) and not any(step.gradients for step in self.steps)
        weights = [weight for step in self.steps for weight in step.weights.values()]
        if seen and "?" in self.steps[0].parameters:
            self.book.find("parameters", self.steps[0], "optimizer built before sharding",
                           "none of its parameters belongs to the model that trains, and none has a gradient")
        elif weights and not any(weight.trains for weight in weights):
            self.book.find("parameters", self.steps[0], "all parameters are frozen",
                           "requires_grad is False for each of them")
        else:
            self.book.judge("gradient", NOT_JUDGED, "no backward has reached a parameter of the optimizer")

    def passes(self) -> None:
        """In a pipeline every forward of a stage has its backward before the update, and all stages have as many."""
        for step in self.steps:
            forwards, backwards = step.passes
            if 0 < backwards < forwards:
                return self.book.find("inputs", step, "a micro-batch without a backward", f"the stage made {forwards} "
                                      f"forwards and {backwards} backwards before the update")
        counts = [step.passes[0] for step in self.steps]
        rank = alike.first_different(counts)
        if rank is not None and all(step.passes[1] for step in self.steps):
            self.book.find("inputs", self.steps[rank], "a rank with fewer micro-batches",
                           f"the stages made {counts} forwards before the update")
        return None

    def groups(self) -> bool:
        """Whether no group of ranks trains a model of its own: where a trainer's group is smaller than the world."""
        own = [record.facts.group for record in self.records]
        difference = self.difference()
        if self.previous is None and difference and all(1 < len(group) < len(own) for group in own) and (
                not self.records[0].facts.row and own[difference[1]] != own[difference[2]]):
            self.book.find("gradient", self.steps[0], "the mean of a smaller group", f"the trainer reduces over ranks "
                           f"{own[0]} of {len(own)}; the others train weights of their own")
            return False
        return True

    def changes(self) -> None:
        """Note which parameters the last update has changed, of those in 32 bits that had a gradient."""
        previous = self.previous or []
        if any(group.get("lr") == 0.0 for step in previous for group in step.settings):
            return
        for name in previous[0].gradients if previous else ():
            gradients = [step.gradients[name] for step in previous if name in step.gradients]
            if all(name in step.weights for step in (*previous, *self.steps)) and not any(
                    step.weights[name].narrow for step in previous) and any(part.squares.any() for part in gradients):
                self.book.changes.setdefault(name, []).append(any(
                    before.weights[name].bits != step.weights[name].bits
                    for before, step in zip(previous, self.steps, strict=True)))

    # -- gradients

    def gradients(self) -> None:
        facts = self.records[0].facts
        names = [name for name in self.steps[0].parameters if name not in facts.experts and any(
            name in step.terms or name in step.gradients for step in self.steps)]
        if facts.experts:
            self.book.judge("gradient", NOT_JUDGED, f"{facts.experts[0]} belongs to an expert")
        terms = [term for step in self.steps for of_name in step.terms.values() for term in of_name]
        micro = len({term.backward for term in terms}), len({term.backward for term in terms if not term.cleared})
        answers_of = {name: answers(name, self.records, self.steps, self.previous, *micro) for name in names}
        infinite = {name: at for name in names if (at := answers_of[name][0].infinite())}
        if infinite:
            name, (rank, where) = next(iter(infinite.items()))
            self.book.judge("gradient", NOT_JUDGED, f"the gradient of {name} is NaN or infinite in step "
                            f"{self.steps[0].number} on rank {self.records[rank].facts.rank}, {where}")
        judged = [answers_of[name] for name in names if name not in infinite]
        if not judged:
            return
        tried = [tested(alternatives, divided=False) for alternatives in judged]
        if any(view for _, view in tried):
            divided = [tested(alternatives, divided=True) for alternatives in judged]
            tried = tried if any(view for _, view in divided) else divided
        wrong = [(answer, view) for answer, view in tried if view is not None]
        if not (any(answer.lacks_cleared for answer, _ in tried) and self.cleared()):
            self.verdict(wrong, judged)
        self.clipping(bool(wrong))

    def verdict(self, wrong: list[tuple[Answer, View]], judged: list[list[Answer]]) -> None:
        facts, count = self.records[0].facts, len(judged)
        if not wrong:
            return self.book.judge("gradient", WITHIN, f"{facts.trainer or 'no trainer'}: the mean over "
                                   f"{len(self.records)} ranks and their micro-batches, by the bound γ Σ|g|")
        answer, view = wrong[0]
        cause, text = cause_of(answer, view, [other for alternatives in judged for other in alternatives
                                              if other.name == answer.name and other is not answer])
        if cause == "own gradient only" and "all_to_all" in facts.communicates and len(wrong) < count:
            cause, text = "", f"{answer.name} may belong to an expert: the script exchanges tokens in the forward"
        if not cause:
            return self.book.judge("gradient", NOT_JUDGED, text)
        others = f"; {len(wrong)} of {count} parameters are concerned" if len(wrong) > 1 else ""
        step = self.steps[view.rank]
        return self.book.find("gradient", step, cause, f"the gradient of {answer.name}: {text}{others}", answer.name,
                              int(answer.differing(view).sum()), step.terms[answer.name][-1].line
                              if answer.name in step.terms else "")

    def cleared(self) -> bool:
        """Whether the script clears the gradients of micro-batches unused, in two steps: once may be a choice."""
        for previous, step in zip(self.previous or (), self.steps, strict=False):
            term = lost(previous)
            if term and lost(step):
                self.book.find("gradient", previous, "gradient of the last micro-batch only",
                               "the gradients of earlier micro-batches are cleared (zero_grad in the loop)",
                               line=term.line)
                return True
        return False

    # -- clipping

    def clipping(self, wrong: bool) -> None:
        counts = [len(step.clips) for step in self.steps]
        if not any(counts):
            return self.book.judge("clipping", NOT_JUDGED, "clip_grad_norm_ was not called")
        if len(set(counts)) > 1:
            step = self.steps[counts.index(max(counts))]
            return self.book.find("clipping", step, "clipping on one rank", f"the ranks have clipped {counts} times",
                                  line=step.clips[0].line)
        first = self.steps[0].clips[0]
        if any(clip.unscaled != step.unscaled for step in self.steps for clip in step.clips):
            return self.book.find("clipping", self.steps[0], "clipping before unscaling",
                                  "clip_grad_norm_ saw gradients that GradScaler had multiplied by "
                                  f"{self.steps[0].scale:g}; call scaler.unscale_(optimizer) before it",
                                  line=first.line)
        if wrong or max(counts) > 1 or first.order != 2:
            return self.book.judge("clipping", NOT_JUDGED, "the gradient is not the mean, or is clipped in another way")
        squares = [{(name, part.key): part.squares.sum() for name, part in step.unclipped.items()
                    if name in step.clips[0].names} for step in self.steps]
        whole = float(np.sqrt(sum({key: square for of_rank in squares for key, square in of_rank.items()}.values())))
        for step, of_rank in zip(self.steps, squares, strict=True):
            clip, own = step.clips[0], float(np.sqrt(sum(of_rank.values())))
            before, after = (np.concatenate([part.sums for name, part in gradients.items() if name in clip.names]
                                            or [np.zeros(1)]) for gradients in (step.unclipped, step.gradients))
            if before.shape != after.shape or not before.any() or not np.isfinite(whole):
                continue
            factor = float(before @ after / (before @ before))
            slack = 64 * max(part.roundoff for part in step.gradients.values()) + 1e-5
            if abs(factor - min(1.0, clip.most / (whole + 1e-6))) <= slack:
                self.book.judge("clipping", WITHIN, "by the norm of the whole gradient")
            elif abs(factor - min(1.0, clip.most / (own + 1e-6))) <= slack:
                return self.book.find("clipping", step, "clipping by the local norm",
                                      f"gradients were clipped by {own:.6g}, the norm of this rank's part; the whole "
                                      f"gradient's is {whole:.6g}", line=clip.line)
            elif np.abs(after - factor * before).max() > slack * np.abs(before).max():
                self.book.judge("clipping", NOT_JUDGED, "gradients were changed after clipping")
            else:
                return self.book.find("clipping", step, "another norm",
                                      f"gradients were multiplied by {factor:.6g}; their norm is {whole:.6g}",
                                      line=clip.line)
        return None


def tested(alternatives: list[Answer], divided: bool) -> tuple[Answer, View | None]:
    """The right answer that was found; else the usual one, and where the gradient differs from it."""
    such = [answer for answer in alternatives if answer.divided == divided]
    right = next((answer for answer in reversed(such) if answer.wrong() is None), None)
    return (such[0], such[0].wrong()) if right is None else (right, None)


def lost(step: Step) -> Term | None:
    """A term that was cleared unused, where the last one, of the same line and weights, is all that was used."""
    for terms in step.terms.values():
        last = terms[-1]
        if not last.cleared and sum(not term.cleared for term in terms) == 1:
            for term in terms[:-1]:
                if (term.line, term.version) == (last.line, last.version):
                    return term
    return None
