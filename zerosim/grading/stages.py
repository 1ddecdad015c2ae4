"""What is claimed of a learner's stage, found out by training with it beside our own step."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zerosim.data import load_dataset
from zerosim.grading.claim import Claim
from zerosim.grading.differing import why_it_differs
from zerosim.grading.failing import why_it_fails
from zerosim.grading.stage_case import StageCase
from zerosim.grading.stage_words import KEPT_TOO_MUCH, LET_GO, calls_otherwise, held_too_long, sent_in
from zerosim.grading.tiny import EVEN, ODD, PRECISE, Tiny, in_place_of
from zerosim.grading.trained import Figures, Hand, Trained, first_difference, honest, itself, trained
from zerosim.grading.witness import LearnersStep, Witness
from zerosim.planner.cluster import cluster_of
from zerosim.planner.rehearsal import rehearse
from zerosim.proofs.diagnosis import because, near
from zerosim.proofs.hints import raised
from zerosim.proofs.loops import why_it_never_ends
from zerosim.report.table import divergence
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.stages import STAGES
from zerosim.training.experiment import prepare
from zerosim.words import short
from zerosim.worlds.local import StillRunning

PLANNED = Scenario(
    world=WorldKeys(64), model=ModelKeys(hidden=(4096, 4096, 4096)), train=Train(micro_batch=64, micro_batches=64))
MACHINE_IN_WORDS = "on 64 H100, 8 a host, with three layers of 4,096"


@dataclass
class StageTrial:
    """A learner's `step` in the place of that of `stage`; what came of it, once it has trained."""

    stage: str
    step: LearnersStep
    variant: Mapping[str, Any] = field(default_factory=dict)
    """What the row is asked to do, as keys of [parallel]."""
    hand: Hand = itself
    """What the step is given in place of a replica that does all that by itself."""
    in_parts: bool = False
    """Whether it is also tried on micro-batches that are parts of their own, if the stage may reduce them so."""
    outcomes: dict[Tiny, Trained] = field(default_factory=dict)
    """The results of trainings that gave the same bits."""

    def first_difference(self, sizes: Sequence[Tiny]) -> str | None:
        """Where training first differs from training alone."""
        asked = [tiny for tiny in sizes if not tiny.part_by_part or self.reduces_parts]
        for tiny in asked:
            found = self.wrong(tiny)
            if found is None:
                continue
            said, cause = found
            more = asked[-1] if tiny is not asked[-1] and (tiny.ranks == 1 or not tiny.hidden) else None
            _, also = (self.wrong(more) if more else None) or ("", None)
            if also and cause and "has not gone forward" in cause and unlike(also, cause):
                cause = type(cause)(f"{cause}\nand {more}: {also}")
            return self.told(said, cause, tiny)
        return None

    @property
    def reduces_parts(self) -> bool:
        return self.in_parts and STAGES[self.stage].may_reduce_parts

    def wrong(self, tiny: Tiny) -> tuple[str, str | None] | None:
        """What is wrong on one of the scenarios, and why."""
        try:
            found = self.trained(tiny)
        except NotImplementedError:
            raise
        except Exception as error:
            why = (why_it_never_ends(error.places, self.file) if isinstance(error, StillRunning)
                   else why_it_fails(self.case(tiny), error))
            return f"{tiny}: {raised(error, self.file)}", why
        apart = first_difference(found, self.due(tiny), tiny, self.stage, self.variant)
        if apart is not None:
            return f"{tiny}: {divergence(apart)}", why_it_differs(self.case(tiny, apart.step))
        self.outcomes[tiny] = found
        return None

    def trained(self, tiny: Tiny, witness: Witness | None = None) -> Trained:
        return trained(tiny, self.stage, self.variant, self.step, self.hand, witness)

    def due(self, tiny: Tiny) -> Trained:
        """What our own step comes to."""
        return honest(tiny, self.stage, tuple(self.variant.items()))

    def told(self, complaint: str, cause: str | None, tiny: Tiny) -> str:
        """The complaint, why, and the commands that show the step, and how it should be."""
        return "\n".join([complaint, *because(cause), f"see: {self.command(tiny)}"])

    def command(self, tiny: Tiny) -> str:
        """What shows this step, and beside it one as it should be."""
        due = f"zerosim show {STAGES[self.stage].key} --ranks {tiny.ranks}"
        if not os.path.isfile(self.file):
            return due
        return f"zerosim show {near(self.file)}:{self.step.__name__} --ranks {tiny.ranks}, and as it should be: {due}"

    @property
    def file(self) -> str:
        """Where the step is written."""
        code = getattr(self.step, "__code__", None)
        return code.co_filename if code else ""

    def case(self, tiny: Tiny, step: int | None = None) -> StageCase:
        """The learner's step and our own, watched; step `step`, or the last that was begun."""
        ours = Witness()
        with suppress(Exception):
            self.trained(tiny, ours)
        theirs = self.due(tiny).witness
        assert theirs is not None
        return StageCase(tiny.ranks, max(ours.last_step if step is None else step, 1), ours, theirs)

    def sent_otherwise(self) -> str | None:
        """The first rank that sent other bytes than ours."""

        def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
            if mine.sent_bytes == due.sent_bytes:
                return None
            return self.told(
                f"{tiny}: bytes sent are not the formula's: {mine.sent_bytes} of rank {rank}; expected "
                f"{due.sent_bytes}",
                sent_in(mine, due, self.variant) or calls_otherwise(self.case(tiny, 1)), tiny)

        return self.first_of_ranks(complaint)

    def kept_otherwise(self) -> str | None:
        """The first rank that kept something else between steps than ours."""

        def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
            for step, (kept, wanted) in enumerate(zip(mine.kept, due.kept, strict=True), start=1):
                for kind in wanted:
                    if kept[kind] != wanted[kind]:
                        return self.told(
                            f"{tiny}: after step {step}, between steps rank {rank} keeps {kept[kind]} bytes of {kind}, "
                            f"not {wanted[kind]}", KEPT_TOO_MUCH[kind], tiny)
            return None

        return self.first_of_ranks(complaint)

    def held_too_much(self) -> str | None:
        """The first rank that held more at once within a step than it had to."""

        def complaint(tiny: Tiny, rank: int, mine: Figures, due: Figures) -> str | None:
            for kind, enough in due.peak.items():
                if mine.peak[kind] > enough:
                    return self.told(
                        f"{tiny}: within a step rank {rank} holds {mine.peak[kind]} bytes of {kind}; "
                        f"{enough} are enough: del what you no longer use",
                        held_too_long(self.case(tiny, 1), kind), tiny)
            for (unit, held), (_, enough) in zip(mine.weights_in_backward, due.weights_in_backward, strict=False):
                if held > enough:
                    return self.told(
                        f"{tiny}: as {unit} goes backward rank {rank} holds {held} bytes of weights; "
                        f"{enough} are enough", LET_GO, tiny)
            return None

        return self.first_of_ranks(complaint)

    def first_of_ranks(self, complaint: Callable[[Tiny, int, Figures, Figures], str | None]) -> str | None:
        """The first complaint about the figures of a rank, beside ours."""
        for tiny, outcome in self.outcomes.items():
            for rank, (mine, due) in enumerate(zip(outcome.figures, self.due(tiny).figures, strict=True)):
                if said := complaint(tiny, rank, mine, due):
                    return said
        return None

    def too_slow(self) -> str | None:
        """What is wrong if a step takes longer on a virtual machine than ours."""
        took_ns, enough_ns = self.planned_ns(self.given), self.planned_ns(STAGES[self.stage].step)
        if took_ns <= enough_ns:
            return None
        return f"{MACHINE_IN_WORDS} a step takes {short(took_ns / 1e6)} ms; {short(enough_ns / 1e6)} are enough"

    def given(self, replica: Any, batch: Any) -> Any:
        """The step, on what it is handed."""
        return self.step(self.hand(replica), batch)

    def planned_ns(self, step: LearnersStep) -> int:
        """The time of a step on shapes, over the clock of a plan."""
        scenario = replace(PLANNED, parallel=Parallel((self.stage,), **self.variant))
        with in_place_of(self.stage, step):
            (row,) = prepare(scenario, load_dataset(scenario)).rows
            return rehearse(row, cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)).clock.now_ns


def unlike(one: str, other: str) -> bool:
    """Whether they say something else, whatever their numbers are.

    >>> unlike("rank 0 keeps layers.1", "rank 2 keeps layers.0"), unlike("rank 0 keeps", "rank 0 sends")
    (False, True)
    """
    return re.sub(r"\d+", "", one)[:ALIKE] != re.sub(r"\d+", "", other)[:ALIKE]


ALIKE = 40
"""Signs in which two causes of one kind are the same."""


def bits_claims(training: StageTrial, points: int, what: str = "one process") -> list[Claim]:
    """It trains to the same bits: in plain cases, in those where ranks divide nothing, and in other precisions."""
    return [
        Claim(f"it trains to the bits of {what}", partial(training.first_difference, EVEN), points - 2, first=True),
        Claim("also where the ranks do not divide the layers", partial(training.first_difference, ODD)),
        Claim("also with clipped gradients, in 16 bits and in 64", partial(training.first_difference, PRECISE)),
    ]
