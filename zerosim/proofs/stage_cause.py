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
    "loss": ("name", "outputs", "targets", "samples", "loss so far"), "update": ("weights",), "publish": ("weights",),
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


class Recorder:
    """The calls of one rank in one step, and references to their results that keep none of them in memory."""

    def __init__(self, replica: Replica, file: str) -> None:
        self.replica = replica
        self.file = file
        self.calls: list[VerbCall] = []
        self.results: dict[tuple[Key, int], weakref.ref[Any]] = {}

    def begun(self, verb: str, given: Sequence[Any]) -> VerbCall:
        unit = getattr(given[0], "name", "") if given else ""
        alive = {result for result, array in self.results.items() if array() is not None}
        copies = [self.copied(each, given[0] if verb in OWN else None) for each in given[bool(unit) :]]
        self.calls.append(VerbCall(verb, unit, copies, line_in(self.file), alive))
        return self.calls[-1]

    def ended(self, call: VerbCall, unit: Any, gave: Any) -> None:
        results = gave if isinstance(gave, tuple) else (gave,)
        call.gave = [self.copied(each, unit if call.key[0] == "reduce_scatter" else None) for each in results]
        last = results[-1][0] if isinstance(results[-1], list) and results[-1] else results[-1]
        if isinstance(last, np.ndarray):
            while isinstance(last.base, np.ndarray):
                last = last.base
            self.results[call.key, sum(each.key == call.key for each in self.calls)] = weakref.ref(last)

    def copied(self, value: Any, unit: Any = None) -> Any:
        """A copy of arrays; of a full buffer of `unit`, if it is given, this rank's own chunk."""
        if isinstance(value, np.ndarray):
            full = unit is not None and value.size == self.replica.state.layouts.full(unit).length
            return OwnChunk(self.replica.own(value).copy()) if full else value.copy()
        if isinstance(value, list | tuple):
            return [self.copied(each) for each in value]
        return value if isinstance(value, int | float | str | None) else None


class Recorded:
    """A replica or a tape whose verbs are recorded; `instead` are attributes instead of its own."""

    def __init__(self, of: Any, verbs: Sequence[str], recorder: Recorder, **instead: Any) -> None:
        noted = {verb: noting(verb, getattr(of, verb), recorder) for verb in verbs}
        self.__dict__.update(_of=of, **noted, **instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)


