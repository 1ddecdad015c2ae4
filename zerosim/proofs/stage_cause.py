"""Why a stage is wrong: its first call that differs from the shipped stage with the same sharding, on the same batches.

The n-th call of a verb for a unit in a step is compared with the n-th of the shipped stage: it is missing, or one too
many, or gets something else. If none is, the order of the calls is compared, and then what is in memory when each
call begins. Values are named by the calls that give or get them.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from zerosim.core.allocation import Array
from zerosim.observe.observed import ObservedObject
from zerosim.stages import StageStep
from zerosim.stages.replica import Batch, Replica
from zerosim.worlds.call_stack import line_in


@dataclass(frozen=True)
class Verb:
    """What a call of a verb gets besides the unit, and what it gives, in words; `first_got` are values of no verb."""

    given: Sequence[str] = ("",)
    gave: Sequence[str] = ()
    first_got: Sequence[str] = ()
    of: str = "replica"
    optional: bool = False
    """Whether a step may replace it by messages of its own."""
    own: bool = False
    """Whether only this rank's chunk of its argument matters."""


REDUCED = Verb(["gradient"], ["the reduced gradient"], optional=True)
KEPT = Verb(["gradient"], own=True)
VERBS = {
    "forward": Verb(["weights", "activations"], ["the output"], ["the weights", "the inputs"], of="tape"),
    "loss": Verb(["name", "outputs", "targets", "count", "loss so far"],
                 ["the loss", "the upstream gradient of the loss"], of="tape"),
    "backward": Verb(["weights", "upstream gradient"], ["the upstream gradient from backward", "the gradient"],
                     of="tape"),
    "zero_grad": Verb(), "gather": Verb(gave=["the gathered weights"], optional=True), "unscale_and_clip": Verb(),
    "reduce_scatter": REDUCED, "reduce": REDUCED, "keep": KEPT, "keep_shard": KEPT, "update": Verb(["weights"]),
    "publish": Verb(["weights"], first_got=["the updated weights"], optional=True, own=True), "return": Verb(of=""),
}
SAME = {"reduce": "reduce_scatter", "keep_shard": "keep"}
"""Verbs that stand for another one."""


class NthCall(NamedTuple):
    """A call in a step: its verb, or the one that it stands for, its unit, and its number among those."""

    verb: str
    unit: str
    nth: int


class OwnChunk(np.ndarray[Any, Any]):
    """This rank's chunk of a full buffer whose other chunks do not matter."""


@dataclass
class VerbCall:
    """A call of a verb: copies of its arguments besides the unit and of its results, and its line."""

    verb: str
    unit: str
    given: dict[str, Any]
    line: int
    alive: set[NthCall]
    """The earlier calls whose results are in memory as it begins."""
    gave: dict[str, Any] = field(default_factory=dict)
    result: Callable[[], Any] = lambda: None
    """The array that it gave, while that is in memory."""

    def __str__(self) -> str:
        verb = "reduce_scatter" if self.verb == "reduce" else self.verb
        return f"{VERBS[verb].of}.{verb}({self.unit})" if VERBS[verb].of else "the step returns"

    def line_in(self, words: str = "line {}: ") -> str:
        """Its line in these words; empty if it is not known."""
        return words.format(self.line) if self.line else ""


Calls = dict[NthCall, VerbCall]
"""The calls of a step on one rank, in their order; one that returned ends with a call of `return`."""

Log = dict[tuple[int, int], Calls]
"""The calls of a run, by step and rank."""


