"""Is a gradient the mean over ranks and micro-batches? Right answers are tried first, then what wrong programs compute.

Sketches are linear, so the sketch of what any program would have got is computed from those of the terms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from zerosim.core.allocation import Array
from zerosim.torch.check.record import Record, Sketched, Step, Term, bucket_length, counted

SURE = 8.0
"""As in `sketch.py`: an error of more standard deviations is not a rounding error."""
CLOSE = 0.1
"""A wrong program explains a gradient if it leaves at most this part of the distance to the mean."""
CHANGED = "the script changes its gradients between backward and optimizer.step()"
"""A reason why a gradient is not judged, unless it is the mean times a factor."""
of_buckets = lru_cache(4096)(counted)
Explanation = tuple[str, str, dict[str, bool]]
"""The cause of a wrong gradient, its words and evidence; no cause and a reason if it is not judged."""


def listed(ranks: list[int]) -> str:
    """Ranks as text."""
    return ", ".join(map(str, ranks))


@dataclass
class View:
    """The numbers of a sketch that the gradient of one rank covers; `gradient` is None if there is no gradient.

    Where no rank has whole buckets, it is the sum over ranks; `others` have other parts of the parameter.
    """

    rank: int
    mask: Array
    gradient: Array | None
    others: tuple[int, ...] = ()


@dataclass
class Answer:
    """A right answer for the gradient of a parameter: the mean over ranks of the sums over micro-batches.

    `terms` are those of each rank; `micro` is the number of micro-batches of the step.
    """

    name: str
    terms: list[list[Term]]
    steps: list[Step]
    records: list[Record]
    previous: list[Step] | None
    micro: int
    factor: float = 1.0
    """By what the sum of the terms is multiplied besides: 1/scale, 1/micro."""
    lacks_cleared: bool = False
    """Whether terms that the script has cleared are left out."""
    divided: bool = False
    """Whether the script divides by the number of micro-batches after backward."""
    summed: bool = False
    """Whether it is the sum over the ranks of tensor parallelism: of a parameter that each uses for its own part."""
    parts: list[Sketched] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = [step.unclipped.get(self.name) or step.gradients.get(self.name) for step in self.steps]
        self.parts = [term.part for of_rank in self.terms for term in of_rank]
        gradients = [gradient for gradient in self.seen if gradient is not None]
        like = (self.parts or gradients)[0]
        self.size = len(like.sums)
        self.length = bucket_length(max(1, int(np.prod(like.shape))))
        # FSDP2 casts one micro-batch at once to the dtype in which it reduces; others may reduce in that of the terms.
        cast = gradients and self.micro == 1 and self.records[0].facts.trainer == "FSDP2"
        narrow = gradients if cast else self.parts + gradients
        self.roundoff, self.smallest = max([*((sketch.roundoff, sketch.smallest) for sketch in narrow),
                                            self.records[0].facts.reduced])

    def own(self, rank: int) -> Array:
        """The sum of a rank's micro-batches."""
        total: Array = sum((term.part.sums for term in self.terms[rank]), np.zeros(self.size))
        return total * self.factor

    def peers(self, rank: int) -> list[int]:
        """The ranks over which the mean is due: those whose gradients are of the same part."""
        keys = [of_rank[0].part.key if of_rank else None for of_rank in self.terms]
        key = keys[rank] if keys[rank] is not None else next((key for key in keys if key is not None), None)
        return [other for other, other_key in enumerate(keys) if other_key in (key, None)]

    def over(self, rank: int) -> float:
        """What the sum over the peers is divided by."""
        if self.summed or any(part.partial for part in self.parts):
            return len(self.peers(rank)) / len(self.records[rank].facts.row or [rank])
        return self.records[0].facts.divisor or len(self.peers(rank))

    def mean(self, rank: int) -> Array:
        total: Array = sum(map(self.own, self.peers(rank)), np.zeros(self.size))
        return total / self.over(rank)

    def expected(self, view: View) -> Array:
        """The mean where the view is."""
        return sum(map(self.mean, view.others), self.mean(view.rank))

    def allowed(self, view: View) -> Array:
        """The largest rounding error where the view is."""
        return sum(map(self.bound, view.others), self.bound(view.rank))

    def bound(self, rank: int) -> Array:
        """The largest rounding error of each number of the mean, by the theorems in `sketch.py`.

        A term is added to the sum of its rank and to those of the others, for each micro-batch anew if each is reduced;
        scaling by a power of two rounds nothing, by another number before and after the reduction twice.
        """
        peers = self.peers(rank)
        exact = len(peers).bit_count() == 1 and self.micro.bit_count() == 1
        rounds = max(self.micro, 1) * (len(self.terms) + (0 if exact else 2)) + (
            1 + 2 * (len({part.roundoff for part in self.parts}) > 1 or self.records[0].facts.reduced[0] > 0)
            + (self.factor.hex().lstrip("-") != f"0x1.0000000000000p{self.factor.hex().partition('p')[2]}"))
        parts = [term.part for other in peers for term in self.terms[other]]
        counts = of_buckets(parts[0].shape, parts[0].key) if parts else np.ones(self.size)
        sizes = sum((np.sqrt(part.squares) for part in parts), np.zeros(self.size)) * np.minimum(SURE, np.sqrt(counts))
        gamma = 1.0
        for count, unit in ((rounds, self.roundoff), (rounds + 200 + self.length / 64, 2.0**-53)):
            gamma *= 1 + count * unit / (1 - count * unit) if count * unit < 1 else np.inf
        allowed: Array = (gamma - 1) * abs(self.factor) / self.over(rank) * sizes
        return allowed + (rounds + 4) * self.smallest * counts

    @cached_property
    def views(self) -> list[View]:
        """Each rank's gradient where it covers whole buckets, then the sum of the parts where none does."""
        left, parts, views = np.ones(self.size, bool), dict[object, Sketched](), list[View]()
        for rank, (step, part) in enumerate(zip(self.steps, self.seen, strict=True)):
            of_terms = next((term.part for term in self.terms[rank]), None) or next(iter(self.parts), None)
            if part is None:
                key = step.weights[self.name].key if self.name in step.weights else None
                empty = key is not None and any(stop <= start for start, stop in key)
                if of_terms is not None and not empty:
                    views.append(View(rank, of_buckets(of_terms.shape, of_terms.key) > 0, None))
                continue
            of_part = of_buckets(part.shape, part.key)
            full = of_buckets(of_terms.shape, of_terms.key) if of_terms is not None else of_part
            mask = (of_part == full) & (full > 0)
            if part.partial:
                parts[rank] = part
                continue
            parts.setdefault(part.key, part)
            left &= ~mask
            if mask.any():
                views.append(View(rank, mask, part.sums))
        if left.any() and parts:
            total: Array = sum((part.sums for part in parts.values()), np.zeros(self.size))
            if any(part.partial for part in parts.values()):
                total = total * len(self.records[0].facts.row or [0]) / len(parts)
            heads = {self.peers(rank)[0] for rank in range(len(self.steps))} - {self.peers(0)[0]}
            views.append(View(0, left & (total != 0), total, (*sorted(heads),)))
        return views

    def differing(self, view: View) -> Array:
        """Which numbers are not those of the mean in any order of addition."""
        mean = self.expected(view)
        if view.gradient is None:
            return view.mask & np.not_equal(mean, 0.0)
        apart: Array = view.mask & ~(np.abs(view.gradient - mean) <= self.allowed(view))
        return apart

    def is_value(self, view: View, value: Array) -> bool:
        """Whether the gradient is this value of a wrong program, within the bound of its rounding."""
        if view.gradient is None:
            return False
        norm, usual = (float(np.linalg.norm(numbers[view.mask])) for numbers in (value, self.expected(view)))
        last = [step.gradients[self.name] for step in (self.previous or ()) if self.name in step.gradients]
        sizes = np.sqrt(sum((part.squares for part in last if len(part.squares) == self.size), np.zeros(self.size)))
        allowed = self.allowed(view) * max(1.0, norm / max(usual, 1e-300)) + 4 * SURE * self.roundoff * sizes
        return bool((np.abs(view.gradient - value) <= allowed)[view.mask].all())

    def factors(self) -> tuple[float, float]:
        """Between which factors is that by which the gradient is the mean, on all ranks, within the bound of rounding.

        The first is larger than the second if there is none. The factor is that of least squares. A multiplication
        rounds no more often than the mean does.
        """
        least, most = 0.0, np.inf
        for view in self.views:
            if view.gradient is None:
                return np.inf, 0.0
            ratio, slack, fits = multiple(self.expected(view)[view.mask], view.gradient[view.mask],
                                          3 * self.allowed(view)[view.mask])
            if ratio <= 0 or not fits:
                return np.inf, 0.0
            least, most = max(least, ratio - slack), min(most, ratio + slack)
        return least, most

    def unlike_on_the_row(self) -> bool:
        """Whether the ranks of tensor parallelism have different gradients of a parameter that each of them holds."""
        row = set(self.records[0].facts.row)
        ranks = [rank for rank, record in enumerate(self.records) if record.facts.rank in row and self.terms[rank]]
        return len(ranks) > 1 and not any(part.partial for part in self.parts) and any(
            (np.abs(self.own(rank) - self.own(ranks[0])) > self.bound(rank)).any() for rank in ranks[1:])

    def wrong(self) -> View | None:
        """The first view that is not the mean."""
        return next((view for view in self.views if self.differing(view).any()), None)

    def infinite(self) -> tuple[int, str] | None:
        """The first rank with a number that is NaN or infinite, and where it is; None if there is none."""
        for rank, of_rank in enumerate(self.terms):
            if not all(np.isfinite(term.part.squares).all() for term in of_rank):
                return rank, "already in the rank's own backward"
        return next(((rank, "only after the reduction") for rank, part in enumerate(self.seen)
                     if part is not None and not np.isfinite(part.squares).all()), None)

    def distance(self, value: Array, view: View) -> float:
        """How far the found gradient is from `value`."""
        assert view.gradient is not None
        return float(np.linalg.norm((view.gradient - value)[view.mask]))

    def ratio(self, view: View) -> float:
        """The number by which the mean is multiplied to come closest to the found gradient."""
        mean = self.expected(view)[view.mask]
        return 0.0 if view.gradient is None else float(view.gradient[view.mask] @ mean / max(mean @ mean, 1e-300))


