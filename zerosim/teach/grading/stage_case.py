"""A learner's step beside the library's: the calls of each rank, the expected calls, and the source of each value.

    due        the calls of the library's step on a rank
    whose      the source of an array in the library's step, in words: a unit's weights, a rank's gradient
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.stages.state import GRADIENT
from zerosim.teach.grading.verb_calls import CallLog, StepCalls, VerbCall


@dataclass(frozen=True, eq=False)
class StageCase:
    """The calls on `ranks` ranks in step `step`, and the expected calls."""

    ranks: int
    step: int
    ours: CallLog
    honest: CallLog

    def mine(self, rank: int) -> StepCalls:
        return self.ours.seen.get((rank, self.step), StepCalls())

    def due(self, rank: int) -> StepCalls:
        return self.honest.seen[rank, self.step]

    @cached_property
    def shard_lengths(self) -> dict[str, int]:
        """The length of a shard of each unit."""
        return {call.unit: len(call.weights) // self.ranks
                for call in self.due(0).of("forward") if call.weights is not None}

    def own(self, rank: int, unit: str, array: Array) -> Array:
        """The chunk of `rank` in a full buffer; a shard is returned unchanged."""
        length = self.shard_lengths[unit]
        return array if len(array) == length else array[rank * length :][:length]

    def gradient(self, rank: int, unit: str) -> Array | None:
        """The chunk of `rank` in its kept gradient."""
        kept = self.mine(rank).after.get((GRADIENT, unit))
        return None if kept is None else self.own(rank, unit, kept)

    def due_gradient(self, rank: int, unit: str) -> Array:
        return self.own(rank, unit, self.due(rank).after[GRADIENT, unit])

    def weights(self, unit: str, step: int | None = None) -> Array | None:
        """The expected full weights of a unit in a step."""
        seen = self.honest.seen.get((0, step or self.step), StepCalls())
        return next((call.weights for call in seen.of("forward", unit)), None)

    @cached_property
    def parts(self) -> int:
        """The number of parts of the batch in the library's step."""
        return max(len(self.due(0).of("loss")), 1)

    @cached_property
    def known(self) -> dict[Any, tuple[str, int | None]]:
        """The name and rank of each value in the library's step, by its bytes; None for values that all ranks have."""
        found: dict[Any, tuple[str, int | None]] = {}
        for step in [self.step, *range(self.step - 1, 0, -1)]:
            late = "" if step == self.step else f" of step {step}"
            for rank in range(self.ranks):
                seen = self.honest.seen.get((rank, step), StepCalls())
                for words, value, everywhere in values(seen, rank, self.ranks, self.parts > 1):
                    found.setdefault(key(value), (words + late, None if everywhere else rank))
        return found

    def whose(self, value: Any, rank: int) -> str | None:
        """The name of a value, if the library's step has it on `rank` or on another rank."""
        words, where = self.known.get(key(value), (None, None))
        return words if words is None or where in (None, rank) else f"{words} on rank {where}"


def in_parts(seen: StepCalls) -> Iterator[tuple[VerbCall, int]]:
    """Each call of a step with its part of the batch; a part begins at the first forward after a backward."""
    part, behind = 1, False
    for call in seen.calls:
        if call.verb == "forward" and behind:
            part, behind = part + 1, False
        behind = behind or call.verb == "backward"
        yield call, part


def key(value: Any) -> Any:
    """A key that is equal for equal values only."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return tuple(map(key, value)) if isinstance(value, list | tuple) else value


NamedValue = tuple[str, Any, bool]
"""A name, its value, and whether all ranks have it."""


def values(seen: StepCalls, rank: int, ranks: int, several: bool) -> Iterator[NamedValue]:
    """The named values of the library's step on a rank; the first of several names comes first."""
    last, inputs = "", []
    for call, part in in_parts(seen):
        of_part = f" in part {part}" * several
        if call.verb == "forward" and len(call.arguments) > 1:
            if not last:
                inputs += call.arguments[1]
                yield f"the inputs{f' of part {part}' * several}", call.arguments[1], False
                yield from of_micro_batches(f"the inputs{f' of part {part}' * several}", call.arguments[1])
            yield from of_weights(call, ranks)
            yield f"the output of {call.unit}{of_part}", call.returned, False
            last = call.unit
        elif call.verb == "loss" and call.ended:
            yield f"the targets{f' of part {part}' * several}", call.arguments[2], False
            yield f"the loss{f' after part {part}' * several}", call.returned[0], False
            yield f"the upstream gradient from tape.loss{of_part}", call.returned[1], False
            last = ""
        elif call.verb == "backward" and call.ended:
            yield f"the upstream gradient from backward of {call.unit}{of_part}", call.returned[0], False
            yield f"rank {rank}'s own gradient of {call.unit}{of_part}", call.returned[1], True
        elif call.verb in ("reduce", "reduce_scatter") and call.ended and isinstance(call.returned, np.ndarray):
            length = len(call.returned) // ranks
            yield f"the reduced gradient of {call.unit}{of_part}", call.returned, False
            yield f"rank {rank}'s shard of the reduced gradient of {call.unit}{of_part}", call.returned[
                rank * length :][:length], True
    yield "batch.inputs, all micro-batches of the rank", inputs, False


def of_weights(call: VerbCall, ranks: int) -> Iterator[NamedValue]:
    full = call.arguments[0]
    length = len(full) // ranks
    yield f"the full weights of {call.unit}", full, True
    for owner in range(ranks):
        yield f"rank {owner}'s shard of {call.unit}", full[owner * length :][:length], True


def of_micro_batches(words: str, arrays: Sequence[Array]) -> Iterator[NamedValue]:
    for number, array in enumerate(arrays, start=1):
        yield f"micro-batch {number} of {words}, an array, not a list of arrays", array, False
        yield f"micro-batch {number} of {words} alone", [array], False
