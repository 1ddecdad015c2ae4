"""Judges the records of all ranks: does each optimizer see the mean over ranks and micro-batches, on equal weights?

No PyTorch and no communication: records are data. Sketches are linear, so what a wrong program would have got is
computed from them as it would be from gradients. A finding's cause is the candidate that comes closest.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from zerosim.torch.check.record import Array, Clip, Record, Sketched, Step, Term

SURE = 8.0
"""As in `sketch.py`: an error of more standard deviations is not a rounding error."""
WITHIN, NOT_JUDGED = "within the rounding of any order of addition", "not judged"
EQUAL = "equal"
SUBJECTS = ("initial weights", "inputs", "weights of the forward", "gradient", "clipping", "update", "replicas",
            "parameters")


@dataclass
class CheckFinding:
    """One fault: `elements` are how many numbers of the sketch are wrong; `line` is the script's, as file:number."""

    what: str
    step: int
    rank: int
    cause: str
    text: str
    parameter: str = ""
    elements: int = 0
    line: str = ""

    def __str__(self) -> str:
        at = f" ({self.line})" if self.line else ""
        return f"step {self.step}, rank {self.rank}: {self.cause}: {self.text}{at}"


@dataclass
class Book:
    """Findings, the first of each cause, and for each subject the verdicts with the reason of the first."""

    findings: dict[tuple[str, str], CheckFinding] = field(default_factory=dict)
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    epochs: set[str] = field(default_factory=set)

    def find(self, what: str, step: Step, rank: int, cause: str, text: str, parameter: str = "", elements: int = 0,
             line: str = "") -> None:
        found = CheckFinding(what, step.number, rank, cause, text, parameter, elements, line or step.line)
        self.findings.setdefault((what, cause), found)

    def judge(self, what: str, verdict: str, why: str) -> None:
        self.verdicts.setdefault(what, {}).setdefault(verdict, why)

    def document(self, steps: int) -> dict[str, Any]:
        """The document `zerosim.check/1`."""
        wrong, judged = {each.what for each in self.findings.values()}, []
        for what in SUBJECTS:
            received = self.verdicts.get(what, {})
            if what not in wrong or NOT_JUDGED in received:
                weakest = next((each for each in (NOT_JUDGED, WITHIN, EQUAL) if each in received), NOT_JUDGED)
                judged.append({"what": what, "verdict": weakest, "why": received.get(weakest, "it was not seen")})
        ordered = sorted(self.findings.values(), key=lambda each: (each.step, SUBJECTS.index(each.what), each.rank))
        return {"schema": "zerosim.check/1", "steps": steps, "verdicts": judged,
                "findings": [asdict(each) for each in ordered]}


def lines(document: dict[str, Any]) -> list[str]:
    """The document as text: one line for each finding and verdict."""
    found = [f"zerosim: FOUND {CheckFinding(**each)}" for each in document["findings"]]
    said = [f"zerosim: {each['what']}: {each['verdict']}: {each['why']}" for each in document["verdicts"]]
    steps = document["steps"]
    return [*found, *said, f"zerosim: checked {steps} step{'s' * (steps != 1)}: {len(found) or 'no'} "
                           f"finding{'s' * (len(found) != 1)}"]


def judge(records: list[Record]) -> dict[str, Any]:
    """The document of a check, from the records of all ranks in their order."""
    book, counts = Book(), [len(each.steps) for each in records]
    previous: dict[int, list[Step]] = {}
    for steps in zip(*(each.steps for each in records), strict=False):
        Round(book, records, list(steps), previous.get(steps[0].optimizer)).judge()
        previous[steps[0].optimizer] = list(steps)
    last = records[0].steps[min(counts) - 1] if min(counts) else Step(0, 0)
    if len(set(counts)) > 1 and not any(each.obstacles for each in records):
        rank = next(rank for rank, count in enumerate(counts) if count != counts[0])
        book.find("update", Step(0, last.number + 1), rank, "unequal numbers of updates",
                  f"the ranks have made {counts} updates")
    if not min(counts):
        book.judge("gradient", NOT_JUDGED, "no update was seen on all ranks")
    for each in records:
        if each.unheld:
            book.find("parameters", Step(0, 1), each.rank, "a parameter that no optimizer has",
                      f"{each.unheld[0]} gets gradients and is never updated ({len(each.unheld)} such)", each.unheld[0])
    book.judge("parameters", EQUAL, "an optimizer has each parameter that gets a gradient")
    return book.document(min(counts))


