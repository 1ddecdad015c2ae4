"""The first call of a step with another value than the library's step passes, and the source of that value."""

from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.grading.stage_case import StageCase
from zerosim.grading.stage_words import SCALED, like, often, same, times_of
from zerosim.grading.witness import VerbCall
from zerosim.numerics.precisions import PRECISIONS
from zerosim.proofs.case import listed

ARGUMENTS = {
    "forward": ("weights", "activations"), "backward": ("weights", "the upstream gradient"),
    "loss": ("the loss's name", "outputs", "targets", "samples", "the loss so far"),
    "reduce_scatter": ("its gradient",), "reduce": ("its gradient",),
}
"""The names of the arguments of each checked verb, in order."""
ORDERS = {"forward": "forward goes through all of replica.units, first to last",
          "backward": "backward goes through replica.backward_units, last to first"}


def hands_in_something_else(case: StageCase) -> str | None:
    """The first call of any rank that passes another value than the library's step."""
    found = [(number, rank, said) for rank in range(case.ranks)
             for number, said in [first_otherwise(case, rank)] if said]
    return min(found)[-1] if found else None


def first_otherwise(case: StageCase, rank: int) -> tuple[int, str | None]:
    """The number of a rank's first call that differs from the library's, and the error."""
    expected = {verb: [call.unit for call in case.due(rank).of(verb)] for verb in ORDERS}
    made: dict[str, int] = dict.fromkeys(ORDERS, 0)
    for number, (call, due, part) in enumerate(case.beside(rank)):
        if call.verb in ORDERS:
            wanted = expected[call.verb][made[call.verb] :][:1]
            made[call.verb] += 1
            if wanted and wanted != [call.unit]:
                where = f"rank {rank} runs {call.verb} of {call.unit}; expected {wanted[0]}"
                return number, f"{where}: {ORDERS[call.verb]}"
        if call.verb == "loss" and made["forward"] < part * len(expected["forward"]) // case.parts:
            never = [unit for unit in case.honest.units if not case.mine(rank).of("forward", unit)]
            named = f"{', '.join(never)} has not run forward" if never else "not every unit has run forward"
            where = f" in part {part}" * (case.parts > 1)
            return number, f"rank {rank} calls tape.loss{where}, but {named}: {ORDERS['forward']}"
        if call.verb in ARGUMENTS:
            said = otherwise(case, rank, call, due, part)
            if said:
                return number, said
    return 0, None


def otherwise(case: StageCase, rank: int, call: VerbCall, due: VerbCall | None, part: int) -> str | None:
    """The error of one call."""
    named = f"{'tape' if call.verb in ('forward', 'backward', 'loss') else 'replica'}.{call.verb}"
    where = f"rank {rank}: {named}{f' of {call.unit}' * bool(call.unit)}{f' in part {part}' * (case.parts > 1)}"
    if due is None:
        alike = ("reduce", "reduce_scatter") if call.verb in ("reduce", "reduce_scatter") else (call.verb,)
        times, enough = (sum(len(seen.of(verb, call.unit)) for verb in alike)
                         for seen in (case.mine(rank), case.due(rank)))
        why = ": it already returns the sum over all ranks" * (call.verb in ("reduce_scatter", "reduce"))
        return None if call.verb == "loss" else f"{where} is called {often(times)}; expected {often(enough)}{why}"
    for name, mine, wanted in zip(ARGUMENTS[call.verb], call.handed, due.handed, strict=False):
        if name == "its gradient" and (narrow := rounded_to(mine, wanted)):
            return (f"{where} gets its gradient rounded to {narrow}: pass the unrounded gradient and declare the "
                    f"rounding, @stage(…, wire=\"{narrow}\"), so that the reference rounds too")
        if equal(mine, wanted) or (name == "the loss so far" and mine is not None):
            continue
        if name == "weights" and isinstance(mine, np.ndarray) and isinstance(wanted, np.ndarray):
            return other_weights(case, rank, call, mine, wanted)
        if name == "its gradient" and lacks_earlier_parts(case, rank, call.unit, mine, wanted):
            return (f"{where} gets the gradient of that part alone: pass replica.unreduced, which holds the sum of "
                    f"earlier parts, to tape.backward as its last argument")
        if said := other_value(case, rank, name, mine, wanted):
            return f"{where} gets as {name} {said}"
    if call.verb == "loss" and len(due.handed) > 4 and due.handed[4] is not None and len(call.handed) == 4:
        return (f"{where} does not get the loss so far, its last argument: begin with None, and pass it on from part "
                f"to part")
    return None


