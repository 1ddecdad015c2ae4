"""Why a stage is wrong: its first call that differs from the shipped stage with the same sharding, on the same batches.

The n-th call of a verb for a unit in a step is compared with the n-th of the shipped stage: it is missing, or one too
many, or gets something else. If none is, the order of the calls is compared, and at last what each call finds in
memory. Values are named by the calls that give or get them.
"""

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.stages import StageStep
from zerosim.stages.replica import Batch, Replica
from zerosim.worlds.running import line_in

TAPE = ("forward", "loss", "backward")
VERBS = (
    "zero_grad", "gather", "reduce_scatter", "reduce", "keep", "keep_shard", "unscale_and_clip", "update", "publish")
GIVEN = {
    "forward": ("weights", "activations"), "backward": ("weights", "upstream gradient"),
    "loss": ("name", "outputs", "targets", "count", "loss so far"), "update": ("weights",), "publish": ("weights",),
    "keep": ("gradient",), "keep_shard": ("gradient",), "reduce_scatter": ("gradient",), "reduce": ("gradient",)}
"""The arguments of each verb besides the unit."""
GAVE = {
    "forward": ("the output",), "loss": ("the loss", "the upstream gradient of the loss"),
    "backward": ("the upstream gradient from backward", "the gradient"), "gather": ("the gathered weights",),
    "reduce_scatter": ("the reduced gradient",), "reduce": ("the reduced gradient",)}
"""The results of each verb, in words."""
GOT = {"forward": ("the weights", "the inputs"), "publish": ("the updated weights",)}
"""The arguments that no verb gives, in words."""
SAME = {"reduce": "reduce_scatter", "keep_shard": "keep"}
"""Verbs that stand for another one."""
OPTIONAL = ("gather", "publish", "reduce_scatter")
"""Verbs that a step may replace by messages of its own."""
OWN = ("keep", "keep_shard", "publish")
"""Verbs of whose argument only this rank's chunk matters."""

Key = tuple[str, str]
"""A verb, or the one that it stands for, and a unit."""


@dataclass(frozen=True)
class OwnChunk:
    """This rank's chunk of a full buffer whose other chunks do not matter."""

    array: Array


@dataclass
class VerbCall:
    """A call of a verb: its unit, copies of its other arguments and of its result, and its line."""

    verb: str
    unit: str
    given: list[Any]
    line: int
    alive: set[tuple[Key, int]]
    """The results of earlier calls that are in memory as it begins: each call, and its number among its kind."""
    gave: list[Any] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return SAME.get(self.verb, self.verb), self.unit

    def __str__(self) -> str:
        if self.verb == "return":
            return "the step returns"
        verb = "reduce_scatter" if self.verb == "reduce" else self.verb
        return f"{'tape' if self.verb in TAPE else 'replica'}.{verb}({self.unit})"


Log = dict[tuple[int, int], list[VerbCall]]
"""The calls of a run, by step and rank; a step that returned ends with a call of `return`."""


def recording(step: StageStep, log: Log, file: str = "") -> StageStep:
    """The step, on a replica whose calls are added to `log`, with their lines in `file`."""

    def recorded_step(replica: Replica, batch: Batch) -> Any:
        recorder = Recorder(replica, file)
        log[batch.step, replica.comm.rank] = recorder.calls
        tape = Recorded(replica.tape, TAPE, recorder)
        loss = step(Recorded(replica, VERBS, recorder, tape=tape), batch)  # type: ignore[arg-type]
        recorder.begun("return", (loss,))
        return loss

    return recorded_step