@dataclass
class Round:
    """One update on all ranks, and the one before it."""

    book: Book
    records: list[Record]
    steps: list[Step]
    previous: list[Step] | None

    @property
    def ranks(self) -> range:
        return range(len(self.steps))

    @property
    def first(self) -> bool:
        return self.steps[0] is self.records[0].steps[0]

    def judge(self) -> None:
        skipped = [each.skipped for each in self.steps]
        if any(skipped):
            if not all(skipped):
                self.book.find("update", self.steps[0], skipped.index(True), "fp16 overflow skipped on one rank",
                               "GradScaler skipped the update here, other ranks made it")
            return None
        held = [set(each.held) for each in self.steps]
        if any(each != held[0] for each in held) or len({each.optimizer for each in self.steps}) > 1:
            return self.book.judge("gradient", NOT_JUDGED, "the ranks update different parameters")
        reason = self.obstacle()
        if reason:
            return self.book.judge("gradient", NOT_JUDGED, reason)
        if not any(each.terms for each in self.steps):
            if all(each.batches for each in self.steps) and not any(each.found for each in self.steps):
                self.book.find("parameters", self.steps[0], 0, "optimizer built before sharding",
                               "none of its parameters belongs to the model that trains, and none has a gradient")
            else:
                self.book.judge("gradient", NOT_JUDGED, "no backward has reached a parameter of the optimizer")
            return None
        if self.weights() and self.inputs():
            self.settings()
            self.forwards()
            self.gradients()
        return None

    def obstacle(self) -> str:
        reasons = [why for each in self.steps for why in each.reasons]
        for each in self.records:
            reasons += each.obstacles
            if each.communicates == "messages":
                reasons.append("a pipeline: its ranks hold stages of one model")
            elif each.communicates and not each.trainer and self.differ([one.steps[0] for one in self.records]):
                reasons.append("ranks communicate within the forward and have different weights: they may hold parts "
                               "of one model")
        return next(iter(reasons), "")

    # -- what must be equal

    def differ(self, steps: list[Step]) -> bool:
        return any(each.weights[name][1] != found for name, (key, found, _) in steps[0].weights.items()
                   for each in steps if each.weights.get(name, (None,))[0] == key)

    def apart(self, values: list[Any]) -> int | None:
        """The first rank whose value differs from that of rank 0."""
        return next((rank for rank, each in enumerate(values) if each != values[0]), None)

    def weights(self) -> bool:
        """Whether it makes sense to go on: the ranks train one model."""
        what = "initial weights" if self.first else "replicas"
        for name in self.steps[0].weights:
            of_place: dict[Any, tuple[int, int]] = {}
            for rank, each in enumerate(self.steps):
                key, found, _ = each.weights.get(name, (None, 0, 0))
                other, due = of_place.setdefault(key, (rank, found))
                if found == due:
                    continue
                if self.first and not self.records[0].trainer and self.own_gradients():
                    self.book.judge(what, NOT_JUDGED, "each rank has a model of its own, without a trainer")
                    return False
                if not self.book.findings:
                    cause = "other initial weights" if self.first else "replicas have drifted apart"
                    self.book.find(what, self.steps[rank], rank, cause,
                                   f"{name} has different bits than on rank {other}", name)
                return self.first
        for kind in ("buffers", "wrapped") if self.first else ():
            for name in getattr(self.records[0], kind):
                values = [getattr(each, kind).get(name) for each in self.records]
                rank = self.apart([each[0] if kind == "wrapped" and each else each for each in values])
                if rank is None or (kind == "wrapped" and not all(each and each[1] for each in values)):
                    continue
                text = f"the buffer {name} has different bits than on rank 0" if kind == "buffers" else (
                    f"{name} was initialised with other values than on rank 0, and sharding does not broadcast: the "
                    f"model is a patchwork of {len(values)} initialisations")
                self.book.find(what, self.steps[0], rank, "other initial weights", text, name,
                               line=self.records[0].wrapping_line if kind == "wrapped" else "")
                return True
        self.book.judge(what, EQUAL, "all ranks hold the same bits")
        return True

    def own_gradients(self) -> bool:
        name = next(iter(self.steps[0].found), "")
        found = [each.found.get(name) for each in self.steps]
        return any(each is None or found[0] is None or (each.rows[0] != found[0].rows[0]).any() for each in found)

    def inputs(self) -> bool:
        """Compare the batches; false if ranks that must share them do not."""
        counts = [len({term.backward for terms in each.terms.values() for term in terms}) for each in self.steps]
        rank = self.apart(counts)
        if rank is not None:
            self.book.find("inputs", self.steps[rank], counts.index(min(counts)), "a rank with fewer micro-batches",
                           f"the ranks have {counts} micro-batches")
        for number, row in enumerate(zip(*(each.batches for each in self.steps), strict=False), 1):
            heads: dict[int, int] = {}
            self.samplers([each.epoch for each in row])
            for rank, batch in enumerate(row):
                of_row = self.records[rank].row
                if of_row and batch.given != row[of_row[0]].given:
                    self.book.find("inputs", self.steps[rank], rank, "different samples in a tensor-parallel group",
                                   f"ranks {said(of_row)} hold parts of the same layers and were given different "
                                   f"batches (micro-batch {number})", line=batch.line)
                    return False
                if of_row and batch.returned != row[of_row[0]].returned:
                    self.book.find("weights of the forward", self.steps[rank], rank, "another model in parts",
                                   f"the outputs differ on the tensor-parallel ranks {said(of_row)}: parts were not "
                                   "added, or the plan leaves out a module", line=batch.line)
                    return False
                head = of_row[0] if of_row else rank
                other = heads.setdefault(batch.given, head)
                if batch.given and other != head:
                    self.book.find("inputs", self.steps[rank], rank, "the same samples",
                                   f"ranks {other} and {rank} were given the same batch (micro-batch {number}): is "
                                   "there a DistributedSampler, or a seed that depends on the rank?", line=batch.line)
                    return True
        self.book.judge("inputs", EQUAL, "all batches of all ranks differ")
        return True

    def samplers(self, row: list[dict[str, Any]]) -> None:
        """Compare the samplers that have begun an epoch with the batches of a row."""
        first = row[0]
        for rank, each in enumerate(row if all(row) else ()):
            key = next((key for key in ("num_replicas", "seed", "epoch") if each[key] != first[key]), "")
            if key and each["samples"] == first["samples"]:
                self.book.find("inputs", self.steps[rank], rank, "the same samples",
                               f"the DistributedSampler has {key}={each[key]}, and {first[key]} on rank 0: the ranks "
                               "draw shares of different orders, which overlap", line=each["line"])
        if first and str(first) in self.book.epochs:
            self.book.find("inputs", self.steps[0], 0, "the same samples every epoch", "a DistributedSampler gives the "
                           "samples of an earlier epoch again: call sampler.set_epoch(epoch)", line=first["line"])
        self.book.epochs.add(str(first) if first else "")

    def settings(self) -> None:
        first = self.steps[0]
        for rank, each in enumerate(self.steps):
            for mine, theirs in zip(each.settings, first.settings, strict=False):
                key = next((key for key in theirs if mine.get(key) != theirs[key]), None)
                if key is not None:
                    named = "learning rate" if key == "lr" else key
                    self.book.find("update", each, rank, f"another {named} on a rank",
                                   f"{key} is {mine.get(key)}, and {theirs[key]} on rank 0")
            name = next((name for name, on in each.trains.items() if first.trains.get(name, on) != on), None)
            if name is not None:
                self.book.find("parameters", each, rank, "a parameter is frozen on one rank",
                               f"{name} has requires_grad={each.trains[name]}, and {first.trains[name]} on rank 0", name)
        unknown = self.records[0].unknown
        if unknown:
            self.book.find("parameters", first, 0, "an unregistered parameter",
                           f"the loss uses a parameter {unknown[0]} that belongs to no module of the model and to no "
                           "optimizer (a list instead of nn.ModuleList?)")

    def forwards(self) -> None:
        """Gathered weights are those of the shards, whose digests add up."""
        for rank, each in enumerate(self.steps):
            for name, (used, line) in each.used.items():
                shards = {step.weights[name][0]: step.weights[name][2] for step in self.steps if name in step.weights}
                if shards and sum(shards.values()) % 2**64 != used:
                    before = self.previous and sum({step.weights[name][0]: step.weights[name][2]
                                                    for step in self.previous if name in step.weights
                                                    }.values()) % 2**64 == used
                    cause = "stale gathered weights" if before else "weights changed between gather and use"
                    self.book.find("weights of the forward", each, rank, cause,
                                   f"the forward used values of {name} that are not those of its shards", name,
                                   line=line)
                    return
        self.book.judge("weights of the forward", EQUAL, "gathered weights are those of the shards")

    # -- gradients

    def gradients(self) -> None:
        if self.cleared():
            return
        wrong, judged = [], 0
        for name in self.steps[0].trains:
            if any(name in each.terms or name in each.before for each in self.steps):
                due = Due.of(name, self.records, self.steps, self.previous)
                judged += 1
                for view in due.views():
                    if due.apart(view).any():
                        wrong.append((name, due, view))
                        break
        scale, unscaled = self.steps[0].scale, self.steps[0].unscaled
        if wrong:
            self.explain(*wrong[0], len({name for name, *_ in wrong}))
        elif scale != 1 and not unscaled:
            self.book.find("gradient", self.steps[0], 0, "not unscaled",
                           f"the optimizer sees gradients {scale:g} times too large: optimizer.step() does not take "
                           "GradScaler's factor out, scaler.step(optimizer) does")
        elif judged:
            micro = max(len(terms) for each in self.steps for terms in each.terms.values())
            self.book.judge("gradient", WITHIN, f"{self.records[0].trainer or 'no trainer'}: {micro * len(self.ranks)} "
                            "terms, by the bound γ Σ|g|")
        self.clipping(bool(wrong))

    def cleared(self) -> bool:
        """Whether the script clears the gradients of micro-batches unused, in each step: once may be a choice."""
        for rank, each in enumerate(self.steps):
            lost = dropped(each)
            before = self.previous and dropped(self.previous[rank])
            if len({term.backward for term in lost}) > 1 or (lost and before):
                number = self.previous[rank] if before and self.previous else each
                self.book.find("gradient", number, rank, "gradient of the last micro-batch only",
                               "the gradients of earlier micro-batches are cleared (zero_grad in the loop)",
                               line=lost[0].line)
                return True
        return False

    def explain(self, name: str, due: "Due", view: "View", count: int) -> None:
        cause, text = cause_of(due, view)
        if not cause:
            return self.book.judge("gradient", NOT_JUDGED, text)
        others = f"; {count} of {len(self.steps[0].trains)} parameters are concerned" if count > 1 else ""
        terms = self.steps[view.rank].terms.get(name)
        self.book.find("gradient", self.steps[0], view.rank, cause, f"the gradient of {name}: {text}{others}", name,
                       int(due.apart(view).sum()), terms[-1].line if terms else "")
        return None

    # -- clipping

    def clipping(self, wrong: bool) -> None:
        of_all = [each.clips for each in self.steps]
        counts = [len(each) for each in of_all]
        if not any(counts):
            return self.book.judge("clipping", NOT_JUDGED, "clip_grad_norm_ was not called")
        if len(set(counts)) > 1:
            rank = counts.index(max(counts))
            return self.book.find("clipping", self.steps[rank], rank, "clipping on one rank",
                                  f"the ranks have clipped {counts} times", line=of_all[rank][0].line)
        if any(each.unscaled != step.unscaled for step in self.steps for each in step.clips):
            return self.book.find("clipping", self.steps[0], 0, "clipping before unscaling",
                                  f"clip_grad_norm_ saw gradients that GradScaler had multiplied by "
                                  f"{self.steps[0].scale:g}; call scaler.unscale_(optimizer) before it",
                                  line=of_all[0][0].line)
        clips: list[Clip] = [each[0] for each in of_all]
        if wrong or max(counts) > 1 or clips[0].order != 2:
            return self.book.judge("clipping", NOT_JUDGED, "the gradient is wrong, or is clipped in another way")
        parts = {key: norm for each in clips for key, norm in each.norms.items()}
        whole = sum(norm**2 for norm in parts.values())**0.5
        for rank, (each, step) in enumerate(zip(clips, self.steps, strict=True)):
            own = sum(norm**2 for norm in each.norms.values())**0.5
            before, after = (np.concatenate([part.rows[0] for part in found.values()] or [np.zeros(1)])
                             for found in (step.before, step.found))
            if before.shape != after.shape or not before.any():
                continue
            factor = float(before @ after / (before @ before))
            roundoff = max(part.roundoff for part in step.found.values())
            slack = 64 * roundoff + 1e-5
            if abs(factor - min(1.0, each.most / (whole + 1e-6))) <= slack:
                self.book.judge("clipping", WITHIN, "by the norm of the whole gradient")
            elif abs(factor - min(1.0, each.most / (own + 1e-6))) <= slack:
                return self.book.find("clipping", step, rank, "clipping by the local norm",
                                      f"gradients were clipped by {own:.6g}, the norm of this rank's part; the whole "
                                      f"gradient's is {whole:.6g}", line=each.line)
            elif np.abs(after - factor * before).max() > slack * np.abs(before).max():
                self.book.judge("clipping", NOT_JUDGED, "gradients were changed after clipping")
            else:
                return self.book.find("clipping", step, rank, "another norm",
                                      f"gradients were multiplied by {factor:.6g}; their norm is {whole:.6g}",
                                      line=each.line)
        return None