def lacks_earlier_parts(case: StageCase, rank: int, unit: str, mine: Any, due: Any) -> bool:
    """Whether a gradient lacks only the sum of earlier parts."""
    so_far = [call.gradient for call in case.due(rank).of("backward", unit) if call.gradient is not None][:-1]
    arrays = isinstance(mine, np.ndarray) and isinstance(due, np.ndarray) and mine.shape == due.shape
    return bool(arrays and so_far and so_far[-1].shape == due.shape and like(mine, due - so_far[-1]))


def rounded_to(mine: Any, due: Any) -> str | None:
    """The 16-bit precision to which a gradient was rounded, bf16 or fp16; None if it was not."""
    arrays = isinstance(mine, np.ndarray) and isinstance(due, np.ndarray) and mine.shape == due.shape
    if not arrays or same(mine, due):
        return None
    return next((narrow for narrow in ("bf16", "fp16")
                 if same(mine, due.astype(PRECISIONS[narrow].weights).astype(mine.dtype))), None)


def equal(mine: Any, due: Any) -> bool:
    """Whether two values have equal bytes, or equal numbers up to rounding."""
    if isinstance(mine, np.ndarray) and isinstance(due, np.ndarray):
        return same(mine, due) or like(mine, due)
    if isinstance(mine, list | tuple) and isinstance(due, list | tuple):
        return len(mine) == len(due) and all(map(equal, mine, due))
    return type(mine) is type(due) and not isinstance(mine, np.ndarray) and bool(mine == due)


def other_value(case: StageCase, rank: int, name: str, mine: Any, due: Any) -> str | None:
    """The source of a value, and the expected value."""
    has, wanted = case.whose(mine, rank), case.whose(due, rank) or shape(due)
    if name == "samples":
        return (f"{mine}; expected {due}: pass it batch.samples, the samples of all ranks, by which it divides"
                if isinstance(mine, int) else f"{mine}; expected batch.samples, {due}")
    if name == "the loss's name":
        return f"{mine!r}; expected replica.loss_name, {due!r}"
    if name == "the loss so far":
        return "None; expected the loss of the parts before: begin with None, and pass it on from part to part"
    if has is None and isinstance(mine, np.ndarray) and isinstance(due, np.ndarray):
        found = times_of(mine, due)
        has = f"{found} {wanted}" if found else None
    if name == "its gradient" and due is None and mine is not None:
        return (f"{has or shape(mine)} before the last part: pass the gradient to replica.at_boundary(part, unit, "
                f"gradient) first, which accumulates it until the last part")
    advice = of_gradient(has or "") if name == "its gradient" else ADVICE.get(name, "")
    if has and "an array, not a list" in has:
        return f"{has}; expected {wanted}: a list with one array for each micro-batch"
    if has is None and isinstance(mine, list) and isinstance(due, np.ndarray):
        has = "a list"
    return f"{has or shape(mine)}; expected {wanted}{advice}"


def of_gradient(has: str) -> str:
    """The advice for a wrong gradient."""
    if "the upstream gradient" in has:
        return ": tape.backward returns the upstream gradient first, then the unit's own gradient"
    if " times " in has or has.startswith("1/"):
        return f": {SCALED}"
    return ": pass each unit its own gradient, as backward returned it" if "own gradient" in has else ""


ADVICE = {
    "activations": ": pass each unit the result of the unit before it, and the first one part.inputs",
    "the upstream gradient": ": pass the last unit the second result of tape.loss, and each other unit the first "
                          "result of backward of the next unit",
    "outputs": ": pass tape.loss the result of the last unit",
    "targets": ": pass part.targets of the part that ran forward",
}


