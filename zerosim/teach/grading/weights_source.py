"""The source of weights that are not the expected ones: their unit, step and rank, shard by shard."""

from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.teach.grading.stage_advice import same
from zerosim.teach.grading.stage_case import StageCase
from zerosim.teach.proofs.case import listed


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


def wrong_weights(case: StageCase, rank: int, unit: str, mine: Array) -> str:
    """The weights that a call of `rank` got for `unit`, in words, and the expected ones."""
    has, due = case.whose(mine, rank), case.weights(unit)
    if has and " of step " in has:
        return (f"{has}: they were kept in a cache, a global or an attribute; gather them again in every step, after "
                "the update")
    if has and "shard" in has:
        return (f"{has} alone; expected its full weights: replica.gather({unit}) returns them and writes nothing into "
                "replica.state.weights")
    if has:
        return f"{has}: pass each unit its own weights"
    if due is None or mine.shape != due.shape:
        return f"{shape(mine)}; expected {shape(due)}: its full weights"
    return f"the wrong weights: {stretches(case, unit, mine, due, rank)}"


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