def multiple(numbers: Array, product: Array, error: Array, smallest: float = 0.0) -> tuple[float, float, bool]:
    """The factor between numbers and their product, how far rounding may move it, and whether that explains all.

    The factor is that of least squares, the error that of the product for a factor of 1.
    """
    size = max(float(numbers @ numbers), 1e-300)
    factor = float(numbers @ product) / size
    error = abs(factor) * error + smallest
    slack = float(np.abs(numbers) @ error) / size
    return factor, slack, bool(numbers.any() and (
        np.abs(product - factor * numbers) <= error + slack * np.abs(numbers)).all())


def answers(name: str, records: list[Record], steps: list[Step], previous: list[Step] | None, micro: int,
            micro_kept: int) -> list[Answer]:
    """Every right answer: all terms, or those that the script has not cleared; divided in the loss or afterwards.

    The first is the usual one. A script that accumulates in buffers of its own clears what it has added to them.
    """
    every = [[term for term in step.terms.get(name, []) if not term.by_hand] for step in steps]
    if not any(every):
        every = [step.terms.get(name, []) for step in steps]
    kept = [[term for term in terms if not term.cleared] for terms in every]
    first = steps[0]
    clipped_early = first.unscaled and first.clips and not first.clips[0].unscaled  # a finding of its own
    scale = 1.0 if clipped_early or (first.within and not first.unscaled) else first.scale
    choices = [(every, max(micro, 1), False)]
    if kept != every:
        choices = [(kept, max(micro_kept, 1), True), *choices]
    alternatives = [Answer(name, terms, steps, records, previous, count, 1 / scale / (count if divided else 1), lacks,
                           divided) for divided in (False, True) for terms, count, lacks in choices]
    if records[0].facts.row and alternatives[0].unlike_on_the_row():
        alternatives += [replace(answer, summed=True) for answer in alternatives]
    return alternatives


