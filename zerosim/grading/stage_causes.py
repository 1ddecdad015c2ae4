"""Why a learner's stage goes wrong: its step beside our own, verb by verb and value by value, on a tiny scenario.

Each of `CAUSES` knows one kind of mistake, and says in words what was done and what to do instead, or None. Values are
held against those of the honest step: the weights that a unit should have had, each rank's own gradient, their sum, the
loss of each part. Where bits differ for a reason, values do so by far more than rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zerosim.allocation import Array
from zerosim.grading.witness import Call, Seen, Witness
from zerosim.report.figures import plural
from zerosim.stages.state import GRADIENT


@dataclass(frozen=True, eq=False)
class StageCase:
    """What `ranks` ranks did in step `step`, and what they should have done."""

    ranks: int
    step: int
    ours: Witness
    honest: Witness

    def mine(self, rank: int) -> Seen:
        return self.ours.seen.get((rank, self.step), Seen())

    def due(self, rank: int) -> Seen:
        return self.honest.seen[rank, self.step]

    @property
    def places(self) -> Iterator[tuple[int, str]]:
        """Each rank with each unit."""
        for unit in self.honest.units:
            for rank in range(self.ranks):
                yield rank, unit

    @cached_property
    def shard_lengths(self) -> dict[str, int]:
        """Of each unit."""
        return {call.unit: len(call.given) // self.ranks
                for call in self.due(0).of("forward") if call.given is not None}

    def own(self, rank: int, unit: str, array: Array) -> Array:
        """The chunk of `rank` in a full buffer, or a shard itself."""
        length = self.shard_lengths[unit]
        return array if len(array) == length else array[rank * length :][:length]

    def gradient(self, rank: int, unit: str) -> Array | None:
        """Of what `rank` keeps as the gradient, its own chunk."""
        kept = self.mine(rank).after.get((GRADIENT, unit))
        return None if kept is None else self.own(rank, unit, kept)

    def due_gradient(self, rank: int, unit: str) -> Array:
        return self.own(rank, unit, self.due(rank).after[GRADIENT, unit])


def like(mine: Array, due: Array) -> bool:
    """Equal but for rounding, and not all zero."""
    return mine.shape == due.shape and bool(np.any(due)) and np.allclose(mine, due, rtol=1e-3, atol=1e-6)


def factor(mine: Array, due: Array) -> float | None:
    """By what all of `due` is multiplied in `mine`; None where that is no one number, or is 1."""
    large = np.abs(due) > 1e-3 * np.max(np.abs(due), initial=1e-12)
    if mine.shape != due.shape or not large.any():
        return None
    found = float(np.median(mine[large] / due[large]))
    same = np.allclose(mine, found * due, rtol=1e-2, atol=1e-5 * float(np.max(np.abs(due))))
    return found if same and abs(found - 1) > 1e-2 and abs(found) > 1e-6 else None


def times(number: float) -> str:
    """
    >>> times(2.0), times(0.25), times(-1.0)
    ('2 times', '1/4 of', '-1 times')
    """
    inverse = 1 / number
    return f"1/{inverse:.3g} of" if inverse > 1 and abs(inverse - round(inverse)) < 0.05 else f"{number:.3g} times"


def begins_without_zero_grad(case: StageCase) -> str | None:
    """Gradients of the step before are still there."""
    if any(case.mine(rank).of("zero_grad") for rank in range(case.ranks)):
        return None
    return ("zero_grad(batch) is not called: the last step's gradients are still kept, and this step's are added to "
            "them; call it first of all")


def zeroes_too_late(case: StageCase) -> str | None:
    """Gradients are thrown away that have just been kept."""
    for rank in range(case.ranks):
        verbs = [*(call.verb for call in case.mine(rank).calls), "zero_grad"]
        kept = next((verb for verb in verbs[: verbs.index("zero_grad")] if verb in ("keep", "keep_shard")), None)
        if kept:
            return (f"rank {rank} calls zero_grad(batch) after replica.{kept}, which throws away what was just kept: "
                    "call it first of all")
    return None


def hands_over_another_units_gradient(case: StageCase) -> str | None:
    """What is reduced or kept for one unit is what backward gave for another."""
    for rank, unit in case.places:
        gave = {each: call.gave for each in case.honest.units for call in case.mine(rank).of("backward", each)}
        for call in [*case.mine(rank).of("reduce_scatter", unit), *case.mine(rank).of("reduce", unit)]:
            for other, gradient in gave.items():
                mine = gave.get(unit)
                if other != unit and same_arrays(call.given, gradient) and not same_arrays(call.given, mine):
                    return (f"rank {rank} hands the gradient of {other} to {call.verb} for {unit}: hand each unit its "
                            "own; backward goes through the units last to first")
    return None


def same_arrays(mine: Array | None, due: Array | None) -> bool:
    return mine is not None and due is not None and same(mine, due)


def scales_the_loss(case: StageCase) -> str | None:
    """The first loss that tape.loss gives is a multiple or a fraction of what it should be."""
    for rank in range(case.ranks):
        for mine, due in zip(case.mine(rank).of("loss")[:1], case.due(rank).of("loss"), strict=False):
            found = None if mine.gave is None or due.gave is None else factor(mine.gave, due.gave)
            if found is not None and any(abs(each - round(each)) < 1e-3 for each in (found, 1 / found)):
                return (f"tape.loss gives {times(found)} what it should on rank {rank}: hand it batch.samples, "
                        "the samples of all ranks together, by which it divides")
    return None


def loses_inputs(case: StageCase) -> str | None:
    """Fewer micro-batches or parts go forward than there are."""
    for rank in range(case.ranks):
        mine, due = case.mine(rank).of("forward"), case.due(rank).of("forward")
        for call, other in zip(mine, due, strict=False):
            if call.batches and call.batches < other.batches:
                return (f"rank {rank} lets {call.batches} of its {other.batches} micro-batches go forward: all of "
                        "part.inputs are the first activations")
        if len(mine) < len(due) and len(mine) % len(case.honest.units) == 0 and case.mine(rank).of("loss"):
            return (f"rank {rank} lets {plural(len(case.mine(rank).of('loss')), 'part')} of the batch go forward, of "
                    f"{len(case.due(rank).of('loss'))}: do all of it for every part in replica.parts(batch)")
    return None


def takes_units_in_another_order(case: StageCase) -> str | None:
    """Forward begins with the first unit, backward with the last."""
    for rank in range(case.ranks):
        for verb, words in UNIT_ORDERS:
            for call, other in zip(case.mine(rank).of(verb), case.due(rank).of(verb), strict=False):
                if call.unit != other.unit:
                    return f"rank {rank} goes {verb} through {call.unit} where {other.unit} is due: {words}"
    return None


UNIT_ORDERS = (
    ("forward", "forward goes through all of replica.units, first to last"),
    ("backward", "backward goes through replica.backward_units, last to first"),
)


def computes_with_other_weights(case: StageCase) -> str | None:
    """Weights that are handed to forward or backward are not what the unit should have."""
    for rank in range(case.ranks):
        for verb in ("forward", "backward"):
            for call in case.mine(rank).of(verb):
                said = other_weights(case, rank, call)
                if said:
                    return said
    return None


def other_weights(case: StageCase, rank: int, call: Call) -> str | None:
    """What is wrong with the weights of one call."""
    due = next((each.given for each in case.due(rank).of("forward", call.unit)), None)
    if due is None or call.given is None or same(call.given, due):
        return None
    for each in case.due(rank).of("forward"):
        if each.given is not None and each.unit != call.unit and same(call.given, each.given):
            return (f"rank {rank} goes {call.verb} through {call.unit} with the weights of {each.unit}: hand each unit "
                    "its own")
    if call.given.shape != due.shape:
        return None
    told = f"rank {rank} goes {call.verb} through {call.unit} with"
    before = [each.given for s in range(1, case.step) for each in case.honest.seen[rank, s].of("forward", call.unit)]
    if any(each is not None and same(call.given, each) for each in before):
        return (f"{told} the weights of a step before: they were gathered then, and kept; gather them anew in every "
                "step, after the update")
    wrong = [chunk for chunk in range(case.ranks)
             if not same(case.own(chunk, call.unit, call.given), case.own(chunk, call.unit, due))]
    if rank not in wrong and not case.mine(rank).of("publish"):
        return (f"{told} weights of which only its own chunk is right: nobody gathered the others; call "
                f"replica.gather({call.unit}), which all-gathers the shards")
    named = ", ".join(map(str, wrong))
    return (f"{told} other weights than it should have, in chunk{'s' * (len(wrong) > 1)} {named}: whose are they, and "
            "when were they gathered or written to?")


def same(mine: Array, due: Array) -> bool:
    return mine.tobytes() == due.tobytes()


def loses_a_part_of_the_loss(case: StageCase) -> str | None:
    """The loss is another, and the gradients need not be."""
    for rank in range(case.ranks):
        mine, due = case.mine(rank), case.due(rank)
        totals = [call.gave for call in due.of("loss")]
        if not isinstance(mine.loss, np.ndarray) or totals[-1] is None or like(mine.loss, totals[-1]):
            continue
        parts = [now if before is None else now - before
                 for before, now in zip([None, *totals[:-1]], totals, strict=True) if now is not None]
        lost = [number for number, part in enumerate(parts) if like(mine.loss, totals[-1] - part)]
        if len(parts) > 1 and lost:
            return (f"the loss of rank {rank} lacks that of part {lost[0] + 1} of {len(parts)}: hand the loss so far "
                    "to tape.loss as its last argument, tape.loss(…, part.samples, loss), and begin with None")
        found = factor(mine.loss, totals[-1])
        if found is not None:
            return f"the loss of rank {rank} is {times(found)} what it should be: {SCALED}"
    return None


SCALED = (
    "tape.loss has divided by the samples of all ranks already, so that losses and gradients are only added up, never "
    "divided or multiplied"
)


def keeps_no_gradient(case: StageCase) -> str | None:
    for rank, unit in case.places:
        if (GRADIENT, unit) in case.due(rank).after and case.mine(rank).after and case.gradient(rank, unit) is None:
            return (f"rank {rank} keeps no gradient of {unit}: call replica.keep or replica.keep_shard for every unit "
                    "in replica.backward_units")
    return None


def keeps_another_gradient(case: StageCase) -> str | None:
    """The gradient that is kept is not the sum over all ranks."""
    for rank, unit in case.places:
        mine = case.gradient(rank, unit)
        if mine is None or (GRADIENT, unit) not in case.due(rank).after or not len(mine):
            continue
        due = case.due_gradient(rank, unit)
        if not like(mine, due) and not (np.allclose(mine, due, atol=1e-6) and not np.any(due)):
            return f"{what_gradient(case, rank, unit, mine, due)}"
    return None


def what_gradient(case: StageCase, rank: int, unit: str, mine: Array, due: Array) -> str:
    """What a gradient is instead of the sum over all ranks."""
    told = f"rank {rank} keeps as the gradient of {unit}"
    alone = [call.gave for call in case.due(rank).of("backward", unit) if call.gave is not None]
    if alone and case.ranks > 1 and like(mine, case.own(rank, unit, sum_of(alone))):
        return (f"{told} that of rank {rank} alone: nobody has added the others'; keep what "
                "replica.reduce_scatter(unit, gradient) returns")
    before = case.honest.seen.get((rank, case.step - 1))
    if before and like(mine, due + case.own(rank, unit, before.after[GRADIENT, unit])):
        return f"{told} that of the step before and this one's: call zero_grad(batch) first of all"
    reduced = max(len(seen.of("reduce_scatter", unit)) + len(seen.of("reduce", unit))
                  for seen in map(case.mine, range(case.ranks)))
    parts = max(len(case.due(rank).of("loss")), 1)
    if reduced > parts:
        return (f"{told} what was reduced {reduced} times, where {parts} do{'es' * (parts == 1)}: what reduce_scatter "
                "returns is the sum over all ranks already, and must not be added up again")
    found = factor(mine, due)
    if found is not None:
        by_ranks = case.ranks > 1 and case.ranks in (round(found), round(1 / found))
        ranks = f" (there are {case.ranks} ranks)" * by_ranks
        return f"{told} {times(found)} what it should be{ranks}: {SCALED}"
    for chunk in range(case.ranks):
        if chunk != rank and like(mine, case.own(chunk, unit, case.due(chunk).after[GRADIENT, unit])):
            return f"{told} chunk {chunk} of it, which rank {chunk} owns: its own is replica.own(gradient)"
    for other in case.honest.units:
        if other != unit and like(mine, case.due_gradient(rank, other)):
            return f"{told} that of {other}: hand each unit its own gradient"
    if not np.any(mine):
        return f"{told} zeros: was it let go of, or overwritten, before it was kept?"
    for number in range(len(alone)):
        if len(alone) > 1 and like(mine, due - part_of_all(case, unit, number, rank)):
            return (f"{told} a sum without part {number + 1} of {len(alone)}: keep_shard adds to what earlier parts "
                    "left, so call it for every part, and zero_grad once a step")
        if len(alone) > 1 and like(mine, part_of_all(case, unit, number, rank)):
            return (f"{told} that of part {number + 1} of {len(alone)} alone: zero_grad comes once a step, not once a "
                    "part")
    return (f"{told} something that is no sum of the ranks' gradients: was it added to, or used again, after "
            "tape.backward had returned it?")


def sum_of(arrays: list[Array]) -> Array:
    total: Array = np.sum(np.stack(arrays), axis=0)
    return total


def part_of_all(case: StageCase, unit: str, number: int, rank: int) -> Array:
    """Of one part, the sum over all ranks: the chunk of `rank`."""
    found = [case.due(each).of("backward", unit)[number].gave for each in range(case.ranks)]
    return case.own(rank, unit, sum_of([each for each in found if each is not None]))


def updates_before_it_agrees(case: StageCase) -> str | None:
    """An update comes before the ranks have agreed on the step, and all gradients are kept by then."""
    for rank in range(case.ranks):
        verbs = [call.verb for call in case.mine(rank).calls]
        if "unscale_and_clip" in verbs and "update" in verbs[: verbs.index("unscale_and_clip")]:
            return (f"rank {rank} calls replica.update before replica.unscale_and_clip(): {NOT_YET} once all gradients "
                    "are kept, and update after it")
    return None


NOT_YET = "replica.update does nothing before that, which agrees on the step; call it once"


def loses_optimizer_state(case: StageCase) -> str | None:
    """After a step in which the weights were updated slots are zero, or gone."""
    for rank in range(case.ranks):
        seen = case.mine(rank)
        for (what, unit), due in case.due(rank).after.items():
            mine = seen.after.get((what, unit))
            lost = mine is None or not np.any(mine)
            if what not in ("weights", GRADIENT) and np.any(due) and lost and seen.of("update", unit) and (
                    seen.of("unscale_and_clip") and seen.after):
                return (f"the {what} of {unit} is zero on rank {rank} after the step: the optimizer's state must stay "
                        "from step to step; leave replica.state.optimizer to replica.update")
    return None


def does_not_update(case: StageCase) -> str | None:
    """A rank's own chunk of the weights is not what one update makes of it."""
    for rank, unit in case.places:
        mine, seen = case.mine(rank).after.get(("weights", unit)), case.mine(rank)
        if mine is None or ("weights", unit) not in seen.before:
            continue
        now, before = case.own(rank, unit, mine), case.own(rank, unit, seen.before["weights", unit])
        due = case.own(rank, unit, case.due(rank).after["weights", unit])
        if same(now, due):
            continue
        if same(now, before):
            return f"rank {rank}'s own chunk of {unit} is the value before the step: {why_not_updated(seen, unit)}"
        said = updated_otherwise(seen, unit)
        if said:
            return f"rank {rank}'s own chunk of {unit} {said}"
    return None


