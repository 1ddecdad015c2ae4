"""A record of a learner's step: its verbs with their arguments and results, and the state after it.

    seen     the record of one step on one rank
    call     one verb of the replica or of its tape, in the order of the step
    honest   the record of the library's step on the same tiny scenario, for comparison
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.stages.replica import Batch, Replica

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
    """A replica or a tape whose verbs are recorded; `parts` are attributes in place of its own."""

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