def recording(step: StageStep, log: Log, file: str = "") -> StageStep:
    """The step, on a replica whose calls are added to `log`, with their lines in `file`."""

    def recorded_step(replica: Replica, batch: Batch) -> Any:
        calls = log[batch.step, replica.comm.rank] = Calls()

        def begun(verb: str, given: Sequence[Any]) -> VerbCall:
            unit = getattr(given[0], "name", "") if given else ""
            alive = {place for place, call in calls.items() if call.result() is not None}
            kind, own = SAME.get(verb, verb), given[0] if VERBS[verb].own else None
            copies = (copied(replica, argument, own) for argument in given[bool(unit) :])
            call = VerbCall(verb, unit, dict(zip(VERBS[verb].given, copies, strict=False)), line_in(file), alive)
            calls[NthCall(kind, unit, sum(earlier[:2] == (kind, unit) for earlier in calls))] = call
            return call

        def noting(verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call_of_verb(*given: Any, **named: Any) -> Any:
                call = begun(verb, [*given, *named.values()])
                gave = method(*given, **named)
                values = gave if isinstance(gave, tuple) else (gave,)
                copies = (copied(replica, value, given[0] if VERBS[verb] is REDUCED else None) for value in values)
                call.gave = dict(zip(VERBS[verb].gave, copies, strict=False))
                last = values[-1][0] if isinstance(values[-1], list) and values[-1] else values[-1]
                while isinstance(getattr(last, "base", None), np.ndarray):
                    last = last.base
                if isinstance(last, np.ndarray):
                    call.result = weakref.ref(last)
                return gave

            return call_of_verb

        def noted(thing: Any, of: str, **instead: Any) -> Any:
            methods = {verb: noting(verb, getattr(thing, verb)) for verb, about in VERBS.items() if about.of == of}
            return ObservedObject(thing, methods | instead)

        loss = step(noted(replica, "replica", tape=noted(replica.tape, "tape")), batch)
        begun("return", (loss,))
        return loss

    return recorded_step


def copied(replica: Replica, value: Any, unit: Any = None) -> Any:
    """A copy of arrays; if `unit` is given, a full buffer becomes this rank's own chunk."""
    if isinstance(value, np.ndarray):
        full = unit is not None and value.size == replica.state.placement.full(unit).length
        return replica.own(value).copy().view(OwnChunk) if full else value.copy()
    if isinstance(value, list | tuple):
        return [copied(replica, element) for element in value]
    return value if isinstance(value, int | float | str | None) else type(value)


# The first difference.

Difference = tuple[bool, float, str]
"""A difference in words; before them whether it may follow from an early end of the step, and the number of its call.
"""


def first_unlike(examined: Log, shipped: Log) -> str | None:
    """The first difference of all ranks in the first step with one, in words; None if there is none."""
    naming = Naming(examined, shipped)
    for comparison in (partial(unlike, exactly=False), partial(unlike, exactly=True), unfreed):
        for step in sorted({step for step, _ in shipped}):
            differences = [(*at, rank, words) for rank in sorted(rank for other, rank in shipped if other == step)
                           for *at, words in comparison(examined.get((step, rank), {}), shipped[step, rank],
                                                        partial(naming.value, step=step, rank=rank))]
            if differences:
                *_, rank, words = min(differences)
                return f"{words} (rank {rank}, step {step})"
    return None


def unlike(calls: Calls, expected: Calls, named: Callable[..., str], exactly: bool) -> Iterator[Difference]:
    """The differences between the calls of one step: arguments, missing ones, those too many, and the order."""
    index, places = {place: number for number, place in enumerate(calls)}, list(expected)
    early, last = not any(place.verb == "return" for place in calls), -1
    for number, place in enumerate(places):
        if place in calls:
            last = index[place]
            if words := argument(calls[place], expected[place], place.nth, named, exactly):
                yield False, last, words
        elif later := next((calls[other] for other in places[number:] if index.get(other, -1) > last), None):
            words = f"{expected[place]} is not called{' again' * bool(place.nth)} before {later}"
            if not VERBS[place.verb].optional or not place.nth:
                at = (True, len(calls) + number) if VERBS[place.verb].optional else (early, last + 0.5)
                yield *at, f"{words}{later.line_in(' in line {}')}"
    for place in calls.keys() - expected.keys():
        if not place.nth or place._replace(nth=place.nth - 1) in expected:
            times = sum(other[:2] == place[:2] for other in calls)
            due = (f"{times} times, where {place.nth} {'is' if place.nth == 1 else 'are'} due" if place.nth else
                   "though it is not due")
            yield False, index[place], f"{calls[place].line_in()}{calls[place]} is called {due}"
    firsts = {place.verb: place for place in reversed(calls)}
    if verbs := out_of_order((place.verb for place in calls), (place.verb for place in expected)):
        early_call, late_call = (firsts[verb] for verb in verbs)
        yield early, index[early_call], before(calls[early_call], calls[late_call])
    if pair := out_of_order(calls, expected):
        yield early, len(calls), before(*(calls[place] for place in pair))


def out_of_order(has: Iterable[Any], wants: Iterable[Any]) -> tuple[Any, Any] | None:
    """The first of what two sequences share that comes in place of another one, and that one."""
    has, wants = dict.fromkeys(has), dict.fromkeys(wants)
    pairs = zip((key for key in has if key in wants), (key for key in wants if key in has), strict=True)
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def before(call: VerbCall, other: VerbCall) -> str:
    return f"{call.line_in()}{call} is called before {other}{other.line_in(' (line {})')}"


def argument(call: VerbCall, expected: VerbCall, nth: int, named: Callable[..., str], exactly: bool) -> str | None:
    """The first argument that differs, or the verb."""
    if VERBS[call.verb].own and call.verb != expected.verb:
        return f"{call.line_in()}{call} is called instead of {expected}"
    for what in VERBS[call.verb].given:
        has, wants = call.given.get(what), expected.given.get(what)
        if not same(has, wants, exactly):
            role = f" as {what}" * (len(VERBS[call.verb].given) > 1)
            verb = "" if call.verb == "return" else " gets"
            return (f"{call.line_in()}{call}{verb} {named(has, nth, wants)}{role} instead of "
                    f"{named(wants, nth)}")
    return None


def unfreed(calls: Calls, expected: Calls, named: Callable[..., str]) -> Iterator[Difference]:
    """The results that are still in memory when a call begins, where the shipped stage has freed them."""
    for index, (place, call) in enumerate(calls.items()):
        for freed in sorted(call.alive - expected[place].alive) if place in expected else ():
            result = calls[freed]
            what = f"{VERBS[result.verb].gave[-1]}{f' of {result.unit}' * bool(result.unit)}"
            yield False, index, f"{call.line_in()}{call} finds {what}{result.line_in(' (line {})')} still in memory"


def same(has: Any, wants: Any, exactly: bool) -> bool:
    if isinstance(has, np.ndarray) and isinstance(wants, np.ndarray):
        return has.dtype == wants.dtype and has.shape == wants.shape and (
            has.tobytes() == wants.tobytes() if exactly else nearly(has, wants))
    if isinstance(has, list) and isinstance(wants, list):
        return len(has) == len(wants) and all(same(*pair, exactly) for pair in zip(has, wants, strict=True))
    return type(has) is type(wants) and bool(has == wants)


def nearly(has: Array, wants: Array) -> bool:
    return np.allclose(has.astype(np.float64), wants.astype(np.float64), rtol=1e-3, atol=1e-6, equal_nan=True)


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


class Origin(NamedTuple):
    """Where a value is given or got: the call by step, rank, unit and number among its kind; a chunk, or the whole."""

    what: str
    unit: str
    step: int
    rank: int
    nth: int
    chunk: int | None = None


class Naming:
    """Names of values: what verbs give and get in the shipped stage, and what they give in the examined one."""

    def __init__(self, examined: Log, shipped: Log) -> None:
        self.origins: dict[Any, list[Origin]] = defaultdict(list)
        ranks = 1 + max(rank for _, rank in shipped)
        for log, first_got in ((shipped, False), (shipped, True), (examined, False)):
            for (step, rank), calls in log.items():
                for place, call in calls.items():
                    got = zip(VERBS[call.verb].first_got, call.given.values(), strict=False)
                    for what, value in got if first_got else call.gave.items():
                        own = rank if isinstance(value, OwnChunk) else None
                        origin = Origin(what, call.unit, step, rank, place.nth, own)
                        self.origins[key_of(value)].append(origin)
                        if own is None and isinstance(value, np.ndarray) and value.ndim == 1 and not value.size % ranks:
                            for chunk, part in enumerate(np.split(value, ranks)):
                                self.origins[key_of(part)].append(origin._replace(chunk=chunk))

    def value(self, value: Any, nth: int, wanted: Any = None, *, step: int, rank: int) -> str:
        """A value by the call that gives or gets it, as seen in the nth call of its kind on a rank in a step; or as a
        multiple of the wanted one; else its type and size."""
        if isinstance(value, np.ndarray | list) and (origins := self.origins.get(key_of(value))):
            origin = min(origins, key=lambda it: (it.step != step, it.rank != rank, it.chunk is not None))
            whole = origin.chunk is None or (isinstance(value, OwnChunk) and origin.chunk == rank)
            return "".join([
                "" if whole else f"chunk {origin.chunk} of ", origin.what, f" of {origin.unit}" * bool(origin.unit),
                f" on rank {origin.rank}" * (origin.rank != rank),
                f" in part {origin.nth + 1}" * (origin.nth != nth and origin.step == step),
                f" in step {origin.step}" * (origin.step != step)])
        if (times := factor(value, wanted)) is not None:
            return f"{times:.3g} times {self.value(wanted, nth, step=step, rank=rank)}"
        if isinstance(value, np.ndarray):
            zeros = " zeros" * (not np.any(value))
            return f"an array of {' × '.join(map(str, value.shape))} {value.dtype}{zeros}"
        if isinstance(value, type):
            return f"a {value.__name__}"
        return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r}"


def key_of(value: Any) -> Any:
    """A key that is equal for equal values only."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return tuple(map(key_of, value)) if isinstance(value, list) else value
