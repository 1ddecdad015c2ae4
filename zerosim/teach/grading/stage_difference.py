"""The first difference of a learner's step from the library's: one comparison of calls, one table of advice.

A difference is a call out of order, one too many, one that is missing, an argument, or an array kept after the step.
The first one in the order of the learner's calls is the cause, since later ones follow from it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.numerics.precisions import PRECISIONS
from zerosim.stages.state import GRADIENT
from zerosim.teach.grading.stage_advice import ADVICE, like, often, same, shape, times_of, what_gradient, wrong_weights
from zerosim.teach.grading.verb_calls import TAPE_VERBS, StageCase, StepCalls, VerbCall, in_parts
from zerosim.teach.proofs.case import Observation

EQUIVALENT = {"reduce": "reduce_scatter", "keep_shard": "keep"}
ARGUMENTS = {
    "forward": ("weights", "activations"), "backward": ("weights", "the upstream gradient"),
    "loss": ("the loss's name", "outputs", "targets", "samples", "the loss so far"),
    "reduce_scatter": ("its gradient",),
}
"""The names of the compared arguments of each verb, in order."""
PHASES = ("zero_grad", "forward", "loss", "backward", "keep", "unscale_and_clip", "update")
"""The verbs that every step needs, in the order in which a unit reaches them."""
LATE = (
    ("zero_grad", "loss"), ("zero_grad", "keep"), ("keep", "unscale_and_clip"), ("unscale_and_clip", "update"),
    ("forward", "update"), ("backward", "update"), ("update", "publish"),
)
"""Pairs of verbs of which the first must not follow the second, for the same unit if both have one."""
COUNTED = ("zero_grad", "loss", "reduce_scatter", "keep", "unscale_and_clip", "update")
GATHERING = ("gather", "all_gather", "publish")


@dataclass(frozen=True)
class CallDifference:
    """A difference in words without its rank, and the number of the learner's call at which it occurs."""

    when: float
    rank: int
    words: str
    kind: str = ""
    subject: str = ""

    def sentence(self) -> str:
        """The difference and the advice; an `Observation` if the words are one."""
        advice = ADVICE.get(self.kind, {}).get(self.subject, "")
        said = f"rank {self.rank}{self.words}{f': {advice}' * bool(advice)}"
        return Observation(said) if isinstance(self.words, Observation) else said


def stage_difference(case: StageCase) -> str | None:
    """The first difference of all ranks, in words; None if there is none."""
    ranks = [RankDifferences(case, rank) for rank in range(case.ranks)]
    for differences in (RankDifferences.in_calls, RankDifferences.elsewhere):
        if found := [each for rank in ranks for each in differences(rank)]:
            return first_of(found)
    return superfluous_collective(case)


def superfluous_collective(case: StageCase) -> str | None:
    """The first collective that is called more often than in the library's step, in words."""
    found = [each for rank in range(case.ranks)
             for each in RankDifferences(case, rank).superfluous_calls((*COUNTED, *GATHERING))]
    return first_of(found) if found else None


def first_of(found: Sequence[CallDifference]) -> str:
    return min(found, key=lambda each: (each.when, each.rank)).sentence()


def verb_of(call: VerbCall) -> str:
    return EQUIVALENT.get(call.verb, call.verb)


def spelled(verb: str, unit: str = "") -> str:
    """A call as a learner writes it.

    >>> spelled("loss"), spelled("keep", "layers.0"), spelled("zero_grad")
    ('tape.loss', 'replica.keep of layers.0', 'zero_grad(batch)')
    """
    if verb in ("zero_grad", "unscale_and_clip"):
        return "zero_grad(batch)" if verb == "zero_grad" else f"replica.{verb}()"
    return f"{'tape' if verb in TAPE_VERBS else 'replica'}.{verb}{f' of {unit}' * bool(unit)}"


def late_calls(calls: Sequence[VerbCall]) -> dict[tuple[str, str], tuple[int, VerbCall]]:
    """For each pair of `LATE` that occurs, the number of the first late call, and the call that it follows."""
    found: dict[tuple[str, str], tuple[int, VerbCall]] = {}
    for number, call in enumerate(calls):
        for earlier in calls[:number]:
            pair = verb_of(call), verb_of(earlier)
            if pair in LATE and (call.unit == earlier.unit or not (call.unit and earlier.unit) or pair[0] in (
                    "forward", "backward")):
                found.setdefault(pair, (number, earlier))
    return found