def noting(verb: str, method: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        note = recorder.begun(verb, [*given, *named.values()])
        gave = method(*given, **named)
        recorder.ended(note, given[0] if given else None, gave)
        return gave

    return call


# The first difference.

Alike = Callable[[Array, Array], bool]
Found = tuple[bool, float, str]
"""A difference in words; before them whether it may follow from an early end of the step, and the number of its call.
"""


def first_unlike(mine: Log, due: Log) -> str | None:
    """The first difference of all ranks in the first step with one, in words; None if there is none."""
    names = Names(mine, due)
    for differences in (partial(unlike, alike=nearly), partial(unlike, alike=exactly), unfreed):
        for step in sorted({step for step, _ in due}):
            found = [(*at, rank, words) for each, rank in due if each == step
                     for *at, words in differences(
                         mine.get((step, rank), []), due[step, rank], Naming(names, step, rank))]
            if found:
                *_, rank, words = min(found)
                return f"{words} (rank {rank}, step {step})"
    return None


def matched(mine: Sequence[VerbCall], due: Sequence[VerbCall]) -> list[tuple[VerbCall, int, int | None]]:
    """Each call that is due, its number among its kind, and the place of the same call in `mine`, if it is there."""
    places, counts, found = places_of(mine), Counter[Key](), []
    for call in due:
        nth = counts[call.key]
        counts[call.key] += 1
        found.append((call, nth, places[call.key][nth] if nth < len(places[call.key]) else None))
    return found


def places_of(calls: Sequence[VerbCall]) -> defaultdict[Key, list[int]]:
    found = defaultdict[Key, list[int]](list)
    for place, call in enumerate(calls):
        found[call.key].append(place)
    return found


def unlike(mine: Sequence[VerbCall], due: Sequence[VerbCall], naming: "Naming", alike: Alike) -> Iterator[Found]:
    """The differences between the calls of one step."""
    ended, last, pairs = bool(mine) and mine[-1].verb == "return", -1, matched(mine, due)
    for number, (call, nth, place) in enumerate(pairs):
        if place is not None:
            last = place
            yield from ((False, place, words) for words in arguments(mine[place], call, nth, naming, alike))
            continue
        later = next((at for _, _, at in pairs[number:] if at is not None and at > last), None)
        if later is not None and call.key[0] not in OPTIONAL:
            yield not ended, last + 0.5, missing(call, nth, mine[later])
        elif later is not None and not nth:
            yield True, len(mine) + number, missing(call, nth, mine[later])
    counts = Counter(call.key for call in due)
    for key, places in places_of(mine).items():
        if len(places) > (allowed := counts[key]):
            extra = mine[places[allowed]]
            yield False, places[allowed], (f"{line_of(extra)}{extra} is called {len(places)} times, where {allowed} "
                                           f"{'is' if allowed == 1 else 'are'} due")
    firsts, due_firsts = ({call.key[0]: call for call in reversed(calls)} for calls in (mine, due))
    verbs = [call.key[0] for call in mine if firsts[call.key[0]] is call and call.key[0] in due_firsts]
    for verb, other in zip(verbs, (call.key[0] for call in due if due_firsts[call.key[0]] is call
                                   and call.key[0] in firsts), strict=True):
        if verb != other:
            yield not ended, mine.index(firsts[verb]), before(firsts[verb], firsts[other])
            break
    yield from misordered(mine, pairs, ended)


def misordered(
    mine: Sequence[VerbCall], pairs: Sequence[tuple[VerbCall, int, int | None]], ended: bool
) -> Iterator[Found]:
    """The first call that comes before another one that is due first; the order of units may not matter."""
    keys = {call.key for call, _, _ in pairs}
    ours = [place for place, call in enumerate(mine) if call.key in keys]
    present = {call.key for call in mine}
    theirs = [pair for pair in pairs if pair[0].key[0] not in OPTIONAL or pair[0].key in present]
    for place, (call, nth, at) in zip(ours, theirs, strict=False):
        if place != at:
            yield not ended, len(mine), (
                missing(call, nth, mine[place]) if at is None else before(mine[place], mine[at]))
            return


def before(call: VerbCall, other: VerbCall) -> str:
    return f"{line_of(call)}{call} is called before {other}{line_of(other, ' (line {})')}"


def missing(call: VerbCall, nth: int, later: VerbCall) -> str:
    return f"{call} is not called{' again' * bool(nth)} before {later}{line_of(later, ' in line {}')}"


def line_of(call: VerbCall, words: str = "line {}: ") -> str:
    """The line of a call in these words; empty if it is not known."""
    return words.format(call.line) if call.line else ""


def arguments(mine: VerbCall, due: VerbCall, nth: int, naming: "Naming", alike: Alike) -> Iterator[str]:
    """The first argument that differs, or the verb."""
    if mine.verb in OWN and mine.verb != due.verb:
        yield f"{line_of(mine)}{mine} is called instead of {due}"
        return
    words = GIVEN.get(mine.verb, ("",))
    for what, has, wants in zip_longest(words, mine.given, due.given[: len(words)]):
        if what is None or same(has, wants, alike):
            continue
        role = f" as {what}" * (len(words) > 1)
        verb = "" if mine.verb == "return" else " gets"
        yield (f"{line_of(mine)}{mine}{verb} {naming.value(has, nth, wants)}{role} instead of "
               f"{naming.value(wants, nth)}")
        return


def unfreed(mine: Sequence[VerbCall], due: Sequence[VerbCall], naming: "Naming") -> Iterator[Found]:
    """The results that are still in memory when a call begins, where the shipped stage has freed them."""
    places = places_of(mine)
    for call, _, place in matched(mine, due):
        for key, number in sorted(mine[place].alive - call.alive) if place is not None else ():
            result = mine[places[key][number - 1]]
            what = f"{GAVE[result.verb][-1]}{f' of {result.unit}' * bool(result.unit)}"
            yield False, place or 0, (f"{line_of(mine[place or 0])}{mine[place or 0]} finds {what}"
                                      f"{line_of(result, ' (line {})')} still in memory")


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
    found = float(has.flat[at]) / float(wants.flat[at])
    return found if found and abs(found - 1) > 1e-2 and nearly(has, found * wants) else None


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


class Names:
    """The origins of values: what verbs give in the shipped stage, what they get there, and what they give in ours."""

    def __init__(self, mine: Log, due: Log) -> None:
        self.origins = defaultdict[Any, list[Origin]](list)
        self.ranks = 1 + max(rank for _, rank in due)
        self.add(due, GAVE, "gave")
        self.add(due, GOT, "given")
        self.add(mine, GAVE, "gave")

    def add(self, log: Log, table: dict[str, tuple[str, ...]], side: str) -> None:
        for (step, rank), calls in log.items():
            counts = Counter[Key]()
            for call in calls:
                for what, value in zip(table.get(call.verb, ()), getattr(call, side), strict=False):
                    own = rank if isinstance(value, OwnChunk) else None
                    origin = Origin(what, call.unit, step, rank, counts[call.key], own)
                    self.origins[key_of(value)].append(origin)
                    if isinstance(value, np.ndarray) and value.ndim == 1 and not value.size % self.ranks:
                        for chunk, part in enumerate(np.split(value, self.ranks)):
                            self.origins[key_of(part)].append(replace(origin, chunk=chunk))
                counts[call.key] += 1


@dataclass(frozen=True)
class Naming:
    """Names of values for a student who looks at a rank's step."""

    names: Names
    step: int
    rank: int

    def value(self, value: Any, nth: int, wanted: Any = None) -> str:
        """A value by the call that gives or gets it, or as a multiple of the wanted one; else its type and size."""
        own = isinstance(value, OwnChunk)
        value, wanted = (each.array if isinstance(each, OwnChunk) else each for each in (value, wanted))
        if isinstance(value, np.ndarray | list) and (found := self.names.origins.get(key_of(value))):
            return self.origin(min(found, key=self.distance), nth, own)
        if (times := factor(value, wanted)) is not None:
            return f"{times:.3g} times {self.value(OwnChunk(wanted) if own else wanted, nth)}"
        if isinstance(value, np.ndarray):
            zeros = " zeros" * (not np.any(value))
            return f"an array of {' × '.join(map(str, value.shape))} {value.dtype}{zeros}"
        return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r}"

    def distance(self, origin: Origin) -> tuple[bool, bool, bool]:
        return origin.step != self.step, origin.rank != self.rank, origin.chunk is not None

    def origin(self, found: Origin, nth: int, own: bool) -> str:
        chunk = "" if found.chunk is None or (own and found.chunk == self.rank) else f"chunk {found.chunk} of "
        unit = f" of {found.unit}" * bool(found.unit)
        rank = f" on rank {found.rank}" * (found.rank != self.rank)
        part = f" in part {found.nth + 1}" * (found.nth != nth and found.step == self.step)
        step = f" in step {found.step}" * (found.step != self.step)
        return f"{chunk}{found.what}{unit}{rank}{part}{step}"


def key_of(value: Any) -> Any:
    """A key that is equal for equal values only."""
    value = value.array if isinstance(value, OwnChunk) else value
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return tuple(map(key_of, value)) if isinstance(value, list) else value
