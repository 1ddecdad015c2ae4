"""A record of a learner's step: its verbs with their arguments and results, and the state after it.

    seen     the record of one step on one rank
    call     one verb of the replica or of its tape, in the order of the step
    honest   the record of the library's step on the same tiny scenario, for comparison
    case     both records, and the source of each value in the library's step: a unit's weights, a rank's gradient
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.state import GRADIENT

LearnersStep = Callable[[Replica, Batch], Any]

VERBS = (
    "zero_grad", "parts", "gather", "prefetch", "reshard", "reduce_scatter", "reduce", "all_gather", "keep",
    "keep_shard", "unscale_and_clip", "update", "publish",
)
TAPE_VERBS = ("forward", "loss", "backward", "recompute")


@dataclass
class VerbCall:
    """A verb and its unit, copies of its arguments and results, and whether it returned.

    The copy of a list of arrays is a list. `aliases_weights` states whether an argument shares memory with the kept
    weights of the rank.
    """

    verb: str
    unit: str
    arguments: list[Any] = field(default_factory=list)
    """All arguments but the unit."""
    returned: Any = None
    aliases_weights: bool = False
    ended: bool = False

    @property
    def weights(self) -> Array | None:
        """The first argument that is an array."""
        return next((each for each in self.arguments if isinstance(each, np.ndarray)), None)

    @property
    def result(self) -> Array | None:
        """The gradient from `backward`, or the loss from `loss`."""
        found = self.returned[self.verb == "backward"] if isinstance(self.returned, tuple) else self.returned
        return found if isinstance(found, np.ndarray) else None


Held = dict[tuple[str, str], Array]
"""Copies of arrays, by kind (`weights`, `gradient`, an optimizer's slot) and unit."""


@dataclass
class StepCalls:
    """One step on one rank."""

    calls: list[VerbCall] = field(default_factory=list)
    before: Held = field(default_factory=dict)
    after: Held = field(default_factory=dict)
    loss: Any = None

    def of(self, verb: str, unit: str | None = None) -> list[VerbCall]:
        """The calls of a verb, all or for one unit."""
        return [call for call in self.calls if call.verb == verb and unit in (None, call.unit)]


@dataclass
class CallLog:
    """All steps of a run on all ranks, by rank and step."""

    seen: dict[tuple[int, int], StepCalls] = field(default_factory=dict)
    units: list[str] = field(default_factory=list)

    def recording(self, step: LearnersStep) -> LearnersStep:
        """`step` on a replica that records its calls."""

        def recorded_step(replica: Replica, batch: Batch) -> Any:
            self.units = [unit.name for unit in replica.units]
            seen = self.seen[replica.comm.rank, batch.step] = StepCalls(before=held(replica))
            tape = RecordedVerbs(replica.tape, TAPE_VERBS, replica, seen)
            loss = step(RecordedVerbs(replica, VERBS, replica, seen, tape=tape), batch)  # type: ignore[arg-type]
            seen.loss = loss.copy() if isinstance(loss, np.ndarray) else None
            seen.after = held(replica)
            return loss

        return recorded_step

    @property
    def last_step(self) -> int:
        """The last step that any rank began."""
        return max((step for _, step in self.seen), default=0)


def held(replica: Replica) -> Held:
    """Copies of all arrays that a rank keeps."""
    state = replica.state
    found: Held = {}
    for unit in replica.units:
        if unit in state.weights:
            found["weights", unit.name] = state.weights[unit].copy()
        for slot, values in state.optimizer.get(unit, {}).items():
            found[slot, unit.name] = values.copy()
        for what, gradient in state.gradients_of(unit).items():
            found[what, unit.name] = gradient.copy()
    return found


class RecordedVerbs:
    """A replica or a tape whose verbs are recorded; `parts` are attributes instead of its own."""

    def __init__(self, recorded: Any, verbs: Sequence[str], replica: Replica, seen: StepCalls, **parts: Any) -> None:
        calls = {verb: recorded_verb(replica, seen, verb, getattr(recorded, verb)) for verb in verbs}
        self.__dict__.update(_recorded=recorded, **calls, **parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorded, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._recorded, name, value)


def recorded_verb(replica: Replica, seen: StepCalls, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, which adds its calls to `seen`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        unit = getattr(args[0], "name", None) if args else None
        note = VerbCall(verb, unit if isinstance(unit, str) else "")
        note.arguments = [copied(each) for each in [*args[unit is not None :], *kwargs.values()]]
        note.aliases_weights = any(isinstance(each, np.ndarray) and np.shares_memory(each, kept)
                         for each in args for kept in replica.state.weights.values())
        seen.calls.append(note)
        returned = method(*args, **kwargs)
        note.returned = copied(returned)
        note.ended = True
        return returned

    return call


def copied(value: Any) -> Any:
    """A copy of an array, or of a list or tuple of arrays; for other values the value or the name of its type."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return type(value)(copied(each) for each in value)
    return value if isinstance(value, int | float | str | None) else type(value).__name__


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