@dataclass(frozen=True)
class RankDifferences:
    """The calls of one rank beside the expected ones."""

    case: StageCase
    rank: int

    @cached_property
    def mine(self) -> StepCalls:
        return self.case.mine(self.rank)

    @cached_property
    def due(self) -> StepCalls:
        return self.case.due(self.rank)

    @cached_property
    def pairs(self) -> list[tuple[VerbCall, int, int | None]]:
        """Each expected call, its part, and the number of the learner's call of the same verb, unit and count."""
        made = defaultdict[tuple[str, str], list[int]](list)
        for number, call in enumerate(self.mine.calls):
            made[verb_of(call), call.unit].append(number)
        seen, found = Counter[tuple[str, str]](), list[tuple[VerbCall, int, int | None]]()
        for call, part in in_parts(self.due):
            key = verb_of(call), call.unit
            found.append((call, part, made[key][seen[key]] if seen[key] < len(made[key]) else None))
            seen[key] += 1
        return found

    def in_calls(self) -> Iterator[CallDifference]:
        """Differences that change the result: order, number and arguments of calls, and the arrays kept after them."""
        honest = late_calls(self.due.calls)
        for pair, (number, earlier) in late_calls(self.mine.calls).items():
            if pair not in honest:
                call = self.mine.calls[number]
                words = f" calls {spelled(call.verb, call.unit)} after {spelled(earlier.verb, earlier.unit)}"
                yield CallDifference(number, self.rank, words, "late", pair[0])
        yield from self.missing_calls()
        yield from self.superfluous_calls(COUNTED)
        yield from self.other_units()
        for due, part, made in self.pairs:
            if made is not None:
                yield from self.in_arguments(made, self.mine.calls[made], due, part)
        if self.mine.after:
            yield from self.in_gradients()
            yield from self.in_state()

    def missing_calls(self) -> Iterator[CallDifference]:
        """Calls without which a step is wrong: all of a complete step, and those that a later call requires."""
        following, made = float(len(self.mine.calls)), list[tuple[VerbCall, int]]()
        enough = Counter((verb_of(call), call.unit) for call, _, _ in self.pairs)
        counts = Counter((verb_of(call), call.unit) for call in self.mine.calls)
        for place, (call, part, number) in reversed([*enumerate(self.pairs)]):
            verb = verb_of(call)
            if number is not None:
                following = number
                made.append((call, part))
            elif verb in PHASES[:-1] and (self.mine.after or any(
                    requires(other, call) and its_part >= part for other, its_part in made)):
                times, due = counts[verb, call.unit], enough[verb, call.unit]
                words = (f" calls {spelled(verb, call.unit)} {often(times)}; expected {often(due)}" if times else
                         f": {spelled(verb, call.unit)} is not called")
                subject = "loss" if times and verb in TAPE_VERBS else verb
                yield CallDifference(following - 1 + place / len(self.pairs), self.rank, words, "no", subject)

    def superfluous_calls(self, verbs: Sequence[str]) -> Iterator[CallDifference]:
        """Calls of these verbs that are made more often for a unit than expected."""
        enough = Counter((verb_of(call), call.unit) for call in self.due.calls)
        made = defaultdict[tuple[str, str], list[int]](list)
        for number, call in enumerate(self.mine.calls):
            made[verb_of(call), call.unit].append(number)
        for (verb, unit), numbers in made.items():
            if verb in verbs and len(numbers) > enough[verb, unit]:
                words = (f" calls {spelled(verb, unit)} {often(len(numbers))}; expected "
                         f"{often(enough[verb, unit])}")
                yield CallDifference(numbers[enough[verb, unit]], self.rank, words, "more", verb)

    def other_units(self) -> Iterator[CallDifference]:
        """Units in a different order, and parts that run forward before an earlier one has run backward."""
        for verb in ("forward", "backward"):
            made = [(number, call.unit) for number, call in enumerate(self.mine.calls) if call.verb == verb]
            for (number, unit), call in zip(made, self.due.of(verb), strict=False):
                if unit != call.unit:
                    words = f" runs {verb} of {unit}; expected {call.unit}"
                    yield CallDifference(number - 0.7, self.rank, words, "other", verb)
                    break
        ahead, enough = (losses_before_backward(calls) for calls in (self.mine.calls, self.due.calls))
        if ahead > enough:
            number = next(number for number, call in enumerate(self.mine.calls) if call.verb == "backward")
            words = f" runs {ahead} parts forward before it runs one backward"
            yield CallDifference(number - 0.8, self.rank, words, "ahead", "backward")

    def in_arguments(self, number: int, call: VerbCall, due: VerbCall, part: int) -> Iterator[CallDifference]:
        """The first argument of a call that differs."""
        where = f": {spelled(call.verb, call.unit)}{f' in part {part}' * (self.case.parts > 1)}"
        if call.verb == "update" and due.aliases_weights and not call.aliases_weights:
            words = f": replica.update worked on a copy of {call.unit}"
            yield CallDifference(number, self.rank, words, "copy", "update")
        if call.verb == "loss" and len(due.arguments) > 4 and due.arguments[4] is not None and len(call.arguments) == 4:
            words = f"{where} does not get the loss so far, its last argument"
            yield CallDifference(number, self.rank, words, "gets", "the loss so far")
        for name, mine, wanted in zip(ARGUMENTS.get(verb_of(call), ()), call.arguments, due.arguments, strict=False):
            narrow = rounded_to(mine, wanted) if name == "its gradient" else None
            if narrow:
                yield CallDifference(number, self.rank, (
                    f"{where} gets its gradient rounded to {narrow}: pass the unrounded gradient and declare the "
                    f"rounding, @stage(…, wire=\"{narrow}\"), so that the reference rounds too"))
            elif equal(mine, wanted):
                continue
            elif name == "weights" and arrays(mine, wanted) and mine.dtype == wanted.dtype:
                words = f" runs {call.verb} of {call.unit} with {wrong_weights(self.case, self.rank, call.unit, mine)}"
                yield CallDifference(number, self.rank, words)
            else:
                words, subject = self.other_value(call, name, mine, wanted)
                yield CallDifference(number, self.rank, f"{where} {words}", "gets", subject)
            return

    def other_value(self, call: VerbCall, name: str, mine: Any, due: Any) -> tuple[str, str]:
        """An argument in words, and the subject of its advice."""
        has, wanted = self.case.whose(mine, self.rank), self.case.whose(due, self.rank) or shape(due)
        told = f"gets as {name} {has or shape(mine)}; expected {wanted}"
        if arrays(mine, due) and mine.dtype != due.dtype:
            return f"gets an array of {mine.dtype}; expected {due.dtype}", "a different dtype"
        if name == "activations" and isinstance(mine, list) and isinstance(due, list) and len(mine) < len(due):
            split = len(self.mine.of("loss")) > self.case.parts
            return (f"runs {len(mine)} of its {len(due)} micro-batches through",
                    "several parts" if split else "few samples")
        if name == "its gradient":
            return self.other_gradient(call, told, mine, due)
        if has and has.startswith("batch.inputs"):
            return told, "all parts"
        if has and "an array, not a list" in has:
            return told, "one array"
        if arrays(mine, due) and not has and (found := times_of(mine, due)):
            return f"gets as {name} {found} {wanted}", "a scaled value"
        return told, name

    def other_gradient(self, call: VerbCall, told: str, mine: Any, due: Any) -> tuple[str, str]:
        """A gradient to be reduced, in words, and the subject of its advice."""
        if due is None:
            return f"{told.partition('; expected')[0]} before the last part", "an early gradient"
        if not arrays(mine, due) or mine.shape != due.shape:
            return told, "an upstream gradient" if "the upstream gradient" in told.partition(";")[0] else "its gradient"
        earlier = [each.result for each in self.due.of("backward", call.unit) if each.result is not None][:-1]
        if earlier and earlier[-1].shape == due.shape and like(mine, due - earlier[-1]):
            return "gets the gradient of that part alone", "one part"
        if found := times_of(mine, due):
            wanted = self.case.whose(due, self.rank) or shape(due)
            return f"gets as its gradient {found} {wanted}", "a scaled value"
        return told, "its gradient"

    def in_gradients(self) -> Iterator[CallDifference]:
        """Kept gradients that are not the sum over all ranks."""
        for unit in self.case.honest.units:
            if (GRADIENT, unit) not in self.due.after:
                continue
            when = next((number for number, call in enumerate(self.mine.calls) if call.verb == "unscale_and_clip"),
                        len(self.mine.calls))
            mine, due = self.case.gradient(self.rank, unit), self.case.due_gradient(self.rank, unit)
            if mine is None:
                yield CallDifference(when, self.rank, f" keeps no gradient of {unit}", "no", "keep")
            elif len(mine) and not like(mine, due) and not (np.allclose(mine, due, atol=1e-6) and not np.any(due)):
                yield CallDifference(when, self.rank, what_gradient(self.case, self.rank, unit, mine, due))
            elif len(mine) and not same(mine, due):
                yield CallDifference(len(self.mine.calls), self.rank, (
                    f" keeps the right gradient of {unit}, but added in a different order, so its last bits differ: "
                    "add a rank's micro-batches left to right, then chunk c over the ranks as ((g[c+1] + g[c+2]) + …) "
                    "+ g[c], as replica.reduce_scatter does"))

    def in_state(self) -> Iterator[CallDifference]:
        """The optimizer's state, the kept weights and the loss after the step."""
        end, total = len(self.mine.calls), [call.result for call in self.due.of("loss")][-1]
        for (what, unit), due in self.due.after.items():
            mine = self.mine.after.get((what, unit))
            if what not in ("weights", GRADIENT) and np.any(due) and (mine is None or not np.any(mine)) and (
                    self.mine.of("update", unit)):
                yield CallDifference(end, self.rank, f"'s {what} of {unit} is zero after the step", "after", "slot")
            if what == "weights" and mine is not None and mine.shape == due.shape:
                yield from self.in_weights(unit, mine, due)
        if isinstance(self.mine.loss, np.ndarray) and total is not None and not like(self.mine.loss, total):
            if found := times_of(self.mine.loss, total):
                yield CallDifference(end + 3, self.rank, f" returns {found} its loss", "gets", "a scaled value")
            else:
                held, wanted = (float(each.reshape(-1)[0]) for each in (self.mine.loss, total))
                words = f" returns {held:.6g} as its loss, but the loss of all its parts is {wanted:.6g}"
                yield CallDifference(end + 3, self.rank, words, "after", "loss")

    def in_weights(self, unit: str, mine: Array, due: Array) -> Iterator[CallDifference]:
        """The first chunk of kept weights that differs, the rank's own first."""
        length, before = self.case.shard_lengths[unit], self.mine.before["weights", unit]
        full = len(mine) > length
        for owner in sorted(range(self.case.ranks), key=lambda each: each != self.rank) if full else [self.rank]:
            now, then, wanted = (self.case.own(owner, unit, each) for each in (mine, before, due))
            if same(now, wanted):
                continue
            when, updated = len(self.mine.calls) + 1 + (owner != self.rank), self.mine.of("update", unit)
            if owner == self.rank:
                words = f"'s own chunk of {unit} {'is the value before the step' if same(now, then) else 'differs'}"
                subject = "own" if updated else "no update" if same(now, then) else "own update"
            else:
                words = f"'s copy of rank {owner}'s chunk of {unit} "
                words += "is the value before the step" if same(now, then) else self.other_copy(owner, unit, now)
                published = self.mine.of("publish", unit) or self.mine.of("all_gather", unit)
                subject = "copy" if not same(now, then) else "publish" if published else "no publish"
            yield CallDifference(when, self.rank, words, "after", subject)
            return

    def other_copy(self, owner: int, unit: str, now: Array) -> str:
        """A copy that is not the owner's updated chunk, in words."""
        for other in self.case.honest.units:
            full = self.due.after["weights", other]
            for chunk in range(self.case.ranks):
                if (chunk, other) != (owner, unit) and same(now, self.case.own(chunk, other, full)):
                    return f"holds chunk {chunk} of {other}; chunk r of a full buffer belongs to rank r"
        return f"differs from the chunk that rank {owner} updated"

    def elsewhere(self) -> Iterator[CallDifference]:
        """Arrays that differ after right calls."""
        for (what, unit), due in self.due.after.items():
            mine = self.mine.after.get((what, unit))
            if mine is not None and mine.shape == due.shape and not same(mine, due):
                yield CallDifference(0, self.rank, Observation(
                    f" passes the right arrays to all calls, but its {what} of {unit} differs from the reference after "
                    "the step: which other code writes to it?"))


