"""A learner's step beside our own: what each rank did in one step, what it should have done, and whose each value is.

    due        the same call of our own step: of the same verb, for the same unit, as often called before
    whose      what an array is, in words, found among all that our own step had: a unit's weights, a rank's gradient
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.grading.witness import VerbCall, Witness, WitnessedStep
from zerosim.stages.state import GRADIENT


@dataclass(frozen=True, eq=False)
class StageCase:
    """What `ranks` ranks did in step `step`, and what they should have done."""

    ranks: int
    step: int
    ours: Witness
    honest: Witness

    def mine(self, rank: int) -> WitnessedStep:
        return self.ours.seen.get((rank, self.step), WitnessedStep())

    def due(self, rank: int) -> WitnessedStep:
        return self.honest.seen[rank, self.step]

    @property
    def places(self) -> Iterator[tuple[int, str]]:
        """Each rank with each unit."""
        for unit in self.honest.units:
            for rank in range(self.ranks):
                yield rank, unit

    @cached_property
    def shard_lengths(self) -> dict[str, int]:
        """The length of a shard of each unit."""
        return {call.unit: len(call.given) // self.ranks
                for call in self.due(0).of("forward") if call.given is not None}

    def own(self, rank: int, unit: str, array: Array) -> Array:
        """The chunk of `rank` in a full buffer, or a shard itself."""
        length = self.shard_lengths[unit]
        return array if len(array) == length else array[rank * length :][:length]

    def gradient(self, rank: int, unit: str) -> Array | None:
        """The own chunk of what `rank` keeps as the gradient."""
        kept = self.mine(rank).after.get((GRADIENT, unit))
        return None if kept is None else self.own(rank, unit, kept)

    def due_gradient(self, rank: int, unit: str) -> Array:
        return self.own(rank, unit, self.due(rank).after[GRADIENT, unit])

    def weights(self, unit: str, step: int | None = None) -> Array | None:
        """The full weights of a unit as they should be in a step."""
        seen = self.honest.seen.get((0, step or self.step), WitnessedStep())
        return next((call.given for call in seen.of("forward", unit)), None)

    def beside(self, rank: int) -> Iterator[tuple[VerbCall, VerbCall | None, int]]:
        """Each call that a rank made, the one that was due, and in which part of the batch it was, from 1 on."""
        waiting: dict[tuple[str, str], list[VerbCall]] = defaultdict(list)
        for call in self.due(rank).calls:
            waiting[ALIKE.get(call.verb, call.verb), call.unit].append(call)
        for call, part in in_parts(self.mine(rank)):
            found = waiting[ALIKE.get(call.verb, call.verb), call.unit]
            yield call, found.pop(0) if found else None, part

    @cached_property
    def parts(self) -> int:
        """The number of parts of the batch, as our own step takes it."""
        return max(len(self.due(0).of("loss")), 1)

    @cached_property
    def known(self) -> dict[Any, tuple[str, int | None]]:
        """What each value of our own step is and on which rank, by its bytes; what all ranks have is on none."""
        found: dict[Any, tuple[str, int | None]] = {}
        for step in [self.step, *range(self.step - 1, 0, -1)]:
            late = "" if step == self.step else f" of step {step}"
            for rank in range(self.ranks):
                seen = self.honest.seen.get((rank, step), WitnessedStep())
                for words, value, everywhere in values(seen, rank, self.ranks, self.parts > 1):
                    found.setdefault(key(value), (words + late, None if everywhere else rank))
        return found

    def whose(self, value: Any, rank: int) -> str | None:
        """What a value is, in words, if our own step has it anywhere: on `rank`, or on another."""
        words, where = self.known.get(key(value), (None, None))
        return words if words is None or where in (None, rank) else f"{words} on rank {where}"


ALIKE = {"reduce": "reduce_scatter"}


def in_parts(seen: WitnessedStep) -> Iterator[tuple[VerbCall, int]]:
    """The calls of a step, each with the part of the batch that it is in: a part begins when one has gone backward."""
    part, behind = 1, False
    for call in seen.calls:
        if call.verb == "forward" and behind:
            part, behind = part + 1, False
        behind = behind or call.verb == "backward"
        yield call, part


def key(value: Any) -> Any:
    """What is equal of equal values, and of no others."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return tuple(map(key, value)) if isinstance(value, list | tuple) else value


NamedValue = tuple[str, Any, bool]
"""A value, what it is, and whether all ranks have it."""


def values(seen: WitnessedStep, rank: int, ranks: int, several: bool) -> Iterator[NamedValue]:
    """What there is in a step of ours on a rank; of what has several names the one that it is called by first."""
    last, inputs = "", []
    for call, part in in_parts(seen):
        of_part = f" in part {part}" * several
        if call.verb == "forward" and len(call.handed) > 1:
            if not last:
                inputs += call.handed[1]
                yield f"the inputs{f' of part {part}' * several}", call.handed[1], False
                yield from of_micro_batches(f"the inputs{f' of part {part}' * several}", call.handed[1])
            yield from of_weights(call, ranks)
            yield f"what forward of {call.unit} gave{of_part}", call.gave, False
            last = call.unit
        elif call.verb == "loss" and call.ended:
            yield f"the targets{f' of part {part}' * several}", call.handed[2], False
            yield f"the loss{f' after part {part}' * several}", call.gave[0], False
            yield f"what tape.loss gave to go upstream{of_part}", call.gave[1], False
            last = ""
        elif call.verb == "backward" and call.ended:
            yield f"what backward of {call.unit} gave to go upstream{of_part}", call.gave[0], False
            yield f"rank {rank}'s own gradient of {call.unit}{of_part}", call.gave[1], True
        elif call.verb in ("reduce", "reduce_scatter") and call.ended and isinstance(call.gave, np.ndarray):
            length = len(call.gave) // ranks
            yield f"the reduced gradient of {call.unit}{of_part}", call.gave, False
            yield f"rank {rank}'s shard of the reduced gradient of {call.unit}{of_part}", call.gave[
                rank * length :][:length], True
    yield "batch.inputs, all micro-batches of the rank", inputs, False


def of_weights(call: VerbCall, ranks: int) -> Iterator[NamedValue]:
    full = call.handed[0]
    length = len(full) // ranks
    yield f"the full weights of {call.unit}", full, True
    for owner in range(ranks):
        yield f"rank {owner}'s shard of {call.unit}", full[owner * length :][:length], True


def of_micro_batches(words: str, arrays: Sequence[Array]) -> Iterator[NamedValue]:
    for number, array in enumerate(arrays, start=1):
        yield f"micro-batch {number} of {words}, an array and no list of arrays", array, False
        yield f"micro-batch {number} of {words} alone", [array], False
