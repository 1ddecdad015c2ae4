"""The reasons for which a gradient is not the mean over ranks and micro-batches: a table of hypotheses.

Each hypothesis computes what a certain wrong program would have got, from the gradients of every micro-batch of every
rank, and holds only if all elements of the found gradient are that, within rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zerosim.torch.verdicts.gradients import MeanGradient
from zerosim.torch.verdicts.rounding import ulps
from zerosim.torch.verdicts.split import part_of
from zerosim.torch.verdicts.trainers import TrainerFacts


@dataclass
class WrongGradient:
    """Everything known of one wrong gradient. Tensors in `found[r]` and `each[r]` are rank r's part, at `where[r]`."""

    parameter: str
    due: MeanGradient
    found: dict[int, Any]
    where: dict[int, Any]
    each: dict[int, list[Any]]
    peers: list[int]
    micro_batches: int
    trainer: TrainerFacts
    scale: float
    scalars_reduced: int
    inexact: bool
    """Whether a forward computed again gave different bits, so that gradients are close, not equal."""
    unscaled: bool
    """Whether a GradScaler has taken its factor out."""
    rows: dict[int, list[int]]
    """The ranks of tensor parallelism that share each rank's samples."""
    changed: bool
    """Whether the script has changed the gradient between backward and the update, on all ranks."""

    def part(self, rank: int, value: Any) -> Any:
        return part_of(value, self.where[rank])

    def is_found(self, value: Any, rank: int, scale: float = 1.0) -> bool:
        """Whether rank `rank` found `value`, which is at most about `scale` times as large as the mean's terms."""
        found = self.found[rank]
        if found is None:
            return False
        found, value = found.double(), self.part(rank, value)
        if self.inexact:
            size = torch.linalg.vector_norm(value)
            return bool(size > 0) and bool(torch.linalg.vector_norm(found - value) < 0.02 * size)
        slack = 4 * self.part(rank, self.due.bound(self.found[rank].dtype, max(abs(scale), 1.0) * len(self.peers)))
        return bool(((found - value).abs() <= slack).all())

    def everywhere(self, value: Any, scale: float = 1.0) -> bool:
        """Whether all ranks found `value`, and it is not the mean, nor zero."""
        mean = self.due.mean
        if not bool(((value - mean).abs() > 1e-3 * mean.abs().max()).any()):
            return False
        return all(self.is_found(value, rank, scale) for rank in self.peers)

    def ratio(self, rank: int) -> float | None:
        """The number by which all elements of the mean were multiplied; None if there is no single one."""
        found, mean = self.found[rank], self.part(rank, self.due.mean)
        if found is None or not mean.numel() or not bool(mean.any()):
            return None
        large = mean.abs() > 1e-2 * mean.abs().max()
        ratios = found.double()[large] / mean[large]
        middle = float(ratios.median())
        close = (ratios - middle).abs() <= (0.05 if self.inexact else 1e-3) * abs(middle)
        return middle if bool(close.all()) and middle != 0 else None


Explanation = tuple[str, str]
Hypothesis = Callable[[WrongGradient, int], Explanation | None]


def nothing(at: WrongGradient, rank: int) -> Explanation | None:
    """No gradient at all."""
    found = at.found[rank]
    if found is None or not bool(found.any()):
        return "no gradient", "the optimizer sees none: synchronization is off, or it was cleared"
    return None


def own_only(at: WrongGradient, rank: int) -> Explanation | None:
    """The rank's own gradient, not reduced; or its own divided by the number of ranks."""
    if len(at.peers) == 1:
        return None
    own = at.due.brought[at.peers.index(rank)].double() * at.due.factor
    if torch.dist(own, at.due.mean) <= 1e-6 * own.norm():
        return None
    why = " (no_sync, or requires_gradient_sync is off)"
    if len(at.trainer.group) == 1:
        why = " (its process group has one rank)"
    elif at.trainer.hook:
        why = f" (the communication hook {at.trainer.hook})"
    elif at.trainer.name == "no trainer":
        why = " (no DDP or FSDP has wrapped the module that was called)"
    if at.is_found(own, rank, len(at.peers)) and not at.is_found(at.due.mean, rank):
        return "own gradient only", f"it is this rank's own gradient, not the mean over ranks{why}"
    if at.is_found(own / len(at.peers), rank):
        return "own gradient only", f"it is this rank's own gradient divided by {len(at.peers)}, never reduced{why}"
    return None