def requires(call: VerbCall, earlier: VerbCall) -> bool:
    """Whether a call is wrong without an earlier one: of a later phase, for the same unit if both have one."""
    order = [PHASES.index(verb_of(each)) if verb_of(each) in PHASES else -1 for each in (call, earlier)]
    return order[0] > order[1] and (call.unit == earlier.unit or not (call.unit and earlier.unit))


def losses_before_backward(calls: Sequence[VerbCall]) -> int:
    verbs = [call.verb for call in calls if call.verb in ("loss", "backward")]
    return verbs.index("backward") if "backward" in verbs else 0


def arrays(*values: Any) -> bool:
    return all(isinstance(value, np.ndarray) for value in values)


def rounded_to(mine: Any, due: Any) -> str | None:
    """The 16-bit precision to which a gradient was rounded, bf16 or fp16; None if it was not."""
    if not arrays(mine, due) or mine.shape != due.shape or same(mine, due):
        return None
    return next((narrow for narrow in ("bf16", "fp16")
                 if same(mine, due.astype(PRECISIONS[narrow].weights).astype(mine.dtype))), None)


def equal(mine: Any, due: Any) -> bool:
    """Whether two values have equal bytes, or equal numbers of one dtype up to rounding."""
    if arrays(mine, due):
        return same(mine, due) or (mine.dtype == due.dtype and like(mine, due))
    if isinstance(mine, list | tuple) and isinstance(due, list | tuple):
        return len(mine) == len(due) and all(map(equal, mine, due))
    return type(mine) is type(due) and not arrays(mine) and bool(mine == due)