def why_not_updated(seen: Seen, unit: str) -> str:
    updates = seen.of("update", unit)
    first = next((number for number, call in enumerate(seen.calls) if call.verb == "update"), len(seen.calls))
    if not updates:
        return "it was never updated; call replica.update for every unit, on this rank's chunk"
    if not any(call.verb == "unscale_and_clip" for call in seen.calls[:first]):
        return ("replica.update does nothing before replica.unscale_and_clip(), which agrees on the step; call it once "
                "before")
    if not any(call.lives for call in updates):
        return ("replica.update worked on a copy: it works in place, so hand it the kept weights themselves, "
                "replica.own(weights[unit]) or the shard")
    return "what was updated was written over afterwards"


def updated_otherwise(seen: Seen, unit: str) -> str | None:
    updates = seen.of("update", unit)
    if len(updates) > 1:
        return f"was updated {len(updates)} times in one step: call replica.update once for each unit"
    if len(seen.of("unscale_and_clip")) > 1:
        return "was updated as if in a later step: call replica.unscale_and_clip() once a step, since it counts updates"
    return None


def publishes_otherwise(case: StageCase) -> str | None:
    """A rank's copy of another's chunk is not what its owner has."""
    for rank, unit in case.places:
        seen = case.mine(rank)
        mine, due = seen.after.get(("weights", unit)), case.due(rank).after.get(("weights", unit))
        if mine is None or due is None or len(mine) != len(due) or len(mine) == case.shard_lengths[unit]:
            continue
        for owner in range(case.ranks):
            now, then = case.own(owner, unit, mine), case.own(owner, unit, seen.before["weights", unit])
            if owner != rank and same(now, then) and not same(now, case.own(owner, unit, due)):
                return (f"rank {rank}'s copy of rank {owner}'s chunk of {unit} is the value before the step: "
                        f"{why_not_published(seen, unit)}")
    return None