def shape(value: Any) -> str:
    """
    >>> shape([np.zeros((2, 3))]), shape(np.zeros(4)), shape(None)
    ('a list of 1 array of 2 × 3', 'an array of 4', 'None')
    """
    if isinstance(value, np.ndarray):
        return f"an array of {' × '.join(map(str, value.shape))}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], np.ndarray):
        return (f"a {type(value).__name__} of {len(value)} array{'s' * (len(value) > 1)} of "
                f"{' × '.join(map(str, value[0].shape))}")
    return f"{value!r}" if isinstance(value, int | float | None) else str(value)


# Weights: the source of each element.


def other_weights(case: StageCase, rank: int, call: VerbCall, mine: Array, due: Array) -> str:
    """The error in the weights of one call."""
    told = f"rank {rank} runs {call.verb} of {call.unit} with"
    has = case.whose(mine, rank)
    if has and " of step " in has:
        return (f"{told} {has}: they were kept in a cache, a global or an attribute; gather them again in every step, "
                f"after the update")
    if has and "shard" in has:
        return (f"{told} {has} alone; expected its full weights: replica.gather({call.unit}) returns them and writes "
                "nothing into replica.state.weights")
    if has:
        return f"{told} {has}: pass each unit its own weights"
    if mine.shape != due.shape:
        return f"{told} {shape(mine)}; expected {shape(due)}: its full weights"
    return f"{told} the wrong weights: {stretches(case, call.unit, mine, due, rank)}"


def stretches(case: StageCase, unit: str, mine: Array, due: Array, rank: int) -> str:
    """The shards in a buffer in their order, and the expected order."""
    length, size = case.shard_lengths[unit], case.ranks
    order = [next((c for c in range(size) if same(mine[place * length :][:length], due[c * length :][:length])), None)
             for place in range(size)]
    if order == [(place + rank) % size for place in range(size)] and size > 1:
        return (f"its shards are in the order {', '.join(map(str, order))}, its own first, then in the order of "
                "arrival: rank r's shard must be in place r on every rank")
    if set(order) == {rank} and size > 1:
        return f"its own shard is in every place: gather the other shards too, replica.gather({unit})"
    if None not in order and len(set(order)) == size:
        return (f"its shards are in the order {', '.join(map(str, order))}: rank r's shard must be in place r")
    known, found = elements(case), []
    for place in [place for place in range(size) if order[place] != place]:
        stands = what_stands(case, mine[place * length :][:length], known)
        found.append(f"the place of rank {place}'s shard of {unit} holds {stands}")
    right = [place for place in range(size) if order[place] == place]
    others = [each for each in case.honest.units if each != unit]
    if right == [rank] and "zeros" in found[0]:
        found.append(f"weights with only its own shard filled; replica.gather({unit}) gathers the others")
    elif right:
        found.append(f"{listed('rank', right)} {'have their shards' if len(right) > 1 else 'has its shard'} in place")
    return "; ".join([*found[:2], *found[2:][-1:]]) + CUT_AS_PUT * any(
        f" of {other}" in each for each in found for other in others)


CUT_AS_PUT = (": an all-gather of several units returns all shards of rank 0, then all of rank 1; take each unit's "
              "shard from every rank's part, in the order in which the shards were joined")
Elements = dict[bytes, set[tuple[int, str, int]]]


def elements(case: StageCase) -> Elements:
    """The steps, units and elements in which each value of the weights occurs."""
    found: Elements = {}
    for step in range(1, case.step + 1):
        for unit in case.honest.units:
            full = case.weights(unit, step)
            for number, each in enumerate([] if full is None else full):
                if each != 0:
                    found.setdefault(each.tobytes(), set()).add((step, unit, number))
    return found


def what_stands(case: StageCase, part: Array, known: Elements) -> str:
    """The unit and rank of these weights, in words."""
    if not np.any(part):
        return "zeros: nothing was written there"
    owners: list[str] = []
    for each in part:
        for step, unit, number in sorted(known.get(each.tobytes(), ()), reverse=True)[:1]:
            late = "" if step == case.step else f" of step {step}"
            owners.append(f"rank {number // case.shard_lengths[unit]}'s of {unit}{late}")
    if not owners:
        return "values of no unit: is the buffer unfilled, or of another dtype?"
    names = list(dict.fromkeys(owners))
    return f"weights of {' and '.join(names[:3])}"