def last_only(at: WrongGradient, rank: int) -> Explanation | None:
    """The mean over ranks of one micro-batch."""
    if at.micro_batches < 2 or not all(len(at.each[other]) == at.micro_batches for other in at.peers):
        return None
    for number in (at.micro_batches - 1, 0):
        mean = sum(at.each[other][number].double() for other in at.peers) / len(at.peers) * at.due.factor
        if bool((at.part(rank, mean) != 0).any()) and at.everywhere(mean):
            which = "last" if number else "first"
            return (f"gradient of the {which} micro-batch only",
                    f"it is the mean over ranks of micro-batch {number + 1} of {at.micro_batches}")
        own = at.each[rank][number].double() * at.due.factor
        if at.is_found(own, rank):
            return "own gradient only", f"it is this rank's own gradient of micro-batch {number + 1}, not reduced"
    return None


def some_only_reduced(at: WrongGradient, rank: int) -> Explanation | None:
    """Some micro-batches are means, the others this rank's own: synchronization was off in the last one."""
    count = at.micro_batches
    if count < 2 or not all(len(at.each[other]) == count for other in at.peers):
        return None
    means = [sum(at.each[other][k].double() for other in at.peers) / len(at.peers) for k in range(count)]
    for cut in range(1, count):
        mixed = (sum(means[:cut]) + sum(each.double() for each in at.each[rank][cut:])) * at.due.factor
        if at.is_found(mixed, rank, len(at.peers)):
            return "own gradient only", (f"micro-batches {cut + 1} to {count} are this rank's own, not the mean over "
                                         "ranks: the last backward did not reduce")
    return None


def multiple(at: WrongGradient, rank: int) -> Explanation | None:
    """The mean times N, 1/N, K, 1/K or the scaler's factor."""
    ratio = at.ratio(rank)
    if ratio is None or any(at.ratio(other) is None for other in at.peers if at.found[other] is not None
                            and at.found[other].numel()):
        return None
    ranks, count = len(at.peers), at.micro_batches
    others = [at.ratio(other) or ratio for other in at.peers]
    if max(others) - min(others) > (0.05 if at.inexact else 1e-3) * abs(ratio):
        return "clipping by the local norm", (
            "each rank has scaled the mean by a factor of its own: " + ", ".join(f"{each:.4g}" for each in others))

    def near(value: float) -> bool:
        return abs(ratio - value) <= (0.05 if at.inexact else 2e-3) * abs(value)

    if ranks > 1 and near(ranks):
        return "N times the mean", f"it is the sum over {ranks} ranks: nobody divided by {ranks}"
    if ranks > 1 and near(1 / ranks) and count != ranks:
        return "divided twice", f"it is the mean over ranks divided by {ranks} once more"
    if at.scale != 1 and near(at.scale):
        return "not unscaled", f"it is {at.scale:g} times the mean: GradScaler's factor was not taken out"
    if at.scale != 1 and near(1 / at.scale):
        return "unscaled twice", f"it is the mean divided by GradScaler's {at.scale:g} once more"
    if at.trainer.divided_by is not None and near(ranks / at.trainer.divided_by):
        words = f"it is {ratio:.4g} times the mean: the divide factor is {at.trainer.divided_by:g}"
        return "a different divisor", words
    return None


def part_only(at: WrongGradient, rank: int) -> Explanation | None:
    """The part of one rank of tensor parallelism, where the gradient is the sum over their parts."""
    row = at.rows[rank]
    parts = [at.found[other] for other in row if at.where[other] == at.where[rank] and at.found[other] is not None]
    if len(row) < 2 or len(parts) < len(row):
        return None
    mean = at.part(rank, at.due.mean)
    if torch.dist(sum(each.double() for each in parts), mean) < 1e-4 * mean.norm():
        return "own part only", (f"it is the part of this rank; the gradient is the sum over the tensor-parallel ranks "
                                 f"{', '.join(map(str, row))} (a module of parts that the plan leaves out?)")
    return None


def rank_missing(at: WrongGradient, rank: int) -> Explanation | None:
    """The sum without one rank, over all or over the others."""
    if len(at.peers) < 3:
        return None
    total = at.due.mean * len(at.peers)
    for index, other in enumerate(at.peers):
        rest = total - at.due.brought[index].double() * at.due.factor
        for divisor in (len(at.peers), len(at.peers) - 1):
            if at.everywhere(rest / divisor):
                return "a rank is missing from the mean", f"rank {other} is not in it; the sum is divided by {divisor}"
    return None


