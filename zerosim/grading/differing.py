"""Causes for other bits: a learner's stage step beside the library's, verb by verb and value by value.

Each function in `CAUSES` detects one kind of mistake and returns what was done and what to do instead, or None. The
first call with another value than the library's is the cause; later differences follow from it.
"""

from collections.abc import Callable

import numpy as np

from zerosim.allocation import Array
from zerosim.grading.gradients import what_gradient
from zerosim.grading.handed import hands_in_something_else
from zerosim.grading.stage_case import StageCase
from zerosim.grading.stage_words import SCALED, calls_otherwise, like, same, times_of
from zerosim.grading.witness import WitnessedStep
from zerosim.proofs.words import Observation
from zerosim.stages.state import GRADIENT


def begins_without_zero_grad(case: StageCase) -> str | None:
    """The previous step's gradients are still kept."""
    for rank in range(case.ranks):
        verbs = [call.verb for call in case.mine(rank).calls]
        if "loss" in verbs and "zero_grad" not in verbs:
            return ("zero_grad(batch) is not called: the last step's gradients are still kept, and this step's are "
                    "added to them; call it first")
    return None


def zeroes_too_late(case: StageCase) -> str | None:
    """zero_grad discards gradients of this step, or comes after the first loss."""
    for rank in range(case.ranks):
        verbs = [call.verb for call in case.mine(rank).calls]
        if "zero_grad" not in verbs:
            continue
        before, between = verbs[: verbs.index("zero_grad")], verbs[verbs.index("zero_grad") :]
        kept = next((verb for verb in before if verb in ("keep", "keep_shard")), None)
        if kept := kept or next((verb for verb in before if verb == "loss"), None):
            return (f"rank {rank} calls zero_grad(batch) after {'tape' if kept == 'loss' else 'replica'}.{kept}: the "
                    "gradients kept before are lost; call it first, once")
        if between.count("zero_grad") > 1:
            return (f"rank {rank} calls zero_grad(batch) {between.count('zero_grad')} times in one step, and each "
                    "discards the gradients kept before: call it first, once per step and not once per part")
    return None


def loses_inputs(case: StageCase) -> str | None:
    """The number of micro-batches in the loss is wrong."""
    for rank in range(case.ranks):
        mine, due = case.mine(rank).of("loss"), case.due(rank).of("loss")
        have = sum(len(call.handed[1]) for call in mine if len(call.handed) > 1 and isinstance(call.handed[1], list))
        wanted = sum(len(call.handed[1]) for call in due)
        if not mine or have == wanted:
            continue
        if case.mine(rank).after and have < wanted:
            return (f"rank {rank} runs {have} of its {wanted} micro-batches through forward and loss: run each of "
                    f"batch.inputs once; loop over all of replica.parts(batch)")
        if have > wanted:
            return f"rank {rank} passes {have} micro-batches to the loss and has {wanted}: pass each once"
    return None


def adds_before_it_reduces(case: StageCase) -> str | None:
    """Micro-batches are reduced together that must be reduced separately, or the reverse."""
    for rank in range(case.ranks):
        mine, due = len(case.mine(rank).of("loss")), len(case.due(rank).of("loss"))
        at_once = max((len(each) for call in case.mine(rank).of("loss") for each in call.handed[1:2]
                       if isinstance(each, list)), default=0)
        if mine == 1 < due == at_once:
            return (f"rank {rank} runs its {due} micro-batches together and reduces the sum of their gradients, which "
                    "is another order of addition: run forward and backward of each micro-batch and reduce its "
                    "gradients before the next; loop over batch.inputs and batch.targets")
        if due == 1 < mine:
            return (f"rank {rank} splits its micro-batches into {mine} parts, but replica.parts(batch) has one: "
                    f"gradients are then added over the ranks first, which is another order of addition")
    return None


def loses_a_part_of_the_loss(case: StageCase) -> str | None:
    """The loss differs, even if the gradients are right."""
    for rank in range(case.ranks):
        mine, due = case.mine(rank), case.due(rank)
        totals = [call.gave[0] for call in due.of("loss")]
        if not isinstance(mine.loss, np.ndarray) or like(mine.loss, totals[-1]):
            continue
        parts = [now if before is None else now - before
                 for before, now in zip([None, *totals[:-1]], totals, strict=True)]
        lost = [number for number, part in enumerate(parts) if like(mine.loss, totals[-1] - part)]
        if len(parts) > 1 and lost:
            return (f"the loss of rank {rank} lacks the loss of part {lost[0] + 1} of {len(parts)}: pass the loss so "
                    "far to tape.loss as its last argument, tape.loss(…, part.samples, loss), and begin with None")
        if said := times_of(mine.loss, totals[-1]):
            return f"the loss of rank {rank} is {said} what it should be: {SCALED}"
        return (f"rank {rank} returns {float(mine.loss.reshape(-1)[0]):.6g} as its loss, but the last call of "
                f"tape.loss gave {float(totals[-1].reshape(-1)[0]):.6g}: return the first result of that call")
    return None


