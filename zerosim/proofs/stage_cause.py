"""Why a stage is wrong: its first call that differs from the shipped stage with the same sharding, on symbols.

Both run as `contents.py` runs a stage, so every value says what it is: which weights after how many updates, whose
gradients are in a sum, which computation an activation comes from. The n-th call of a verb for a unit in a step is
compared with the n-th of the shipped stage: it is missing, or one too many, or gets something else. If none is, the
order of the calls is compared, and then what is in memory when each call begins.
"""

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np

from zerosim.core.parts import Named
from zerosim.core.terms import Blank, Sum, Term, commuted, leaves
from zerosim.core.words import joined
from zerosim.observe.observed import ObservedObject
from zerosim.proofs.contents import LOSS, State
from zerosim.proofs.symbolic_step import STEPS, Activation, Scaled, SymbolTape, contents_of
from zerosim.stages import Stage, StageStep
from zerosim.stages.replica import Batch, Replica
from zerosim.training.config import Config
from zerosim.worlds.call_stack import line_in

LIMIT_SECONDS = 10.0
VERBS = {
    SymbolTape: ("forward", "loss", "backward"),
    Replica: ("zero_grad", "gather", "reduce", "reduce_scatter", "keep", "keep_shard", "unscale_and_clip", "update",
              "publish")}
SIGNATURES = {verb: inspect.signature(getattr(of, verb)) for of, verbs in VERBS.items() for verb in verbs}
"""The parameters of the recorded verbs."""
OPTIONAL = {"gather", "reduce_scatter", "publish"}
"""The verbs that a step may replace by messages of its own."""
OWN = {"keep", "keep_shard", "publish"}
"""The verbs for which only this rank's chunk of a full buffer matters."""


class NthCall(NamedTuple):
    """A call in a step: its verb, `keep` for `keep_shard` too, its unit, and its number among those."""

    verb: str
    unit: str
    nth: int


@dataclass
class VerbCall:
    """A call of a verb: what its arguments besides the unit hold as it begins, and its line."""

    name: str
    given: dict[str, Any]
    line: int
    alive: set[NthCall]
    """The earlier calls whose results are in memory as it begins."""
    gave: Any = None
    """What its result, the last of several, holds as it ends."""
    result: Callable[[], Any] = lambda: None
    """The array of its result, while that is in memory."""

    def __str__(self) -> str:
        return self.name

    def line_in(self, words: str = "line {}: ") -> str:
        """Its line in these words; empty if it is not known."""
        return words.format(self.line) if self.line else ""


Calls = dict[NthCall, VerbCall]
"""The calls of a step on one rank, in their order; one that returned ends with a call of `return`."""

Log = dict[tuple[int, int], Calls]
"""The calls of a run, by step and rank."""


def recorded(config: Config, stage: Stage, file: str) -> Log:
    """The calls of a stage in the steps of a row, up to an exception, with their lines in `file`."""
    log = Log()
    watched = Named(f"{stage.key} recorded", replace(stage, step=recording(stage.step, log, file)), "")
    with suppress(Exception):
        contents_of(replace(config, stage_key=watched), LIMIT_SECONDS, tolerant=True)
    return log