def group_mean(at: WrongGradient, rank: int) -> Explanation | None:
    """The mean over a smaller group of ranks."""
    for size in range(2, len(at.peers)):
        start = at.peers.index(rank) // size * size
        for members in (at.peers[start:start + size], at.peers[at.peers.index(rank) % (len(at.peers) // size)::
                                                               len(at.peers) // size]):
            mean = sum(at.due.brought[at.peers.index(each)].double() for each in members) / len(members)
            if len(members) == size and at.is_found(mean * at.due.factor, rank, 2):
                return "the mean of a smaller group", f"it is the mean over ranks {', '.join(map(str, members))} only"
    return None


def weighted(at: WrongGradient, rank: int) -> Explanation | None:
    """Another weighted sum of the micro-batches of all ranks; the weights by least squares, 1 in the mean."""
    found = at.found[rank]
    each = [[at.part(rank, one).double().reshape(-1) for one in at.each[other]] for other in at.peers]
    terms = [one for of_rank in each for one in of_rank]
    if found is None or at.inexact or found.numel() < 2 * len(terms) or len({len(of_rank) for of_rank in each}) > 1:
        return None
    matrix, ranks = torch.stack(terms, 1) * (at.due.factor / len(at.peers)), len(at.peers)
    solution = torch.linalg.lstsq(matrix, found.double().reshape(-1, 1)).solution
    weights = solution.reshape(ranks, -1)
    slack = 4 * at.part(rank, at.due.bound(found.dtype, float(weights.abs().max()) * ranks)).reshape(-1)
    if bool(((matrix @ solution).reshape(-1) - found.double().reshape(-1)).abs().gt(slack).any()):
        return None
    of_ranks, of_parts = weights.mean(1), weights.mean(0)
    if bool((of_ranks - of_ranks[0]).abs().max() > 1e-3) and bool((of_ranks > 0).all()) and bool(
            (weights - of_ranks[:, None]).abs().max() < 1e-3):
        if abs(float(of_ranks.mean()) - 1) < 1e-3:
            return "", "the script weighs the gradients of its ranks, by weights that add up to one"
        return "clipping by the local norm", (
            "each rank's gradient was scaled by a factor of its own before the reduction: "
            + ", ".join(f"{float(one):.4g}" for one in of_ranks))
    relative = of_parts / of_parts.min()
    alike = bool((weights - of_parts).abs().max() < 1e-3) and bool((relative - relative.round()).abs().max() < 1e-3)
    if alike and bool(of_parts.min() > 0) and bool(relative.max() > 1.5):
        counts = " to ".join(f"{float(one):.0f}" for one in relative)
        return "N times the mean", f"micro-batches weigh {counts}: sums over the ranks were reduced again"
    return None


def some_elements(at: WrongGradient, rank: int) -> Explanation:
    """The elements that are wrong, and how far, where no hypothesis holds."""
    found = at.found[rank]
    mean = at.part(rank, at.due.mean)
    outside = at.due.at(at.where[rank]).apart(found)
    count = int(outside.sum())
    distance = ulps(found.float(), mean.float())
    first = tuple(outside.nonzero()[0].tolist()) if count else ()
    if not count:
        unequal = found != mean.to(found.dtype)
        return "different bits", (f"the sum in the declared order has different bits; it is within the rounding of "
                                  f"some other order, up to {distance} ulps from the mean, in up to "
                                  f"{int(unequal.sum())} elements")
    equal = "" if count == found.numel() else f", and {found.numel() - count} are equal to it within rounding"
    return "no order of addition explains it", (
        f"{count} of {found.numel()} elements are not the mean over ranks{equal}; the first is {list(first)}, "
        f"the largest distance {distance} ulps")


HYPOTHESES: tuple[Hypothesis, ...] = (
    nothing, own_only, part_only, last_only, some_only_reduced, multiple, rank_missing, group_mean, weighted)


def cause_of(at: WrongGradient, rank: int) -> Explanation:
    """The cause and its explanation; an empty cause and a reason if this is not a finding."""
    found = at.found[rank]
    near = found is not None and not bool(at.due.at(at.where[rank]).apart(found).any())
    for hypothesis in () if near else HYPOTHESES:
        explanation = hypothesis(at, rank)
        if explanation is not None:
            unsure = choice(at, explanation[0])
            return ("", unsure) if unsure else explanation
    unsure = ""
    if at.inexact and len(at.rows[rank]) == 1:
        unsure = "forwards computed again give different bits (compiled or not deterministic)"
    ratio = None if near else at.ratio(rank)
    if at.changed and at.trainer.name != "no trainer":
        unsure = unsure or "the script changes its gradients between backward and optimizer.step()"
    if ratio is not None and abs(ratio - 1) > 1e-3 and at.is_found(ratio * at.due.mean, rank, ratio):
        unsure = unsure or f"the script scales its gradients by {ratio:.6g} between backward and optimizer.step()"
    return ("", unsure) if unsure else some_elements(at, rank)


def choice(at: WrongGradient, cause: str) -> str:
    """Why a cause can be the script's choice; empty if it cannot."""
    scaled = cause in ("N times the mean", "a different divisor")
    if scaled and at.scalars_reduced and at.trainer.divided_by is not None:
        return "the script sets FSDP2's divide factor and reduces a number itself: it may normalise by all tokens"
    if cause == "unscaled twice" and not at.unscaled:
        return "the script takes GradScaler's factor out by itself"
    return ""