def keeps_no_gradient(case: StageCase) -> str | None:
    for rank, unit in case.places:
        if (GRADIENT, unit) in case.due(rank).after and case.mine(rank).after and case.gradient(rank, unit) is None:
            return (f"rank {rank} keeps no gradient of {unit}: call replica.keep or replica.keep_shard for every unit "
                    "in replica.backward_units")
    return None


def keeps_another_gradient(case: StageCase) -> str | None:
    """The kept gradient is not the sum over all ranks."""
    for rank, unit in case.places:
        mine = case.gradient(rank, unit)
        if mine is None or (GRADIENT, unit) not in case.due(rank).after or not len(mine):
            continue
        due = case.due_gradient(rank, unit)
        if not like(mine, due) and not (np.allclose(mine, due, atol=1e-6) and not np.any(due)):
            return what_gradient(case, rank, unit, mine, due)
    return None


def adds_in_another_order(case: StageCase) -> str | None:
    """The kept gradient is the right sum with other last bits."""
    for rank, unit in case.places:
        mine = case.gradient(rank, unit)
        if mine is None or (GRADIENT, unit) not in case.due(rank).after or not len(mine):
            continue
        if not same(mine, case.due_gradient(rank, unit)):
            return (f"rank {rank} keeps the right gradient of {unit}, but added in another order, so its last bits "
                    "differ: add a rank's micro-batches left to right, then chunk c over the ranks as "
                    "((g[c+1] + g[c+2]) + …) + g[c], as replica.reduce_scatter does")
    return None


def updates_before_it_agrees(case: StageCase) -> str | None:
    """An update precedes `unscale_and_clip`, or that precedes the last kept gradient."""
    for rank in range(case.ranks):
        verbs = [call.verb for call in case.mine(rank).calls]
        if "unscale_and_clip" not in verbs:
            continue
        agreed = verbs.index("unscale_and_clip")
        if "update" in verbs[:agreed]:
            return (f"rank {rank} calls replica.update before replica.unscale_and_clip(); update does nothing before "
                    f"that: call unscale_and_clip once all gradients are kept, then update")
        if late := next((verb for verb in verbs[agreed:] if verb in ("keep", "keep_shard")), None):
            return (f"rank {rank} calls replica.unscale_and_clip() before replica.{late}: it computes the norm of all "
                    f"kept gradients, so call it once they are all kept, before the first update")
    return None


def goes_forward_twice_before_backward(case: StageCase) -> str | None:
    """Several parts run forward before the first runs backward."""
    for rank in range(case.ranks):
        verbs = [call.verb for call in case.mine(rank).calls if call.verb in ("loss", "backward")]
        ahead = verbs.index("backward") if "backward" in verbs else 0
        due = [call.verb for call in case.due(rank).calls if call.verb in ("loss", "backward")].index("backward")
        if ahead > due:
            return (f"rank {rank} runs {ahead} parts forward before it runs one backward: the tape runs the last part "
                    "backward first, so gradients use the activations of another part and are added in another "
                    "order; run each part forward and backward before the next, within the loop over "
                    "replica.parts(batch)")
    return None


def updates_step_by_step(case: StageCase) -> str | None:
    """An update is within the loop over parts."""
    for rank in range(case.ranks):
        updated: set[str] = set()
        for call in case.mine(rank).calls:
            if call.verb == "update":
                updated.add(call.unit)
            if call.verb in ("forward", "backward") and updated:
                return (f"rank {rank} runs {call.verb} of {call.unit} after it has updated "
                        f"{', '.join(sorted(updated))} in the same step: update after the loop, when all parts have "
                        "run backward")
    return None


def loses_optimizer_state(case: StageCase) -> str | None:
    """An optimizer slot is zero or missing after a step with updates."""
    for rank in range(case.ranks):
        seen = case.mine(rank)
        for (what, unit), due in case.due(rank).after.items():
            mine = seen.after.get((what, unit))
            lost = mine is None or not np.any(mine)
            if what not in ("weights", GRADIENT) and np.any(due) and lost and seen.of("update", unit) and (
                    seen.of("unscale_and_clip") and seen.after):
                return (f"the {what} of {unit} is zero on rank {rank} after the step: the optimizer's state must "
                        f"persist between steps; leave replica.state.optimizer to replica.update")
    return None


def does_not_update(case: StageCase) -> str | None:
    """A rank's own chunk of the weights is not the result of one update."""
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
        if said := updated_otherwise(seen, unit):
            return f"rank {rank}'s own chunk of {unit} {said}"
    return None


def why_not_updated(seen: WitnessedStep, unit: str) -> str:
    updates = seen.of("update", unit)
    first = next((number for number, call in enumerate(seen.calls) if call.verb == "update"), len(seen.calls))
    if not updates:
        return "it was never updated; call replica.update for every unit, on this rank's chunk"
    if not any(call.verb == "unscale_and_clip" for call in seen.calls[:first]):
        return ("replica.update does nothing before replica.unscale_and_clip(); call that once before the first "
                "update")
    if not any(call.lives for call in updates):
        return ("replica.update worked on a copy: it works in place, so pass it the kept weights themselves, "
                "replica.own(weights[unit]) or the shard")
    return "the updated values were overwritten afterwards"


