"""Claims about a learner's stage, checked by training with it and with the library's step; causes of its exceptions."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zerosim.data import load_dataset
from zerosim.errors import Deadlock, did_you_mean
from zerosim.parts import Name, Named
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.show.table import divergence
from zerosim.stages import STAGES, Stage
from zerosim.stages.own import like
from zerosim.teach.grading.exercises import Claim
from zerosim.teach.grading.stage_advice import ADVICE, held_too_long, sent_in
from zerosim.teach.grading.stage_difference import stage_difference, superfluous_collective
from zerosim.teach.grading.trained import (
    EVEN,
    ODD,
    PRECISE,
    Figures,
    Hand,
    SeparateStep,
    Tiny,
    Trained,
    first_difference,
    honest,
    in_place_of,
    itself,
    trained,
)
from zerosim.teach.grading.verb_calls import TAPE_VERBS, VERBS, CallLog, LearnersStep, StageCase
from zerosim.teach.proofs.diagnosis import because, near
from zerosim.teach.proofs.hints import CUT, hint, raised, why_it_never_ends
from zerosim.training.experiment import prepare
from zerosim.words import plural, short
from zerosim.worlds.local import StillRunning

PLANNED = Scenario(
    world=WorldKeys(64), model=ModelKeys(hidden=(4096, 4096, 4096)), train=Train(micro_batch=64, micro_batches=64))
MACHINE_IN_WORDS = "on 64 H100, 8 a host, with three layers of 4,096"


@dataclass
class StageTrial:
    """A learner's `step`, which replaces the step of `stage`, and the outcomes of its trainings."""

    stage: Name
    step: LearnersStep
    variant: Mapping[str, Any] = field(default_factory=dict)
    """The variant of the row, as keys of [parallel]."""
    hand: Hand = itself
    """The function that turns a replica into the one that the step gets, which may make fewer choices itself."""
    in_parts: bool = False
    """Whether the step is also tried with one micro-batch per part."""
    outcomes: dict[Tiny, Trained] = field(default_factory=dict)
    """The results of trainings with the right bits."""

    def first_difference(self, sizes: Sequence[Tiny]) -> str | None:
        """The first difference from training in one process."""
        asked = [tiny for tiny in sizes if not tiny.part_by_part or self.in_parts]
        for tiny in asked:
            found = self.wrong(tiny)
            if found is None:
                continue
            said, cause = found
            more = asked[-1] if tiny is not asked[-1] and (tiny.ranks == 1 or not tiny.hidden) else None
            if more and cause and "is not called" in cause:
                _, also = self.wrong(more) or ("", None)
                if also and unlike(also, cause):
                    cause = type(cause)(f"{cause}\nand {more}: {also}")
            return self.with_cause(said, cause, tiny)
        return None

    def wrong(self, tiny: Tiny) -> tuple[str, str | None] | None:
        """The error on one of the scenarios, and its cause."""
        if isinstance(self.step, SeparateStep):
            tiny = replace(tiny, drawn=self.step.drawn)
        try:
            found = self.trained(tiny)
        except NotImplementedError:
            raise
        except Exception as error:
            if isinstance(self.step, SeparateStep):
                raise
            why = (why_it_never_ends(error.places, self.file) if isinstance(error, StillRunning)
                   else why_it_fails(self.case(tiny), error))
            return f"{tiny}: {raised(error, self.file)}", why
        first = first_difference(found, self.due(tiny), tiny, self.stage, self.variant)
        if first is not None:
            why = None if isinstance(self.step, SeparateStep) else stage_difference(self.case(tiny, first.step))
            return f"{tiny}: {divergence(first)}", why
        self.outcomes[tiny] = found
        return None

    def trained(self, tiny: Tiny, log: CallLog | None = None) -> Trained:
        return trained(tiny, self.stage, self.variant, self.step, self.hand, log)

    def due(self, tiny: Tiny) -> Trained:
        """The results of the library's step."""
        return honest(tiny, self.stage, tuple(self.variant.items()))

    def with_cause(self, complaint: str, cause: str | None, tiny: Tiny) -> str:
        """The complaint, its cause, and the commands that show the step and the expected step."""
        return "\n".join([complaint, *because(cause), f"see: {self.command(tiny)}"])

    def command(self, tiny: Tiny) -> str:
        """The commands that show this step and the expected step."""
        due = f"zerosim show {STAGES[self.stage].key} --ranks {tiny.ranks}"
        if not os.path.isfile(self.file):
            return due
        return f"zerosim show {near(self.file)}:{self.step.__name__} --ranks {tiny.ranks}, and the correct step: {due}"

    @property
    def file(self) -> str:
        """The file of the step."""
        code = getattr(self.step, "__code__", None)
        return code.co_filename if code else ""

    def case(self, tiny: Tiny, step: int | None = None) -> StageCase:
        """The recorded calls of the learner's and the library's step, for step `step` or the last one that began."""
        ours = CallLog()
        if not isinstance(self.step, SeparateStep):
            with suppress(Exception):
                self.trained(tiny, ours)
        theirs = self.due(tiny).log
        assert theirs is not None
        return StageCase(tiny.ranks, max(ours.last_step if step is None else step, 1), ours, theirs)

    def sent_otherwise(self) -> str | None:
        """The first rank that sent a different number of bytes than in the library's step."""

        def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
            if mine.sent_bytes == due.sent_bytes:
                return None
            return self.with_cause(
                f"{tiny}: bytes sent are not the formula's: {mine.sent_bytes} of rank {rank}; expected "
                f"{due.sent_bytes}",
                superfluous_collective(self.case(tiny, 1)) or sent_in(mine, due, self.variant), tiny)

        return self.first_of_ranks(complaint)

    def kept_otherwise(self) -> str | None:
        """The first rank that kept more or less between steps than in the library's step."""

        def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
            for step, (kept, wanted) in enumerate(zip(mine.kept, due.kept, strict=True), start=1):
                for kind in wanted:
                    if kept[kind] != wanted[kind]:
                        return self.with_cause(
                            f"{tiny}: after step {step}, between steps rank {rank} keeps {kept[kind]} bytes of {kind}, "
                            f"not {wanted[kind]}", ADVICE["kept"][kind], tiny)
            return None

        return self.first_of_ranks(complaint)

    def held_too_much(self) -> str | None:
        """The first rank that held more memory within a step than in the library's step.

        Steps that are also tried in parts are not asked there: a loop's variable may refer to the last part's array.
        """

        def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
            if self.in_parts and tiny.part_by_part:
                return None
            for kind, enough in due.peak.items():
                if mine.peak[kind] > enough:
                    return self.with_cause(
                        f"{tiny}: within a step rank {rank} holds {mine.peak[kind]} bytes of {kind}; "
                        f"{enough} are enough: delete arrays that are no longer used",
                        held_too_long(self.case(tiny, 1), kind), tiny)
            for (unit, held), (_, enough) in zip(mine.weights_in_backward, due.weights_in_backward, strict=False):
                if held > enough:
                    return self.with_cause(
                        f"{tiny}: in the backward of {unit} rank {rank} holds {held} bytes of weights; "
                        f"{enough} are enough", ADVICE["held"]["weights in backward"], tiny)
            return None

        return self.first_of_ranks(complaint)

    def first_of_ranks(self, complaint: Callable[[Tiny, int, Figures, Figures], str | None]) -> str | None:
        """The first complaint about a rank's figures."""
        if not self.outcomes:
            return "no training has the right bits, so there is nothing to measure"
        for tiny, outcome in self.outcomes.items():
            for rank, (mine, due) in enumerate(zip(outcome.figures, self.due(tiny).figures, strict=True)):
                if said := complaint(tiny, rank, mine, due):
                    return said
        return None

    def too_slow(self) -> str | None:
        """The error if a step takes longer on a virtual machine than the library's."""
        took_ns, enough_ns = self.planned_ns(self.given), self.planned_ns(STAGES[self.stage].step)
        if took_ns <= enough_ns:
            return None
        return f"{MACHINE_IN_WORDS} a step takes {short(took_ns / 1e6)} ms; {short(enough_ns / 1e6)} are enough"

    def given(self, replica: Any, batch: Any) -> Any:
        """The step on a replica after `hand`."""
        return self.step(self.hand(replica), batch)

    def planned_ns(self, step: LearnersStep) -> int:
        """The time of a step on shapes, by the clock of a plan."""
        scenario = replace(PLANNED, parallel=Parallel((self.stage,), **self.variant))
        with in_place_of(self.stage, step):
            (row,) = prepare(scenario, load_dataset(scenario)).rows
            return rehearse(row, cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)).clock.now_ns