def why_not_published(seen: Seen, unit: str) -> str:
    verbs = [call.verb for call in seen.calls if call.unit == unit]
    published = [number for number, verb in enumerate(verbs) if verb in ("publish", "all_gather")]
    if not published:
        return "nothing published it; call replica.publish(unit, weights[unit]) after the update of each unit"
    if "update" in verbs and published[-1] < verbs.index("update"):
        return "it was published too early, before its owner had updated it; publish after replica.update"
    return "what was published is not what the update changed: hand publish the kept weights, weights[unit]"


def calls_otherwise(case: StageCase) -> str | None:
    """A verb is called more or less often for a unit than our own step calls it."""
    for rank in range(case.ranks):
        mine, due = case.mine(rank), case.due(rank)
        for verb in ("gather", "reduce_scatter", "reduce", "all_gather", "publish", "update", "unscale_and_clip"):
            for unit in ["", *case.honest.units]:
                found, wanted = len(mine.of(verb, unit)), len(due.of(verb, unit))
                alike = {"reduce": "reduce_scatter", "reduce_scatter": "reduce"}.get(verb)
                if alike and found + len(mine.of(alike, unit)) == wanted + len(due.of(alike, unit)):
                    continue
                if found != wanted:
                    for_unit = f" for {unit}" * bool(unit)
                    return f"rank {rank} calls {verb}{for_unit} {often(found)}, where {often(wanted)} is due"
    return None