def updated_otherwise(seen: WitnessedStep, unit: str) -> str | None:
    updates = seen.of("update", unit)
    if len(updates) > 1:
        return f"was updated {len(updates)} times in one step: call replica.update once for each unit"
    if not updates:
        return "was changed without replica.update: call it; it runs the optimizer and keeps its state"
    agreed = len(seen.of("unscale_and_clip"))
    if agreed > 1:
        return (f"was updated as if in a later step: replica.unscale_and_clip() counts the steps and was called "
                f"{agreed} times; call it once per step")
    return None


def publishes_otherwise(case: StageCase) -> str | None:
    """A rank's copy of another rank's chunk differs from the owner's."""
    for rank, unit in case.places:
        seen = case.mine(rank)
        mine, due = seen.after.get(("weights", unit)), case.due(rank).after.get(("weights", unit))
        if mine is None or due is None or len(mine) != len(due) or len(mine) == case.shard_lengths[unit]:
            continue
        for owner in range(case.ranks):
            now, then = case.own(owner, unit, mine), case.own(owner, unit, seen.before["weights", unit])
            if owner == rank or same(now, case.own(owner, unit, due)):
                continue
            if same(now, then):
                return (f"rank {rank}'s copy of rank {owner}'s chunk of {unit} is the value before the step: "
                        f"{why_not_published(seen, unit)}")
            return f"rank {rank}'s copy of rank {owner}'s chunk of {unit} {other_copy(case, rank, owner, unit, now)}"
    return None


def other_copy(case: StageCase, rank: int, owner: int, unit: str, now: Array) -> str:
    """A description of a copy that is not the owner's updated chunk."""
    for other in case.honest.units:
        full = case.due(rank).after["weights", other]
        for chunk in range(case.ranks):
            if (chunk, other) != (owner, unit) and same(now, case.own(chunk, other, full)):
                return f"holds chunk {chunk} of {other}: chunk r of a full buffer belongs to rank r"
    return (f"differs from the chunk that rank {owner} updated: all-gather the updated weights with "
            "replica.publish(unit, weights[unit]), and do not compute other ranks' chunks")


def why_not_published(seen: WitnessedStep, unit: str) -> str:
    verbs = [call.verb for call in seen.calls if call.unit == unit]
    published = [number for number, verb in enumerate(verbs) if verb in ("publish", "all_gather")]
    if not published:
        return "nothing published it; call replica.publish(unit, weights[unit]) after the update of each unit"
    if "update" in verbs and published[-1] < verbs.index("update"):
        return "it was published too early, before its owner had updated it; publish after replica.update"
    return "publish got weights that are not the updated ones: pass it the kept weights, weights[unit]"


def rounds_off(case: StageCase) -> str | None:
    """An array has another precision than the weights."""
    for rank in range(case.ranks):
        for call, due, _ in case.beside(rank):
            for mine, wanted in zip(call.handed, due.handed if due else (), strict=False):
                pair = isinstance(mine, np.ndarray) and isinstance(wanted, np.ndarray)
                if pair and mine.dtype != wanted.dtype:
                    return (f"rank {rank} passes an array of {mine.dtype} to {call.verb} of "
                            f"{call.unit or 'all'}; expected {wanted.dtype}: create buffers with the dtype of their "
                            f"contents, shard.dtype, not a fixed one")
    return None


def differs_somewhere(case: StageCase) -> str | None:
    """The first kept array that differs, if no cause is known."""
    for rank in range(case.ranks):
        for (what, unit), due in case.due(rank).after.items():
            mine = case.mine(rank).after.get((what, unit))
            if mine is not None and mine.shape == due.shape and not same(mine, due):
                return Observation(
                    f"rank {rank} passes the right arrays to all calls, but its {what} of {unit} differs from the "
                    "reference after the step: which other code writes to it?")
    return None


CAUSES: tuple[Callable[[StageCase], str | None], ...] = (
    begins_without_zero_grad,
    zeroes_too_late,
    rounds_off,
    loses_inputs,
    adds_before_it_reduces,
    goes_forward_twice_before_backward,
    updates_step_by_step,
    hands_in_something_else,
    updates_before_it_agrees,
    loses_optimizer_state,
    keeps_no_gradient,
    keeps_another_gradient,
    adds_in_another_order,
    does_not_update,
    publishes_otherwise,
    loses_a_part_of_the_loss,
    calls_otherwise,
    differs_somewhere,
)
"""The causes, in the order in which a step would show them."""


def why_it_differs(case: StageCase) -> str | None:
    """The first cause found."""
    return next(filter(None, (cause(case) for cause in CAUSES)), None)
