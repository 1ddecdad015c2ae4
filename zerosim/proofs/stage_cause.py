"""Why a stage is wrong: its first call that differs from the shipped stage with the same sharding, on the same batches.

The k-th call of a verb for a unit is compared with the k-th of the shipped stage. A call that is missing, one too many,
or one with other arguments is a difference; if there is none, the order of the calls is compared. Values are named by
the shipped stage's calls that have them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.stages import StageStep
from zerosim.stages.replica import Batch, Replica

TAPE = ("forward", "loss", "backward")
VERBS = (
    "zero_grad", "gather", "reduce_scatter", "reduce", "keep", "keep_shard", "unscale_and_clip", "update", "publish")
GIVEN = {
    "forward": ("weights", "activations"), "backward": ("weights", "upstream gradient"),
    "loss": ("name", "outputs", "targets", "samples", "loss so far"), "update": ("weights",), "publish": ("weights",),
    "keep": ("gradient",), "keep_shard": ("gradient",), "reduce_scatter": ("gradient",), "reduce": ("gradient",),
    "return": ("loss",)}
GAVE = {"forward": ("output",), "loss": ("loss", "upstream gradient"), "backward": ("upstream gradient", "gradient"),
        "gather": ("weights",), "reduce_scatter": ("sum",), "reduce": ("sum",)}
"""The names of the arguments of each verb but the unit, and of its results."""
SAME = {"reduce": "reduce_scatter", "keep_shard": "keep"}
"""Verbs that stand for another one."""
OPTIONAL = ("gather", "publish", "reduce_scatter")
"""Verbs that a step may replace by messages of its own."""


@dataclass
class VerbCall:
    """A verb, its unit, and copies of its other arguments and of its result."""

    verb: str
    unit: str
    given: list[Any]
    gave: Any = None

    @property
    def key(self) -> tuple[str, str]:
        return SAME.get(self.verb, self.verb), self.unit

    def __str__(self) -> str:
        return f"{'tape' if self.verb in TAPE else 'replica'}.{self.verb}({self.unit})"


Log = dict[tuple[int, int], list[VerbCall]]
"""The calls of a run, by step and rank; a step that returned ends with a call of `return`."""


def recording(step: StageStep, log: Log) -> StageStep:
    """The step, on a replica whose calls are added to `log`."""

    def recorded_step(replica: Replica, batch: Batch) -> Any:
        calls = log[batch.step, replica.comm.rank] = []
        tape = Recorded(replica.tape, TAPE, replica, calls)
        loss = step(Recorded(replica, VERBS, replica, calls, tape=tape), batch)  # type: ignore[arg-type]
        calls.append(VerbCall("return", "", [copied(loss, replica)]))
        return loss

    return recorded_step


class Recorded:
    """A replica or a tape whose verbs are recorded; `instead` are attributes instead of its own."""

    def __init__(self, of: Any, verbs: Sequence[str], replica: Replica, calls: list[VerbCall], **instead: Any) -> None:
        noted = {verb: noting(verb, getattr(of, verb), replica, calls) for verb in verbs}
        self.__dict__.update(_of=of, **noted, **instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)


def noting(verb: str, method: Callable[..., Any], replica: Replica, calls: list[VerbCall]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        unit = getattr(given[0], "name", "") if given else ""
        own = verb in ("keep", "publish")
        note = VerbCall(verb, unit, [copied(each, replica, own) for each in [*given[bool(unit) :], *named.values()]])
        calls.append(note)
        gave = method(*given, **named)
        note.gave = copied(gave, replica, verb in ("reduce_scatter", "reduce"))
        return gave

    return call


def copied(value: Any, replica: Replica, own: bool = False) -> Any:
    """A copy of arrays; of a full buffer whose other chunks do not matter this rank's own chunk."""
    if isinstance(value, np.ndarray):
        return (replica.own(value) if own and value.size else value).copy()
    if isinstance(value, list | tuple):
        return [copied(each, replica) for each in value]
    return value if isinstance(value, int | float | str | None) else None


def first_unlike(mine: Log, due: Log) -> str | None:
    """The first difference of all ranks in the first step with one, in words; None if there is none."""
    names = {key_of(value): words for words, value in reversed([*known(due)])}
    for alike in (nearly, exactly):
        for step in sorted({step for step, _ in due}):
            found = [(number, rank, words) for each, rank in due if each == step
                     for number, words in unlike(mine.get((step, rank), []), due[step, rank], alike, names)]
            if found:
                _, rank, words = min(found)
                return f"in step {step} rank {rank} {words}"
    return None


Alike = Callable[[Array, Array], bool]