@dataclass
class Recorder:
    """The calls of one rank in one step, and references to their results that keep none of them in memory."""

    replica: Replica
    file: str
    calls: list[VerbCall] = field(default_factory=list)
    results: dict[tuple[Key, int], weakref.ref[Any]] = field(default_factory=dict)

    def begun(self, verb: str, given: Sequence[Any]) -> VerbCall:
        unit = getattr(given[0], "name", "") if given else ""
        alive = {result for result, array in self.results.items() if array() is not None}
        copies = [self.copied(argument, given[0] if verb in OWN else None) for argument in given[bool(unit) :]]
        self.calls.append(VerbCall(verb, unit, copies, line_in(self.file), alive))
        return self.calls[-1]

    def noting(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method of a verb, whose calls and results are noted."""

        def call_of_verb(*given: Any, **named: Any) -> Any:
            call = self.begun(verb, [*given, *named.values()])
            gave = method(*given, **named)
            results = gave if isinstance(gave, tuple) else (gave,)
            unit = given[0] if given and call.key[0] == "reduce_scatter" else None
            call.gave = [self.copied(result, unit) for result in results]
            last = results[-1][0] if isinstance(results[-1], list) and results[-1] else results[-1]
            if isinstance(last, np.ndarray):
                while isinstance(last.base, np.ndarray):
                    last = last.base
                self.results[call.key, sum(earlier.key == call.key for earlier in self.calls)] = weakref.ref(last)
            return gave

        return call_of_verb

    def copied(self, value: Any, unit: Any = None) -> Any:
        """A copy of arrays; of a full buffer of `unit`, if it is given, this rank's own chunk."""
        if isinstance(value, np.ndarray):
            full = unit is not None and value.size == self.replica.state.layouts.full(unit).length
            return OwnChunk(self.replica.own(value).copy()) if full else value.copy()
        if isinstance(value, list | tuple):
            return [self.copied(element) for element in value]
        return value if isinstance(value, int | float | str | None) else type(value)


class Recorded:
    """A replica or a tape whose verbs are recorded; `instead` are attributes instead of its own."""

    def __init__(self, of: Any, verbs: Sequence[str], recorder: Recorder, **instead: Any) -> None:
        self.__dict__.update({verb: recorder.noting(verb, getattr(of, verb)) for verb in verbs}, _of=of, **instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)


# The first difference.

Alike = Callable[[Array, Array], bool]
Difference = tuple[bool, float, str]
"""A difference in words; before them whether it may follow from an early end of the step, and the number of its call.
"""


def first_unlike(examined: Log, shipped: Log) -> str | None:
    """The first difference of all ranks in the first step with one, in words; None if there is none."""
    origins = origins_of(examined, shipped)
    for comparison in (partial(unlike, alike=nearly), partial(unlike, alike=exactly), unfreed):
        for step in sorted({step for step, _ in shipped}):
            differences = [(*at, rank, words) for rank in sorted(rank for other, rank in shipped if other == step)
                           for *at, words in comparison(examined.get((step, rank), []), shipped[step, rank],
                                                        Naming(origins, step, rank))]
            if differences:
                *_, rank, words = min(differences)
                return f"{words} (rank {rank}, step {step})"
    return None


def matched(calls: Sequence[VerbCall], expected: Sequence[VerbCall]) -> list[tuple[VerbCall, int, int | None]]:
    """Each expected call, its number among its kind, and the index of the same call in `calls`, if it is there."""
    indices, counts, pairs = indices_of(calls), Counter[Key](), []
    for call in expected:
        nth = counts[call.key]
        counts[call.key] += 1
        pairs.append((call, nth, indices[call.key][nth] if nth < len(indices[call.key]) else None))
    return pairs


def indices_of(calls: Sequence[VerbCall]) -> defaultdict[Key, list[int]]:
    indices = defaultdict[Key, list[int]](list)
    for index, call in enumerate(calls):
        indices[call.key].append(index)
    return indices


def unlike(
    calls: Sequence[VerbCall], expected: Sequence[VerbCall], naming: "Naming", alike: Alike
) -> Iterator[Difference]:
    """The differences between the calls of one step; at last the first one that comes before one expected earlier."""
    ended, last, pairs = bool(calls) and calls[-1].verb == "return", -1, matched(calls, expected)
    for number, (call, nth, index) in enumerate(pairs):
        if index is not None:
            last = index
            yield from ((False, index, words) for words in arguments(calls[index], call, nth, naming, alike))
            continue
        later = next((other for _, _, other in pairs[number:] if other is not None and other > last), None)
        if later is not None and call.key[0] not in OPTIONAL:
            yield not ended, last + 0.5, missing(call, nth, calls[later])
        elif later is not None and not nth:
            yield True, len(calls) + number, missing(call, nth, calls[later])
    counts = Counter(call.key for call in expected)
    for key, indices in indices_of(calls).items():
        if len(indices) > (allowed := counts[key]):
            extra = calls[indices[allowed]]
            yield False, indices[allowed], (f"{line_of(extra)}{extra} is called {len(indices)} times, where {allowed} "
                                            f"{'is' if allowed == 1 else 'are'} due")
    firsts = {call.key[0]: call for call in reversed(calls)}
    expected_verbs = dict.fromkeys(call.key[0] for call in expected)
    verbs = [verb for verb in dict.fromkeys(call.key[0] for call in calls) if verb in expected_verbs]
    for verb, other in zip(verbs, (verb for verb in expected_verbs if verb in firsts), strict=True):
        if verb != other:
            yield not ended, calls.index(firsts[verb]), before(firsts[verb], firsts[other])
            break
    present = {call.key for call in calls}
    required = [pair for pair in pairs if pair[0].key[0] not in OPTIONAL or pair[0].key in present]
    shared = [index for index, call in enumerate(calls) if counts[call.key]]
    for index, (call, nth, its_index) in zip(shared, required, strict=False):
        if index != its_index:
            yield not ended, len(calls), (
                missing(call, nth, calls[index]) if its_index is None else before(calls[index], calls[its_index]))
            return


def before(call: VerbCall, other: VerbCall) -> str:
    return f"{line_of(call)}{call} is called before {other}{line_of(other, ' (line {})')}"


def missing(call: VerbCall, nth: int, later: VerbCall) -> str:
    return f"{call} is not called{' again' * bool(nth)} before {later}{line_of(later, ' in line {}')}"


def line_of(call: VerbCall, words: str = "line {}: ") -> str:
    """The line of a call in these words; empty if it is not known."""
    return words.format(call.line) if call.line else ""


def arguments(call: VerbCall, expected: VerbCall, nth: int, naming: "Naming", alike: Alike) -> Iterator[str]:
    """The first argument that differs, or the verb."""
    if call.verb in OWN and call.verb != expected.verb:
        yield f"{line_of(call)}{call} is called instead of {expected}"
        return
    words = GIVEN.get(call.verb, ("",))
    for what, has, wants in zip_longest(words, call.given, expected.given[: len(words)]):
        if what is None or same(has, wants, alike):
            continue
        role = f" as {what}" * (len(words) > 1)
        verb = "" if call.verb == "return" else " gets"
        yield (f"{line_of(call)}{call}{verb} {naming.value(has, nth, wants)}{role} instead of "
               f"{naming.value(wants, nth)}")
        return


def unfreed(calls: Sequence[VerbCall], expected: Sequence[VerbCall], naming: "Naming") -> Iterator[Difference]:
    """The results that are still in memory when a call begins, where the shipped stage has freed them."""
    indices = indices_of(calls)
    for shipped, _, index in matched(calls, expected):
        if index is None:
            continue
        call = calls[index]
        for key, number in sorted(call.alive - shipped.alive):
            result = calls[indices[key][number - 1]]
            what = f"{GAVE[result.verb][-1]}{f' of {result.unit}' * bool(result.unit)}"
            yield False, index, f"{line_of(call)}{call} finds {what}{line_of(result, ' (line {})')} still in memory"


def same(has: Any, wants: Any, alike: Alike) -> bool:
    if isinstance(has, OwnChunk) and isinstance(wants, OwnChunk):
        return same(has.array, wants.array, alike)
    if isinstance(has, np.ndarray) and isinstance(wants, np.ndarray):
        return has.dtype == wants.dtype and has.shape == wants.shape and alike(has, wants)
    if isinstance(has, list) and isinstance(wants, list):
        return len(has) == len(wants) and all(same(*pair, alike) for pair in zip(has, wants, strict=True))
    return type(has) is type(wants) and bool(has == wants)


def nearly(has: Array, wants: Array) -> bool:
    return np.allclose(has.astype(np.float64), wants.astype(np.float64), rtol=1e-3, atol=1e-6, equal_nan=True)


def exactly(has: Array, wants: Array) -> bool:
    return has.tobytes() == wants.tobytes()


def factor(has: Any, wants: Any) -> float | None:
    """The factor between two arrays, if there is one besides 0 and 1."""
    if not (isinstance(has, np.ndarray) and isinstance(wants, np.ndarray) and has.shape == wants.shape and has.size):
        return None
    at = np.argmax(np.abs(wants.astype(np.float64)))
    if not wants.flat[at]:
        return None
    ratio = float(has.flat[at]) / float(wants.flat[at])
    return ratio if ratio and abs(ratio - 1) > 1e-2 and nearly(has, ratio * wants) else None


# The names of values.


@dataclass(frozen=True)
class Origin:
    """Where a value is given or got: the call by step, rank, unit and number among its kind; a chunk, or the whole."""

    what: str
    unit: str
    step: int
    rank: int
    nth: int
    chunk: int | None = None


Origins = dict[Any, list[Origin]]


def origins_of(examined: Log, shipped: Log) -> Origins:
    """The origins of values: what verbs give and get in the shipped stage, and what they give in the examined one."""
    origins: Origins = defaultdict(list)
    ranks = 1 + max(rank for _, rank in shipped)
    for log, table, side in ((shipped, GAVE, "gave"), (shipped, GOT, "given"), (examined, GAVE, "gave")):
        for (step, rank), calls in log.items():
            counts = Counter[Key]()
            for call in calls:
                for what, value in zip(table.get(call.verb, ()), getattr(call, side), strict=False):
                    own = rank if isinstance(value, OwnChunk) else None
                    origin = Origin(what, call.unit, step, rank, counts[call.key], own)
                    origins[key_of(value)].append(origin)
                    if isinstance(value, np.ndarray) and value.ndim == 1 and not value.size % ranks:
                        for chunk, part in enumerate(np.split(value, ranks)):
                            origins[key_of(part)].append(replace(origin, chunk=chunk))
                counts[call.key] += 1
    return origins


@dataclass(frozen=True)
class Naming:
    """Names of values for a student who looks at a rank's step."""

    origins: Origins
    step: int
    rank: int

    def value(self, value: Any, nth: int, wanted: Any = None) -> str:
        """A value by the call that gives or gets it, or as a multiple of the wanted one; else its type and size."""
        own = isinstance(value, OwnChunk)
        value, wanted = (operand.array if isinstance(operand, OwnChunk) else operand for operand in (value, wanted))
        if isinstance(value, np.ndarray | list) and (origins := self.origins.get(key_of(value))):
            return self.origin(min(origins, key=self.distance), nth, own)
        if (times := factor(value, wanted)) is not None:
            return f"{times:.3g} times {self.value(OwnChunk(wanted) if own else wanted, nth)}"
        if isinstance(value, np.ndarray):
            zeros = " zeros" * (not np.any(value))
            return f"an array of {' × '.join(map(str, value.shape))} {value.dtype}{zeros}"
        if isinstance(value, type):
            return f"a {value.__name__}"
        return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r}"

    def distance(self, origin: Origin) -> tuple[bool, bool, bool]:
        return origin.step != self.step, origin.rank != self.rank, origin.chunk is not None

    def origin(self, origin: Origin, nth: int, own: bool) -> str:
        chunk = "" if origin.chunk is None or (own and origin.chunk == self.rank) else f"chunk {origin.chunk} of "
        unit = f" of {origin.unit}" * bool(origin.unit)
        rank = f" on rank {origin.rank}" * (origin.rank != self.rank)
        part = f" in part {origin.nth + 1}" * (origin.nth != nth and origin.step == self.step)
        step = f" in step {origin.step}" * (origin.step != self.step)
        return f"{chunk}{origin.what}{unit}{rank}{part}{step}"


def key_of(value: Any) -> Any:
    """A key that is equal for equal values only."""
    value = value.array if isinstance(value, OwnChunk) else value
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return tuple(map(key_of, value)) if isinstance(value, list) else value