def said(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def dropped(step: Step) -> list[Term]:
    """Terms that were cleared unused, from the same line and the same weights as the last one."""
    found = []
    for terms in step.terms.values():
        last = terms[-1]
        found += [each for each in terms[:-1] if each.dropped and (each.line, each.version) == (last.line, last.version)]
    return found


@dataclass
class View:
    """The numbers of a sketch that one rank's gradient covers; `found` is None if there is no gradient."""

    rank: int
    mask: Array
    found: Array | None


@dataclass
class Due:
    """The gradient of a parameter that is due: the mean over ranks of the sums over micro-batches."""

    name: str
    terms: list[list[Sketched]]
    """For each rank the gradients of its micro-batches, without those that were cleared."""
    steps: list[Step]
    records: list[Record]
    stale: list[Sketched | None]
    """The gradients of the last update."""

    @classmethod
    def of(cls, name: str, records: list[Record], steps: list[Step], previous: list[Step] | None) -> "Due":
        terms = [[term.part for term in each.terms.get(name, []) if not term.dropped] for each in steps]
        return cls(name, terms, steps, records, [each.found.get(name) for each in previous or steps[:0]])

    def __post_init__(self) -> None:
        shapes = [part for of_rank in self.terms for part in of_rank]
        found = [each.before[self.name] for each in self.steps if self.name in each.before]
        like = (shapes or found)[0]
        self.size = like.rows.shape[1]
        self.micro = max(map(len, self.terms))
        ends = [(each.roundoff, each.smallest) for each in shapes + found]
        self.roundoff, self.smallest = max([*ends, self.records[0].reduced])
        first = self.steps[0]
        unscaled = first.clips[0].unscaled if first.clips else first.unscaled
        self.factor = 1 / first.scale if unscaled else 1.0

    def own(self, rank: int) -> Array:
        """The sum of a rank's micro-batches, after unscaling."""
        return sum((part.rows[0] for part in self.terms[rank]), np.zeros(self.size)) * self.factor

    def of_micro_batch(self, rank: int, number: int) -> Array:
        return self.terms[rank][number].rows[0] * self.factor

    def peers(self, rank: int) -> list[int]:
        """The ranks over which the mean is due: those whose gradients are of the same part."""
        keys = [of_rank[0].key if of_rank else None for of_rank in self.terms]
        key = keys[rank] or next(filter(None, keys), None)
        return [other for other, each in enumerate(keys) if each in (key, None)]

    def over(self, rank: int) -> float:
        """What the sum over the peers is divided by."""
        parts = [part for of_rank in self.terms for part in of_rank]
        if any(part.partial for part in parts):
            return len(self.peers(rank)) / len(self.records[rank].row or [rank])
        return self.records[0].divisor or len(self.peers(rank))

    def mean(self, rank: int) -> Array:
        return sum(map(self.own, self.peers(rank)), np.zeros(self.size)) / self.over(rank)

    def bound(self, rank: int, scale: float = 1.0) -> Array:
        """The largest rounding error of each number of `scale` times the mean, by the theorem in `sketch.py`."""
        rounds = max(self.micro, 1) * (len(self.terms) + 5) + 4
        sizes = sum((np.minimum(SURE, np.sqrt(part.rows[2])) * np.sqrt(part.rows[1])
                     for other in self.peers(rank) for part in self.terms[other]), np.zeros(self.size))
        counts = max((part.rows[2] for of_rank in self.terms for part in of_rank), key=np.sum,
                     default=np.ones(self.size))
        gamma = 1.0
        for count, unit in ((rounds, self.roundoff), (4, self.roundoff), (rounds + 200, 2.0**-53)):
            gamma *= 1 + count * unit / (1 - count * unit) if count * unit < 1 else np.inf
        allowed: Array = (gamma - 1) * abs(scale * self.factor) / self.over(rank) * sizes + (
            rounds + 4) * self.smallest * counts
        return allowed

    def views(self) -> Iterator[View]:
        """Each rank's gradient where it covers whole buckets, then the sum of the parts where none does."""
        left = np.ones(self.size, bool)
        parts: dict[Any, Sketched] = {}
        for rank, step in enumerate(self.steps):
            part = step.before.get(self.name)
            of_terms = next((each for each in self.terms[rank]), None) or next(
                (each for of_rank in self.terms for each in of_rank), None)
            if part is None:
                key = step.weights.get(self.name, (None,))[0]
                empty = key is not None and any(stop <= start for start, stop in key)
                if of_terms is not None and not empty:
                    yield View(rank, of_terms.rows[2] > 0, None)
                continue
            full = of_terms.rows[2] if of_terms is not None else part.rows[2]
            mask = (part.rows[2] == full) & (full > 0)
            if part.partial:
                parts[rank] = part
            else:
                parts.setdefault(part.key, part)
                left &= ~mask
                if mask.any():
                    yield View(rank, mask, part.rows[0])
        if left.any() and parts:
            total = sum((each.rows[0] for each in parts.values()), np.zeros(self.size))
            if any(each.partial for each in parts.values()):
                total = total * len(self.records[0].row or [0]) / len(parts)
            yield View(0, left & (total != 0), total)

    def apart(self, view: View) -> Array:
        """Which numbers are not those of the mean in any order of addition."""
        mean = self.mean(view.rank)
        if view.found is None:
            return view.mask & (mean != 0)
        with np.errstate(invalid="ignore"):
            outside = view.mask & ~(np.abs(view.found - mean) <= self.bound(view.rank))
        return outside & (np.isfinite(view.found) | np.isfinite(mean))

    def distance(self, value: Array, view: View) -> float:
        """How far the found gradient is from `value`."""
        assert view.found is not None
        return float(np.linalg.norm((view.found - value)[view.mask]))

    def ratio(self, view: View) -> float:
        """The number by which the mean is multiplied to come closest to the found gradient."""
        mean = self.mean(view.rank)[view.mask]
        return 0.0 if view.found is None else float(view.found[view.mask] @ mean / max(mean @ mean, 1e-300))


Explanation = tuple[str, str]
CLOSE = 0.1
"""A wrong program explains a gradient if it leaves at most this part of the distance to the mean."""


def candidates(due: Due, view: View) -> Iterator[tuple[Any, str, str]]:
    """What wrong programs would have got instead of the mean, each with its cause and words."""
    rank, peers, record, steps = view.rank, due.peers(view.rank), due.records[view.rank], due.steps
    ranks, scale, mean, own = len(steps), steps[0].scale, due.mean(view.rank), due.own(view.rank)
    over, micro = due.over(rank), due.micro if all(len(due.terms[each]) == due.micro for each in peers) else 0
    if due.stale and due.stale[rank] is not None:
        yield mean + due.stale[rank].rows[0], "zero_grad is missing", (
            "it is the mean, added to the gradient of the last update, which was not cleared (or optimizer.step() runs "
            "more often than zero_grad)")
    why = " (its process group has one rank)" if len(record.group) == 1 else (
        "" if record.trainer else " (no DDP or FSDP has wrapped the module that was called)")
    if len(peers) > 1 and record.row:
        yield own, "own part only", (f"it is the part of this rank; the gradient is the sum over the tensor-parallel "
                                     f"ranks {said(record.row)} (a module of parts that the plan leaves out?)")
    elif len(peers) > 1:
        yield own, "own gradient only", f"it is this rank's own gradient, not the mean over ranks{why}"
        yield own / len(peers), "own gradient only", (
            f"it is this rank's own gradient divided by {len(peers)}, never reduced{why}")
    means = [sum(due.of_micro_batch(other, k) for other in peers) / over for k in range(micro)]
    mine = [due.of_micro_batch(rank, k) for k in range(micro)]
    for number, which in ((micro - 1, "last"), (0, "first")) if micro > 1 else ():
        yield means[number], f"gradient of the {which} micro-batch only", (
            f"it is the mean over ranks of micro-batch {number + 1} of {micro}")
        yield mine[number], "own gradient only", (
            f"it is this rank's own gradient of micro-batch {number + 1}, not reduced")
    for cut in range(1, micro):
        yield sum(means[:cut]) + sum(mine[cut:]), "own gradient only", (
            f"micro-batches {cut + 1} to {micro} are this rank's own, not the mean over ranks: the last backward did "
            "not reduce")
    for value, cause, text in (
            (ranks, "N times the mean", f"it is the sum over {ranks} ranks: nobody divided by {ranks}"),
            (1 / ranks, "divided twice", f"it is the mean over ranks divided by {ranks} once more"),
            (scale, "not unscaled", f"it is {scale:g} times the mean: GradScaler's factor was not taken out"),
            (1 / scale, "unscaled twice", f"it is the mean divided by GradScaler's {scale:g} once more")):
        if value not in (1, 1 / due.micro) and abs(due.ratio(view) - value) < 0.01 * value:
            yield value * mean, cause, text
    total, at = sum(map(due.own, peers)), peers.index(rank)
    for other in peers if len(peers) > 2 else ():
        for divisor in (len(peers), len(peers) - 1):
            yield (total - due.own(other)) / divisor, "a rank is missing from the mean", (
                f"rank {other} is not in it; the sum is divided by {divisor}")
    for size in range(2, len(peers)):
        for members in (peers[at // size * size:][:size], peers[at % (len(peers) // size)::len(peers) // size]):
            if len(members) == size:
                yield sum(map(due.own, members)) / size, *(
                    ("own part only", f"it is the mean over ranks {said(members)} of the parts of this rank")
                    if record.row else
                    ("the mean of a smaller group", f"it is the mean over ranks {said(members)} only"))


def cause_of(due: Due, view: View) -> Explanation:
    """The cause and its explanation; an empty cause and a reason if this is not a finding."""
    if view.found is None or not view.found[view.mask].any():
        return "no gradient", "the optimizer sees none: synchronization is off, or it was cleared"
    mean = due.mean(view.rank)
    found = [(due.distance(value, view), cause, text) for value, cause, text in candidates(due, view)]
    nearest = min((each[0] for each in found), default=np.inf)
    if nearest <= CLOSE * due.distance(mean, view):
        return next((cause, text) for distance, cause, text in found if distance <= 2 * nearest)
    ratio, changed = due.ratio(view), all(each.changed for each in due.steps)
    if due.distance(ratio * mean, view) <= CLOSE * due.distance(mean, view):
        others = [due.ratio(each) for each in due.views()]
        if max(others) - min(others) > 1e-3 * abs(ratio):
            return "clipping by the local norm", "each rank has scaled the mean by a factor of its own: " + ", ".join(
                f"{each:.4g}" for each in others)
        if changed:
            return "", f"the script scales its gradients by {ratio:.6g} between backward and optimizer.step()"
    explanation = weighted(due, view)
    if explanation is not None:
        return explanation
    if changed and due.records[0].trainer:
        return "", "the script changes its gradients between backward and optimizer.step()"
    return "no order of addition explains it", (f"{int(due.apart(view).sum())} of {int(view.mask.sum())} numbers of "
                                                "its sketch are not those of the mean over ranks")


def weighted(due: Due, view: View) -> Explanation | None:
    """Another weighted sum of the micro-batches of all ranks; the weights by least squares, 1 in the mean."""
    peers = due.peers(view.rank)
    terms = [due.of_micro_batch(other, k)[view.mask] for other in peers for k in range(len(due.terms[other]))]
    if view.found is None or view.mask.sum() < 2 * len(terms) or len({len(due.terms[other]) for other in peers}) > 1:
        return None
    matrix, found = np.stack(terms, 1) / due.over(view.rank), view.found[view.mask]
    weights = np.linalg.lstsq(matrix, found)[0]
    if np.linalg.norm(matrix @ weights - found) > CLOSE * due.distance(due.mean(view.rank), view):
        return None
    weights = weights.reshape(len(peers), -1)
    of_ranks, of_parts = weights.mean(1), weights.mean(0)
    if np.ptp(of_ranks) > 1e-3 and (of_ranks > 0).all() and np.abs(weights - of_ranks[:, None]).max() < 1e-3:
        if abs(of_ranks.mean() - 1) < 1e-3:
            return "", "the script weighs the gradients of its ranks, by weights that add up to one"
        return "clipping by the local norm", (
            "each rank's gradient was scaled by a factor of its own before the reduction: "
            + ", ".join(f"{each:.4g}" for each in of_ranks))
    relative = of_parts / of_parts.min()
    if (np.abs(weights - of_parts).max() < 1e-3 and np.abs(relative - relative.round()).max() < 1e-3
            and of_parts.min() > 0 and relative.max() > 1.5):
        counts = " to ".join(f"{each:.0f}" for each in relative)
        return "N times the mean", f"micro-batches weigh {counts}: sums over the ranks were reduced again"
    return None
