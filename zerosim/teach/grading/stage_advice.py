"""Advice for each difference of a learner's step from the library's; tests of equality; the sources of wrong arrays.

    gradient    the ranks' and parts' gradients that it contains, and how often
    weights     their unit, step and rank, shard by shard
"""

import tomllib
from collections.abc import Mapping
from importlib import resources
from itertools import product
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.stages.state import GRADIENT
from zerosim.teach.grading.trained import Figures
from zerosim.teach.grading.verb_calls import StageCase, StepCalls
from zerosim.teach.proofs.case import Observation, listed
from zerosim.words import plural

ADVICE: Mapping[str, Mapping[str, str]] = tomllib.loads(
    resources.files("zerosim.teach.grading").joinpath("advice.toml").read_text("utf-8"))
"""The advice for each kind of difference and its subject: a verb, an argument, or an array."""
SCALED = ADVICE["gets"]["a scaled value"]


def sent_in(mine: Figures, due: Figures, variant: Mapping[str, Any]) -> str | None:
    """The replica's collective that sent a different number of bytes; None if none did."""
    for name in dict.fromkeys([*mine.by_collective, *due.by_collective]):
        (calls, sent), (due_calls, enough) = (each.by_collective.get(name, (0, 0)) for each in (mine, due))
        own = mine.sent_bytes - sum(sent for _, sent in mine.by_collective.values())
        if sent == enough or (own and sent < enough):
            continue
        told = (f"{name} sends {sent} bytes in {plural(calls, 'call')}; expected {enough} bytes in "
                f"{plural(due_calls, 'call')}")
        if name == "all_gather" and sent > enough and variant.get("reshard_after_forward") is False:
            return f"{told}: backward gathers again; keep the weights gathered by forward until then, for each unit"
        return told
    return None


def held_too_long(case: StageCase, kind: str) -> str:
    """The explanation of memory that is held too long: gradients until the last one, or arrays until the next unit."""
    backward = [number for number, call in enumerate(case.mine(0).calls) if call.verb == "backward"]
    reduced = [number for number, call in enumerate(case.mine(0).calls) if call.verb in ("reduce_scatter", "reduce")]
    if kind == "gradients" and len(backward) > 1 and reduced and reduced[0] > backward[1]:
        return (f"{len([each for each in backward if each < reduced[0]])} units have run backward before the first "
                "gradient is reduced, so their full gradients are in memory together: reduce each gradient, keep the "
                "shard and free the rest right after backward")
    return ADVICE["held"].get(kind, ADVICE["held"]["anything"])


def like(mine: Array, due: Array) -> bool:
    """Equal up to rounding, and not all zero."""
    return mine.shape == due.shape and bool(np.any(due)) and np.allclose(
        mine.astype(np.float64), due.astype(np.float64), rtol=1e-3, atol=1e-6)


def same(mine: Array, due: Array) -> bool:
    return mine.tobytes() == due.tobytes()


def factor(mine: Array, due: Array) -> float | None:
    """The factor between `due` and `mine`; None if there is none, or if it is 1."""
    large = np.abs(due) > 1e-3 * np.max(np.abs(due), initial=1e-12)
    if mine.shape != due.shape or not large.any():
        return None
    found = float(np.median(mine[large] / due[large]))
    alike = np.allclose(mine, found * due, rtol=1e-2, atol=1e-5 * float(np.max(np.abs(due))))
    return found if alike and abs(found - 1) > 1e-2 and abs(found) > 1e-6 else None


def times_of(mine: Array, due: Array) -> str | None:
    """The factor between `due` and `mine`, in words."""
    found = factor(mine, due)
    return None if found is None else times(found)


def times(number: float) -> str:
    """
    >>> times(2.0), times(0.25), times(-1.0)
    ('2 times', '1/4 of', '-1 times')
    """
    inverse = 1 / number
    return f"1/{inverse:.3g} of" if inverse > 1 and abs(inverse - round(inverse)) < 0.05 else f"{number:.3g} times"