def candidates(answer: Answer, view: View) -> Iterator[tuple[Array, str, str]]:
    """What wrong programs would have got instead of the mean, each with its cause and words."""
    rank, peers, facts, steps = view.rank, answer.peers(view.rank), answer.records[view.rank].facts, answer.steps
    ranks, scale, mean, own = len(steps), steps[0].scale, answer.mean(view.rank), answer.own(view.rank)
    over = answer.over(rank)
    micro = answer.micro if all(len(answer.terms[peer]) == answer.micro for peer in peers) else 0
    stale = answer.previous and answer.previous[rank].gradients.get(answer.name)
    if stale and len(stale.sums) == answer.size:
        yield mean + stale.sums, "zero_grad is missing", (
            "it is the mean, added to the gradient of the last update, which was not cleared (or optimizer.step() runs "
            "more often than zero_grad)")
    why = " (its process group has one rank)" if len(facts.group) == 1 else (
        "" if facts.trainer else " (no DDP or FSDP has wrapped the module that was called)")
    if len(peers) > 1 and facts.row:
        yield own, "own part only", (f"it is the part of this rank; the gradient is the sum over the tensor-parallel "
                                     f"ranks {listed(facts.row)} (a module of parts that the plan leaves out?)")
    elif len(peers) > 1:
        yield own, "own gradient only", f"it is this rank's own gradient, not the mean over ranks{why}"
        yield own / len(peers), "own gradient only", (
            f"it is this rank's own gradient divided by {len(peers)}, never reduced{why}")
    zeros = np.zeros(answer.size)
    of_micro = {other: [term.part.sums * answer.factor for term in answer.terms[other]] for other in peers}
    means: list[Array] = [sum((of_micro[other][k] for other in peers), zeros) / over for k in range(micro)]
    own_terms = of_micro[rank]
    for number, which in ((micro - 1, "last"), (0, "first")) if micro > 1 else ():
        yield means[number], f"gradient of the {which} micro-batch only", (
            f"it is the mean over ranks of micro-batch {number + 1} of {micro}")
    for cut in range(1, micro):
        yield sum(means[:cut], zeros) + sum(own_terms[cut:]), "own gradient only", (
            f"micro-batches {cut + 1} to {micro} are this rank's own, not the mean over ranks: the last backward did "
            "not reduce")
    for value, cause, text in (
            (ranks, "N times the mean", f"it is the sum over {ranks} ranks: nobody divided by {ranks}"),
            (1 / ranks, "divided twice", f"it is the mean over ranks divided by {ranks} once more"),
            (scale, "not unscaled", f"it is {scale:g} times the mean: the factor of the loss was not taken out"),
            (1 / scale, "unscaled twice", f"it is the mean divided by GradScaler's {scale:g} once more")):
        if value != 1 and abs(answer.ratio(view) - value) < 0.01 * value:
            yield value * mean, cause, text
    total, at = sum(map(answer.own, peers), zeros), peers.index(rank)
    for other in peers if len(peers) > 2 else ():
        for divisor in (len(peers), len(peers) - 1):
            yield (total - answer.own(other)) / divisor, "a rank is missing from the mean", (
                f"rank {other} is not in it; the sum is divided by {divisor}")
    for size in range(2, len(peers)):
        for members in (peers[at // size * size :][:size], peers[at % (len(peers) // size) :: len(peers) // size]):
            if len(members) == size:
                yield sum(map(answer.own, members), zeros) / size, *(
                    ("own part only", f"it is the mean over ranks {listed(members)} of the parts of this rank")
                    if facts.row else
                    ("the mean of a smaller group", f"it is the mean over ranks {listed(members)} only"))


def cause_of(answer: Answer, view: View, others: list[Answer]) -> Explanation:
    """The cause and its explanation; an empty cause and a reason if this is neither found nor suspicious.

    `others` are the other right answers: a cause must explain the gradient better than each of them.
    """
    facts = answer.records[0].facts
    touched = [step.touched for step in answer.steps]
    known = {"untouched": not any(touched), "scaler": answer.steps[0].scaler, "trainer": bool(facts.trainer) and not (
        facts.own_hook or facts.divisor or facts.row or facts.communicates)}
    if view.gradient is None or not view.gradient[view.mask].any():
        if any(touched) and any(part.sums.any() for step in answer.steps for part in step.gradients.values()):
            return "", "the script takes gradients away from some parameters", {}
        return "no gradient", "the optimizer sees none: synchronization is off, or it was cleared", known
    mean = answer.mean(view.rank)
    values = [(answer.distance(value, view), value, cause, text) for value, cause, text in candidates(answer, view)]
    nearest = min((distance for distance, *_ in values), default=np.inf)
    near = min((other.distance(other.expected(view), view) for other in others), default=np.inf)
    if near <= min(2 * nearest, CLOSE * answer.distance(mean, view)):
        near_it = "it is near the mean, and rounded by more than its dtype: 16 bits on the way?"
        return "", CHANGED if any(touched) else near_it, {}
    if nearest <= CLOSE * answer.distance(mean, view):
        value, cause, text = next(values[1:] for values in values if values[0] <= 2 * nearest)
        same = answer.is_value(view, value)
        if any(touched) and not same:
            return "", CHANGED, {}
        if cause in ("N times the mean", "divided twice"):
            if answer.steps[0].count >= 1 and answer.steps[0].count % 1 == 0:
                return "", f"the loss may have a divisor of all ranks, which the script has reduced ({text})", {}
            if facts.communicates:
                return "", f"the loss may be one of all ranks, which communicate within the forward ({text})", {}
        apart = {"together": True} if "the last backward did not reduce" in text else {}
        return cause, text, known | apart | {"bound": same}
    ratio = answer.ratio(view)
    if answer.distance(ratio * mean, view) <= CLOSE * answer.distance(mean, view):
        ratios = [answer.ratio(other) for other in answer.views]
        if max(ratios) - min(ratios) > 1e-3 * abs(ratio):
            factors = ", ".join(f"{factor:.4g}" for factor in ratios)
            return "clipping by the local norm", f"each rank has scaled the mean by a factor of its own: {factors}", {
                "bound": answer.is_value(view, ratio * mean)}
        if all(touched):
            return "", f"{CHANGED}, by about {ratio:.6g}", {}
    return next(filter(None, (weighted(right, view, known) for right in (answer, *others))), None) or unexplained(
        answer, view, touched)


def unexplained(answer: Answer, view: View, touched: list[bool]) -> Explanation:
    """A distance beyond the bound is a finding only if nothing else could have changed what the check has seen."""
    facts = answer.records[0].facts
    if facts.own_hook:
        return "", "the script's own communication hook reduces to something other than the mean", {}
    if all(touched) or (touched[view.rank] and not facts.trainer):
        return "", CHANGED, {}
    if not facts.trainer and not facts.row:
        return "", "the script reduces its gradients itself, to something other than the mean", {}
    here = "; the script has changed the gradient on this rank" if any(touched) else ""
    return "no order of addition explains it", (
        f"{answer.differing(view).sum()} of {view.mask.sum()} numbers of its sketch are not those of the mean over "
        f"ranks{here}"), {"untouched": not any(touched)}


def weighted(answer: Answer, view: View, known: dict[str, bool]) -> Explanation | None:
    """Another weighted sum of the micro-batches of all ranks; the weights by least squares, 1 in the mean."""
    peers = answer.peers(view.rank)
    terms = [answer.factor * term.part.sums[view.mask] for other in peers for term in answer.terms[other]]
    micro_batches = {len(answer.terms[peer]) for peer in peers}
    if view.gradient is None or not terms or view.mask.sum() < 2 * len(terms) or len(micro_batches) > 1:
        return None
    matrix, gradient = np.stack(terms, 1) / answer.over(view.rank), view.gradient[view.mask]
    if np.linalg.matrix_rank(matrix) < len(terms):
        return None
    weights = np.linalg.lstsq(matrix, gradient)[0]
    if np.linalg.norm(matrix @ weights - gradient) > CLOSE * answer.distance(answer.mean(view.rank), view):
        return None
    value = np.zeros(answer.size)
    value[view.mask] = matrix @ weights
    known = known | {"bound": answer.is_value(view, value)}
    weights = weights.reshape(len(peers), -1)
    of_ranks, of_parts = weights.mean(1), weights.mean(0)
    if np.ptp(of_ranks) > 1e-3 and (of_ranks > 0).all() and np.abs(weights - of_ranks[:, None]).max() < 1e-3:
        if abs(of_ranks.mean() - 1) < 1e-3:
            return "", "the script weighs the gradients of its ranks, by weights that add up to one", {}
        if answer.steps[0].clips:
            factors = ", ".join(f"{weight:.4g}" for weight in of_ranks)
            return "clipping by the local norm", (
                f"each rank's gradient was scaled before the reduction, by its own factor: {factors}"), {"bound": False}
        relative = of_ranks / of_ranks.min()
        if np.abs(relative - relative.round()).max() < 1e-3 and not all(step.touched for step in answer.steps):
            counts = " to ".join(f"{weight:.0f}" for weight in relative)
            return "a rank counts more than once", f"the gradients of the ranks weigh {counts} in it", known
        return "", "the script weighs the gradients of its ranks", {}
    ratios = of_parts[1:] / of_parts[:-1] if of_parts.min() > 0 else np.zeros(0)
    times = max(ratios[0], 1 / ratios[0]) if len(ratios) else 1.0
    if np.abs(weights - of_parts).max() < 1e-3 and times > 1.5 and np.ptp(ratios) < 1e-3 > abs(times - round(times)):
        counts = " to ".join(f"{weight:.3g}" for weight in of_parts / of_parts.min())
        return "N times the mean", (f"micro-batches weigh {counts}: what was accumulated is reduced, or multiplied, "
                                    "again with each micro-batch"), known
    return None