def recording(step: StageStep, log: Log, file: str) -> StageStep:
    """The step, on a replica whose calls are added to `log`."""

    @wraps(step)
    def recorded_step(replica: Replica, batch: Batch) -> Any:
        calls = log[batch.step, replica.comm.rank] = Calls()

        def begun(name: str, verb: str, unit: str, given: dict[str, Any]) -> VerbCall:
            alive = {place for place, call in calls.items() if call.result() is not None}
            values = {what: held(value, replica if verb in OWN else None) for what, value in given.items()}
            kind = verb.removesuffix("_shard")
            place = NthCall(kind, unit, sum(earlier[:2] == (kind, unit) for earlier in calls))
            return calls.setdefault(place, VerbCall(name, values, line_in(file), alive))

        def noting(of: str, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call_of_verb(*given: Any, **named: Any) -> Any:
                known = "reduce_scatter" if verb == "reduce" else verb
                bound = SIGNATURES[verb].bind(None, *given, **named).arguments
                unit = getattr(bound.get("unit"), "name", "")
                call = begun(f"{of}.{known}({unit})", known, unit, {
                    what: value for what, value in bound.items() if what not in ("self", "unit", "earlier")})
                gave = method(*given, **named)
                last = gave[-1] if isinstance(gave, tuple | list) and gave else gave
                last = last[0] if isinstance(last, list) and last else last
                call.gave = held(last, replica if known == "reduce_scatter" else None)
                while isinstance(getattr(last, "base", None), np.ndarray):
                    last = last.base
                call.result = weakref.ref(last) if isinstance(last, np.ndarray) else call.result
                return gave

            return call_of_verb

        def noted(of: str, thing: Any, **instead: Any) -> Any:
            methods = {verb: noting(of, verb, getattr(thing, verb)) for verb in SIGNATURES if hasattr(thing, verb)}
            return ObservedObject(thing, methods | instead)

        loss = step(noted("replica", replica, tape=noted("tape", replica.tape)), batch)
        begun("the step returns", "return", "", {"": loss})
        return loss

    return recorded_step


def held(value: Any, owner: Replica | None = None) -> Any:
    """The symbols in an array, sums without the order of `a + b`; of a full buffer only the owner's chunk, if given."""
    if isinstance(value, np.ndarray):
        chunk = owner.own(value) if owner is not None and value.size == owner.mesh.group else value
        return tuple(commuted(symbol) if isinstance(symbol, Sum) else symbol for symbol in chunk.reshape(-1).tolist())
    if isinstance(value, list | tuple):
        return [held(element) for element in value]
    return value if isinstance(value, int | float | str | None) else type(value)


# The first difference.

Difference = tuple[float, str]
"""A difference in words, after the number of its call."""


def first_unlike(config: Config, stage: Stage, shipped: Stage) -> str | None:
    """The first difference of all ranks in the first step with one, in words; None if there is none."""
    examined, expected = (recorded(config, of, stage.step.__code__.co_filename) for of in (stage, shipped))
    for comparison in (unlike, unfreed):
        for step in range(1, STEPS + 1):
            differences = [
                (number, rank, words) for rank in range(config.directions.data)
                for number, words in comparison(
                    examined.get((step, rank), {}), expected[step, rank], partial(named_in, config, step, rank))]
            if differences:
                _, rank, words = min(differences)
                return f"{words} (rank {rank}, step {step})"
    return None


def unlike(calls: Calls, expected: Calls, named: Callable[..., str]) -> Iterator[Difference]:
    """The differences between the calls of one step: arguments, missing ones, those too many, and the order."""
    index, places = {place: number for number, place in enumerate(calls)}, list(expected)
    last = -1
    for number, place in enumerate(places):
        if place in calls:
            last = index[place]
            if words := argument(place.verb, calls[place], expected[place], named):
                yield last, words
        elif (later := next((other for other in places[number:] if index.get(other, -1) > last), None)) and (
                place.verb not in OPTIONAL or not place.nth):
            after = last if places[-1] in calls else index[later]    # without the end, it may have come later
            yield len(calls) + number if place.verb in OPTIONAL else after + 0.5, (
                f"{expected[place]} is not called{' again' * bool(place.nth)} before {calls[later]}"
                f"{calls[later].line_in(' in line {}')}")
    for place in calls.keys() - expected.keys():
        if not place.nth or place._replace(nth=place.nth - 1) in expected:
            times = sum(other[:2] == place[:2] for other in calls)
            due = (f"{times} times, where {place.nth} {'is' if place.nth == 1 else 'are'} due" if place.nth else
                   "though it is not due")
            yield index[place], f"{calls[place].line_in()}{calls[place]} is called {due}"
    for width in (1, 3):    # the order of verbs, then that of all calls
        firsts = {place[:width]: place for place in reversed(calls)}
        has, wants = (dict.fromkeys(place[:width] for place in those) for those in (calls, expected))
        pairs = zip((key for key in has if key in wants), (key for key in wants if key in has), strict=True)
        for first, other in [(firsts[key], firsts[due]) for key, due in pairs if key != due][:1]:
            yield index[first] if width == 1 else len(calls), (
                f"{calls[first].line_in()}{calls[first]} is called before {calls[other]}"
                f"{calls[other].line_in(' (line {})')}")


def argument(verb: str, call: VerbCall, expected: VerbCall, named: Callable[..., str]) -> str | None:
    """The first argument that differs, or the verb."""
    if verb == "keep" and call.name != expected.name:
        return f"{call.line_in()}{call} is called instead of {expected}"
    for what in expected.given:
        pair = call.given.get(what), expected.given[what]
        if pair[0] != pair[1]:
            has, wants = (named(value, own=verb in OWN) for value in pair)
            if has == wants:
                has, wants = (f"{name} as {written(value)}" for name, value in zip((has, wants), pair, strict=True))
            role = f" as {what}" * (len(expected.given) > 1)
            return f"{call.line_in()}{call}{' gets' * (verb != 'return')} {has}{role} instead of {wants}"
    return None


def unfreed(calls: Calls, expected: Calls, named: Callable[..., str]) -> Iterator[Difference]:
    """The results that are still in memory when a call begins, where the shipped stage has freed them."""
    for index, (place, call) in enumerate(calls.items()):
        for freed in sorted(call.alive - expected[place].alive) if place in expected else ():
            result = calls[freed]
            yield index, (f"{call.line_in()}{call} finds {named(result.gave, own=freed.verb in OPTIONAL)}"
                          f"{result.line_in(' (line {})')} still in memory")


# The names of values.


def symbols_in(value: Any) -> list[Any]:
    """The symbols in an array, or in a list of arrays."""
    return [symbol for part in value for symbol in symbols_in(part)] if isinstance(value, list | tuple) else [value]


def written(value: Any) -> str:
    """The symbols in a value, those that are written alike once, and whether they are in an array or in a list."""
    kind = "a list of " if isinstance(value, list) else ""
    return kind + joined([*dict.fromkeys(map(str, symbols_in(value)))])


def named_in(config: Config, step: int, rank: int, value: Any, own: bool = False) -> str:
    """The name of a value; its chunks are named unless it has all of one kind, or only the rank's, if that is meant."""
    if not isinstance(value, list | tuple):
        return f"a {value.__name__}" if isinstance(value, type) else repr(value)
    chunks = dict[str, list[int]]()
    for symbol in symbols_in(value):
        words, *chunk = symbol_in(config, step, rank, symbol)
        chunks.setdefault(words, []).extend(chunk)
    whole: Any = [], [*range(config.directions.data)], [rank] if own else []
    names = [words if numbers in whole else f"chunk{'s' * (len(numbers) > 1)} {joined([*map(str, numbers)])} of {words}"
             for words, numbers in chunks.items()]
    return joined(names) if names else f"an empty {'list' if isinstance(value, list) else 'array'}"


def symbol_in(config: Config, step: int, rank: int, symbol: Any) -> tuple[Any, ...]:
    """A symbol in words, and its chunk if it belongs to one."""
    size, units = config.directions.data, config.model.units
    if isinstance(symbol, Activation):
        return (f"{symbol.what}{f' of {symbol.unit}' * bool(symbol.unit)}",)
    if isinstance(symbol, Scaled):
        words, *chunk = symbol_in(config, step, rank, symbol.content)
        return f"{symbol.factor:.3g} times {words}", *chunk
    if isinstance(symbol, State):
        how = "updated " if symbol.updates == step else "gathered " * config.stage.gathers
        late = f" in step {symbol.updates + 1}" * (symbol.updates < step - 1)
        return (f"the {'wrongly ' * (not symbol.right)}{how}weights of {units[symbol.element // size].name}{late}",
                symbol.element % size)
    if symbol is None or isinstance(symbol, Blank):
        return ("values that were never filled",)
    if not isinstance(symbol, Term | Sum):
        return ("zeros" if isinstance(symbol, int | float) and not symbol else repr(symbol),)
    counts = Counter(leaves(symbol))
    if any(not isinstance(leaf, Term) for leaf in counts) or len({leaf.element for leaf in counts}) > 1:
        return ("values that are no sums of contributions to one chunk",)
    (element,), ranks = {leaf.element for leaf in counts}, sorted({leaf.rank // config.block for leaf in counts})
    often = min(counts.values())
    again = [str(leaf) for leaf in counts if counts[leaf] > often]
    reduced = "reduced " * (len(ranks) == size > 1)
    what = "the loss" if element == LOSS else f"the {reduced}gradient of {units[element // size].name}"
    others = f" on {'ranks' if len(ranks) > 1 else 'rank'} {joined([*map(str, ranks)])}"
    return (f"{f'{often} times ' * (often > 1)}{what}{others * (not reduced and ranks != [rank])}"
            f"{f' with {joined(again)} added again' if again else ''}", *[element % size] * (element != LOSS))