def often(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def ranks_part_ways(case: StageCase) -> str | None:
    """Ranks do not call the same collectives in the same order."""
    first = [(call.verb, call.unit) for call in case.mine(0).calls if call.verb in TOGETHER]
    for rank in range(1, case.ranks):
        mine = [(call.verb, call.unit) for call in case.mine(rank).calls if call.verb in TOGETHER]
        for (verb, unit), (other, its_unit) in zip(first, mine, strict=False):
            if (verb, unit) != (other, its_unit):
                return (f"rank 0 calls {verb} for {unit or 'all'} where rank {rank} calls {other} for "
                        f"{its_unit or 'all'}: "
                        "all ranks must call the same collectives, for the same units, in the same order")
        for one, its, another, others in ((0, first, rank, mine), (rank, mine, 0, first)):
            if case.mine(another).after and len(its) > len(others):
                more = " for ".join(filter(None, its[len(others)]))
                return (f"rank {one} calls {more}, and rank {another} ends its step without: all ranks must call the "
                        "same collectives, for the same units, in the same order")
        if case.mine(rank).calls and abs(len(first) - len(mine)) > 1:
            return (f"rank 0 calls {plural(len(first), 'collective')}, rank {rank} {len(mine)}: all ranks must call "
                    "the same ones, in the same order")
    return None


TOGETHER = ("gather", "reduce_scatter", "reduce", "all_gather", "publish")


CAUSES: tuple[Callable[[StageCase], str | None], ...] = (
    begins_without_zero_grad,
    zeroes_too_late,
    loses_inputs,
    takes_units_in_another_order,
    computes_with_other_weights,
    hands_over_another_units_gradient,
    scales_the_loss,
    updates_before_it_agrees,
    loses_optimizer_state,
    keeps_no_gradient,
    keeps_another_gradient,
    does_not_update,
    publishes_otherwise,
    loses_a_part_of_the_loss,
    calls_otherwise,
)
"""In the order in which a step would show them."""


def why_it_fails(case: StageCase) -> str | None:
    """Of a step that raised something: what it had done up to there."""
    causes = (begins_without_zero_grad, zeroes_too_late, ranks_part_ways, takes_units_in_another_order,
              hands_over_another_units_gradient, computes_with_other_weights)
    return next(filter(None, (cause(case) for cause in causes)), None)


def why_it_differs(case: StageCase) -> str | None:
    """The first cause that is found."""
    return next(filter(None, (cause(case) for cause in CAUSES)), None)