def often(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


Brought = dict[tuple[int, int], Array]
"""The gradient of a unit on a rank for a part of the batch, by rank and part."""


def what_gradient(case: StageCase, rank: int, unit: str, mine: Array, due: Array) -> str:
    """A description, without the rank, of its kept gradient that is not the sum over all ranks."""
    told = f"'s kept gradient of {unit} is"
    if not np.any(mine):
        return f"{told} zeros: was it freed or overwritten before it was kept?"
    before = case.honest.seen.get((rank, case.step - 1), StepCalls()).after.get((GRADIENT, unit))
    if before is not None and like(mine, due + case.own(rank, unit, before)):
        return f"{told} the sum of the previous step's and this step's: call zero_grad(batch) first"
    seen = case.mine(rank)
    kept = len(seen.of("keep", unit)) + len(seen.of("keep_shard", unit))
    if kept > case.parts:
        return (f"{told} a gradient that was kept {kept} times and added up: keep it once for each of the "
                f"{case.parts} parts")
    brought = brought_by(case, rank, unit)
    if found := combination(brought, mine):
        return f"{told} {in_words(case, rank, found)}"
    if said := times_of(mine, due):
        return f"{told} {said} what it should be: {SCALED}"
    for chunk in range(case.ranks):
        if chunk != rank and like(mine, case.own(chunk, unit, case.due(chunk).after[GRADIENT, unit])):
            return f"{told} chunk {chunk}, which rank {chunk} owns: its own chunk is replica.own(gradient)"
    for other in case.honest.units:
        if other != unit and (GRADIENT, other) in case.due(rank).after and like(mine, case.due_gradient(rank, other)):
            return f"{told} that of {other}: pass each unit its own gradient"
    reduced = len(seen.of("reduce_scatter", unit)) + len(seen.of("reduce", unit))
    if reduced > case.parts:
        return (f"{told} a gradient that was reduced {reduced} times; expected {case.parts}: reduce_scatter already "
                f"returns the sum over all ranks, so do not reduce it again")
    return Observation(f"{told} not the sum of the gradients that backward returned on all ranks ({value(mine)}; "
                       f"expected {value(due)}): was one changed after tape.backward returned it?")


def value(array: Array) -> str:
    return f"[{float(array[0]):.6g}, …]"


def brought_by(case: StageCase, rank: int, unit: str) -> Brought:
    """The gradients of each rank and part, the chunk of `rank`."""
    found = {}
    for each in range(case.ranks):
        for part, call in enumerate(case.due(each).of("backward", unit)):
            if call.result is not None:
                found[each, part] = case.own(rank, unit, call.result).astype(np.float64)
    return found


def combination(brought: Brought, mine: Array) -> dict[tuple[int, int], float] | None:
    """The factor of each gradient in `mine`, if `mine` is a linear combination of them and the factors are unique."""
    columns = np.stack([*brought.values()], axis=1)
    if np.linalg.matrix_rank(columns) < len(brought) or columns.shape[0] <= len(brought):
        return None
    found, *_ = np.linalg.lstsq(columns, mine.astype(np.float64), rcond=None)
    scale = float(np.max(np.abs(mine)))
    if not np.allclose(columns @ found, mine, atol=1e-4 * scale, rtol=1e-3):
        return None
    return dict(zip(brought, (round(float(each), 3) + 0.0 for each in found), strict=True))


def in_words(case: StageCase, rank: int, often: dict[tuple[int, int], float]) -> str:
    """The ranks' and parts' gradients in a sum and their factors, in words."""
    parts = range(case.parts)
    counts = {*often.values()}
    if counts == {1.0}:
        return "the right sum, but its last bits differ"
    if len(counts) == 1:
        (count,) = counts
        there = f" (there are {case.ranks} ranks)" * (case.ranks > 1 and case.ranks in (round(count), round(1 / count)))
        return f"{times(count)} what it should be{there}: {SCALED}"
    of_ranks = {each: {often[each, part] for part in parts} for each in range(case.ranks)}
    of_parts = {part: {often[each, part] for each in range(case.ranks)} for part in parts}
    if all(found == {float(each == rank)} for each, found in of_ranks.items()):
        return (f"that of rank {rank} alone: the other ranks' gradients are missing; keep the result of "
                f"replica.reduce_scatter(unit, gradient)")
    if all(len(found) == 1 and found <= {0.0, 1.0} for found in of_parts.values()):
        lost = [part + 1 for part in parts if of_parts[part] == {0.0}]
        return (f"a sum without part {', '.join(map(str, lost))} of {case.parts}: reduce and keep the gradient of "
                f"every part right after its backward; keep_shard accumulates; call zero_grad once per step")
    if all(len(found) == 1 for found in of_ranks.values()):
        named = ", ".join(f"rank {each}'s gradient {count_words(found.pop())}" for each, found in of_ranks.items())
        return f"a sum that contains {named}: include each rank's once"
    named = ", ".join(f"rank {each}'s gradient of part {part + 1} {count_words(often[each, part])}"
                      for each, part in product(range(case.ranks), parts) if (each, part) in often)
    return f"a sum that contains {named}: include each once"


def count_words(count: float) -> str:
    """
    >>> count_words(0.0), count_words(1.0), count_words(2.0), count_words(0.5)
    ('not at all', 'once', 'twice', '0.5 times')
    """
    return {0.0: "not at all", 1.0: "once", 2.0: "twice"}.get(count, f"{count:g} times")


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
        return "values of no unit: is the buffer unfilled, or of a different dtype?"
    names = list(dict.fromkeys(owners))
    return f"weights of {' and '.join(names[:3])}"