def unlike(one: str, other: str) -> bool:
    """Whether two messages differ in more than their numbers.

    >>> unlike("rank 0 keeps layers.1", "rank 2 keeps layers.0"), unlike("rank 0 keeps", "rank 0 sends")
    (False, True)
    """
    return re.sub(r"\d+", "", one)[:ALIKE] != re.sub(r"\d+", "", other)[:ALIKE]


ALIKE = 40
"""The number of characters by which two causes of one kind are compared."""


def bits_claims(training: StageTrial, points: int, what: str = "one process") -> list[Claim]:
    """The claims about bits: in plain cases, with ranks that do not divide the layers, and in other precisions."""
    return [
        Claim(f"it trains to the bits of {what}", partial(training.first_difference, EVEN), points - 2, first=True),
        Claim("also where the ranks do not divide the layers", partial(training.first_difference, ODD)),
        Claim("also with clipped gradients, in 16 bits and in 64", partial(training.first_difference, PRECISE)),
    ]


# The trial of a user's stage before a run, against the shipped stage with the same sharding.

OWN_SIZES = (EVEN[2], EVEN[3], ODD[0])
WAYS = ("layered", "boundary")
"""The accumulations with which a user's stage is tried: all micro-batches at once, and one after another."""


def trials_of(stage: Stage) -> list[StageTrial]:
    """A trial against the shipped stage with the same sharding, for each of `WAYS`."""
    return [StageTrial(like(stage), stage.step, {"accumulation": way}) for way in WAYS]


