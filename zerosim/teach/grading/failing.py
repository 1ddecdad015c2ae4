"""Causes of an exception in a learner's step: the step's calls up to there, and the meaning of the exception."""

import re

from zerosim.errors import Deadlock, did_you_mean
from zerosim.teach.grading.stage_case import StageCase
from zerosim.teach.grading.stage_difference import stage_difference
from zerosim.teach.grading.verb_calls import TAPE_VERBS, VERBS
from zerosim.teach.proofs.hints import CUT, hint
from zerosim.words import plural

MIXED_UP = ("a full buffer has all chunks of its unit, a shard only this rank's (replica.own(full)), and units "
            "differ in length: check which of them is passed here")
TOGETHER = ("gather", "reduce_scatter", "reduce", "all_gather", "publish")


def why_it_fails(case: StageCase, error: Exception) -> str | None:
    """The cause of an exception, if known."""
    known = hint(error)
    waits = isinstance(error, Deadlock) or "without receiving" in str(error)
    return ((ranks_part_ways(case) if waits else None) or no_such_attribute(error) or stage_difference(case)
            or wrong_length(case, error) or ranks_part_ways(case) or (MIXED_UP if known == CUT else known))


def no_such_attribute(error: Exception) -> str | None:
    """The cause if a verb does not exist, with the nearest name."""
    found = re.match(r"'(\w*Replica|\w*Tape|Batch|TrainingState|Unit)' object has no attribute '(\w+)'", str(error))
    if found is None or not isinstance(error, AttributeError):
        return None
    owner, name = found.groups()
    if owner == "Batch":
        return ("a part, like the batch, has inputs, targets, samples, step and "
                f"first{did_you_mean(name, ('inputs', 'targets', 'samples'))}")
    verbs = {"TrainingState": ("weights", "gradients", "optimizer"), "Unit": ("name", "count", "frozen")}.get(
        owner, TAPE_VERBS if "Tape" in owner else (*VERBS, "own", "units", "backward_units", "tape", "comm", "state"))
    collective = ("" if name not in ("all_reduce", "allreduce") else ": an all-reduce is a reduce-scatter and then an "
                  "all-gather; each rank needs only its own chunk of a gradient, which replica.reduce_scatter leaves "
                  "in it")
    other = "the tape" if "Tape" in owner else "a replica"
    what = {"TrainingState": "replica.state", "Unit": "a unit"}.get(owner, other)
    near = "" if collective else f"; it is {ELSEWHERE[name]}" if name in ELSEWHERE else did_you_mean(name, verbs)
    return f"{what} has no {name}{collective or near}; it has {', '.join(verbs)}"


ELSEWHERE = {
    "layers": "replica.units", "weights": "replica.state.weights", "gradients": "replica.state.gradients",
    "rank": "replica.comm.rank", "size": "replica.comm.size", "forward": "replica.tape.forward",
    "backward": "replica.tape.backward", "loss": "replica.tape.loss", "optimizer": "replica.state.optimizer",
}
"""Names that learners look for on a replica, and their true place."""


def wrong_length(case: StageCase, error: Exception) -> str | None:
    """The cause if a verb got a buffer of another length: the buffer that it got."""
    found = re.match(r"(\w+) got (\d+) elements of ([\w.]+); expected (\d+)", str(error))
    if found is None:
        return None
    verb, unit, got, due = found[1], found[3], int(found[2]), int(found[4])
    shard = case.shard_lengths.get(unit, 0)
    full = shard * case.ranks
    told = f"{verb} got {of_length(case, unit, got)}; expected {of_length(case, unit, due)}"
    if got < shard == due:
        return (f"{told}: replica.own(full) cuts this rank's chunk from a full buffer; this stage keeps shards, so "
                "pass replica.state.weights[unit] itself")
    if got == full and due == shard:
        return f"{told}: replica.own(full) is this rank's chunk of a full buffer"
    if verb == "publish" and not case.due(0).of("publish"):
        return f"{told}: this stage keeps shards and gathers them again, so it publishes nothing: remove the call"
    if got == shard and due == full:
        return (f"{told}: {verb} finds this rank's chunk itself, so pass the full buffer, not replica.own(full)")
    return told


def of_length(case: StageCase, unit: str, length: int) -> str:
    """The buffer with this number of elements, in words."""
    shard = case.shard_lengths.get(unit, 0)
    if length in (shard, shard * case.ranks) and case.ranks > 1:
        return f"the full buffer of {unit}" if length > shard else f"a shard of {unit}"
    others = [each for each, its in case.shard_lengths.items() if length in (its, its * case.ranks) and each != unit]
    return f"{plural(length, 'element')}, as many as {others[0]} has" if others else plural(length, "element")


def ranks_part_ways(case: StageCase) -> str | None:
    """The first collective that not all ranks call in the same order."""
    first = [(call.verb, call.unit) for call in case.mine(0).calls if call.verb in TOGETHER]
    for rank in range(1, case.ranks):
        mine = [(call.verb, call.unit) for call in case.mine(rank).calls if call.verb in TOGETHER]
        for (verb, unit), (other, its_unit) in zip(first, mine, strict=False):
            if (verb, unit) != (other, its_unit):
                return (f"rank 0 calls {verb} for {unit or 'all'} where rank {rank} calls {other} for "
                        f"{its_unit or 'all'}: {ALL_RANKS}")
        for one, its, another, others in ((0, first, rank, mine), (rank, mine, 0, first)):
            if case.mine(another).after and len(its) > len(others):
                more = " for ".join(filter(None, its[len(others)]))
                return f"rank {one} calls {more}, and rank {another} ends its step without it: {ALL_RANKS}"
        if case.mine(rank).calls and abs(len(first) - len(mine)) > 1:
            return f"rank 0 calls {plural(len(first), 'collective')}, rank {rank} calls {len(mine)}: {ALL_RANKS}"
    return None


ALL_RANKS = "all ranks must call the same collectives, for the same units, in the same order"