def unlike(
    mine: Sequence[VerbCall], due: Sequence[VerbCall], alike: Alike, names: dict[Any, str]
) -> Iterator[tuple[float, str]]:
    """The differences of one step, each with the number of the call at which it occurs."""
    made, counts = defaultdict[Any, list[int]](list), Counter[Any]()
    for number, call in enumerate(mine):
        made[call.key].append(number)
    ended, last = bool(mine) and mine[-1].verb == "return", -1
    reached = max((n for n, call in enumerate(due) if counts_before(due, n) < len(made[call.key])), default=-1)
    for number, call in enumerate(due):
        nth = counts[call.key]
        counts[call.key] += 1
        if nth < len(made[call.key]):
            last = made[call.key][nth]
            yield from ((last, words) for words in arguments(mine[last], call, alike, names))
        elif call.key[0] not in OPTIONAL and (ended or number < reached):
            yield last + 0.5, f"does not call {call}" + f" again, after {nth} times" * bool(nth)
    for key, numbers in made.items():
        if len(numbers) > counts[key]:
            yield numbers[counts[key]], (f"calls {mine[numbers[0]]} {len(numbers)} times, where {counts[key]} "
                                         f"{'is' if counts[key] == 1 else 'are'} right")
    theirs = [call for call in due if call.key[0] not in OPTIONAL[:2] or call.key in made]
    ours = [call for call in mine if call.key in counts]
    for one, other in zip(ours, theirs, strict=False):
        if one.key != other.key:
            yield len(mine), f"calls {one} where {other} is due"
            break


def counts_before(calls: Sequence[VerbCall], number: int) -> int:
    return sum(call.key == calls[number].key for call in calls[:number])


def arguments(mine: VerbCall, due: VerbCall, alike: Alike, names: dict[Any, str]) -> Iterator[str]:
    """The first argument that differs."""
    words = GIVEN.get(mine.verb, ())
    for what, has, wants in zip_longest(words, mine.given, due.given[: len(words)]):
        if what and not same(has, wants, alike):
            verb = "returns as" if mine.verb == "return" else f"gives {mine} as"
            yield f"{verb} {what} {named(has, names)}; due is {named(wants, names)}{times(has, wants)}"
            return


def same(has: Any, wants: Any, alike: Alike) -> bool:
    if isinstance(has, np.ndarray) and isinstance(wants, np.ndarray):
        return has.dtype == wants.dtype and has.shape == wants.shape and alike(has, wants)
    if isinstance(has, list) and isinstance(wants, list):
        return len(has) == len(wants) and all(same(*pair, alike) for pair in zip(has, wants, strict=True))
    return type(has) is type(wants) and bool(has == wants)


def nearly(has: Array, wants: Array) -> bool:
    return np.allclose(has.astype(np.float64), wants.astype(np.float64), rtol=1e-3, atol=1e-6, equal_nan=True)


def exactly(has: Array, wants: Array) -> bool:
    return has.tobytes() == wants.tobytes()


def times(has: Any, wants: Any) -> str:
    """The factor between two arrays, if there is one."""
    if not (isinstance(has, np.ndarray) and isinstance(wants, np.ndarray) and has.shape == wants.shape):
        return ""
    if not np.any(wants):
        return ""
    at = np.argmax(np.abs(wants.astype(np.float64)))
    factor = float(has.flat[at]) / float(wants.flat[at])
    return f", {factor:.3g} times as large" if factor and nearly(has, factor * wants) and abs(factor - 1) > 1e-2 else ""


# The names of values.


def known(due: Log) -> Iterator[tuple[str, Any]]:
    """The values of the shipped stage's calls, whole and chunk by chunk, in words."""
    ranks = 1 + max(rank for _, rank in due)
    for (step, rank), calls in sorted(due.items()):
        for call in calls:
            gave = call.gave if isinstance(call.gave, list) and call.verb in ("loss", "backward") else [call.gave]
            values = [*zip(GIVEN.get(call.verb, ()), call.given, strict=False),
                      *((f"{what} from", each) for what, each in zip(GAVE.get(call.verb, ()), gave, strict=False))]
            for what, value in values:
                where = f"the {what}{'' if what.endswith('from') else ' of'} {call} on rank {rank} in step {step}"
                yield where, value
                if isinstance(value, np.ndarray) and value.ndim == 1 and value.size % ranks == 0 and ranks > 1:
                    for chunk, part in enumerate(np.split(value, ranks)):
                        yield f"chunk {chunk} of {where}", part


def key_of(value: Any) -> Any:
    """A key that is equal for equal values only."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return tuple(map(key_of, value)) if isinstance(value, list) else value


def named(value: Any, names: dict[Any, str]) -> str:
    """A value by the call that has it, else by its type and shape."""
    if isinstance(value, np.ndarray | list) and (words := names.get(key_of(value))):
        return words
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of {' × '.join(map(str, value.shape))}{', zeros' * (not np.any(value))}"
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r}"