def fault_of_stage(name: Named) -> str | None:
    """The first difference between training with a stage and what it declares, and the cause; None if there is none."""
    asked = [ask for trial in trials_of(name.part) for ask in (
        partial(fault_in, trial), trial.sent_otherwise, trial.kept_otherwise, trial.held_too_much)]
    return next((found for ask in asked if (found := ask())), None)


def fault_in(trial: StageTrial) -> str | None:
    """The first difference in bits and its cause; None if there is none."""
    try:
        return trial.first_difference(OWN_SIZES)
    except NotImplementedError as error:
        return f"it is not written yet: {error}" if str(error) else "it is not written yet"


MIXED_UP = ("a full buffer has all chunks of its unit, a shard only this rank's (replica.own(full)), and units "
            "differ in length: check which of them is passed here")
TOGETHER = ("gather", "reduce_scatter", "reduce", "all_gather", "publish")


def why_it_fails(case: StageCase, error: Exception) -> str | None:
    """The cause of an exception, if known."""
    known = hint(error)
    waits = isinstance(error, Deadlock) or "without receiving" in str(error)
    return ((ranks_part_ways(case) if waits else None) or no_such_attribute(error) or stage_difference(case)
            or wrong_length(case, error) or ranks_part_ways(case) or (MIXED_UP if known == CUT else known))


def no_such_attribute(error: Exception) -> str | None:
    """The cause if a verb does not exist, with the nearest name."""
    found = re.match(r"'(\w*Replica|\w*Tape|Batch|TrainingState|Unit)' object has no attribute '(\w+)'", str(error))
    if found is None or not isinstance(error, AttributeError):
        return None
    owner, name = found.groups()
    if owner == "Batch":
        return ("a part, like the batch, has inputs, targets, samples, step and "
                f"first{did_you_mean(name, ('inputs', 'targets', 'samples'))}")
    verbs = {"TrainingState": ("weights", "gradients", "optimizer"), "Unit": ("name", "count", "frozen")}.get(
        owner, TAPE_VERBS if "Tape" in owner else (*VERBS, "own", "units", "backward_units", "tape", "comm", "state"))
    collective = ("" if name not in ("all_reduce", "allreduce") else ": an all-reduce is a reduce-scatter and then an "
                  "all-gather; each rank needs only its own chunk of a gradient, which replica.reduce_scatter leaves "
                  "in it")
    other = "the tape" if "Tape" in owner else "a replica"
    what = {"TrainingState": "replica.state", "Unit": "a unit"}.get(owner, other)
    near = "" if collective else f"; it is {ELSEWHERE[name]}" if name in ELSEWHERE else did_you_mean(name, verbs)
    return f"{what} has no {name}{collective or near}; it has {', '.join(verbs)}"


ELSEWHERE = {
    "layers": "replica.units", "weights": "replica.state.weights", "gradients": "replica.state.gradients",
    "rank": "replica.comm.rank", "size": "replica.comm.size", "forward": "replica.tape.forward",
    "backward": "replica.tape.backward", "loss": "replica.tape.loss", "optimizer": "replica.state.optimizer",
}
"""Names that learners look for on a replica, and their true place."""


def wrong_length(case: StageCase, error: Exception) -> str | None:
    """The cause if a verb got a buffer of a different length: the buffer that it got."""
    found = re.match(r"(\w+) got (\d+) elements of ([\w.]+); expected (\d+)", str(error))
    if found is None:
        return None
    verb, unit, got, due = found[1], found[3], int(found[2]), int(found[4])
    shard = case.shard_lengths.get(unit, 0)
    full = shard * case.ranks
    told = f"{verb} got {of_length(case, unit, got)}; expected {of_length(case, unit, due)}"
    if got < shard == due:
        return (f"{told}: replica.own(full) cuts this rank's chunk from a full buffer; this stage keeps shards, so "
                "pass replica.state.weights[unit] itself")
    if got == full and due == shard:
        return f"{told}: replica.own(full) is this rank's chunk of a full buffer"
    if verb == "publish" and not case.due(0).of("publish"):
        return f"{told}: this stage keeps shards and gathers them again, so it publishes nothing: remove the call"
    if got == shard and due == full:
        return (f"{told}: {verb} finds this rank's chunk itself, so pass the full buffer, not replica.own(full)")
    return told


def of_length(case: StageCase, unit: str, length: int) -> str:
    """The buffer with this number of elements, in words."""
    shard = case.shard_lengths.get(unit, 0)
    if length in (shard, shard * case.ranks) and case.ranks > 1:
        return f"the full buffer of {unit}" if length > shard else f"a shard of {unit}"
    others = [each for each, its in case.shard_lengths.items() if length in (its, its * case.ranks) and each != unit]
    return f"{plural(length, 'element')}, as many as {others[0]} has" if others else plural(length, "element")


def ranks_part_ways(case: StageCase) -> str | None:
    """The first collective that not all ranks call in the same order."""
    first = [(call.verb, call.unit) for call in case.mine(0).calls if call.verb in TOGETHER]
    for rank in range(1, case.ranks):
        mine = [(call.verb, call.unit) for call in case.mine(rank).calls if call.verb in TOGETHER]
        for (verb, unit), (other, its_unit) in zip(first, mine, strict=False):
            if (verb, unit) != (other, its_unit):
                return (f"rank 0 calls {verb} for {unit or 'all'} where rank {rank} calls {other} for "
                        f"{its_unit or 'all'}: {ALL_RANKS}")
        for one, its, another, others in ((0, first, rank, mine), (rank, mine, 0, first)):
            if case.mine(another).after and len(its) > len(others):
                more = " for ".join(filter(None, its[len(others)]))
                return f"rank {one} calls {more}, and rank {another} ends its step without it: {ALL_RANKS}"
        if case.mine(rank).calls and abs(len(first) - len(mine)) > 1:
            return f"rank 0 calls {plural(len(first), 'collective')}, rank {rank} calls {len(mine)}: {ALL_RANKS}"
    return None


ALL_RANKS = "all ranks must call the same collectives, for the same units, in the same order"
