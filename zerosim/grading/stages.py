"""A learner's stage, trained on tiny scenarios beside one process alone."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zerosim.data import Dataset, load_dataset
from zerosim.errors import CollectiveError
from zerosim.grading.stage_causes import StageCase, calls_otherwise, why_it_differs, why_it_fails
from zerosim.grading.witness import Step, Witness
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.proofs.diagnosis import near
from zerosim.proofs.hints import CUT, hint, raised
from zerosim.proofs.loops import why_it_never_ends
from zerosim.report.figures import plural, short
from zerosim.report.table import divergence
from zerosim.scenario import Check, Model, Parallel, Scenario, Train, World
from zerosim.stages import STAGES
from zerosim.stages.replica import Batch, Replica
from zerosim.training.experiment import prepare
from zerosim.training.run import Silent
from zerosim.verdict.outcome import RankTraffic, TrainedRow
from zerosim.verdict.run import run_locally
from zerosim.worlds.local import StillRunning


@dataclass(frozen=True)
class Tiny:
    """What a stage is tried on."""

    ranks: int
    hidden: tuple[int, ...]
    steps: int
    part_by_part: bool = False
    """Whether each micro-batch is a part of its own, for stages that may reduce it by itself."""

    def __str__(self) -> str:
        layers = len(self.hidden) + 1
        parts = ", in 2 parts" * self.part_by_part
        return f"on {plural(self.ranks, 'rank')}, {plural(layers, 'layer')}, {plural(self.steps, 'step')}{parts}"

    def scenario(self, stage: str, variant: Mapping[str, Any]) -> Scenario:
        """Two micro-batches of two samples on every rank, trained by `stage` and by one process.

        `variant` has keys of [parallel].
        """
        apart = {"accumulation": "micro_batch"} if self.part_by_part else {}
        return Scenario(
            world=World(self.ranks),
            model=Model(hidden=self.hidden, activation="tanh"),
            train=Train(steps=self.steps, micro_batch=2, micro_batches=2 * self.ranks, learning_rate=0.01),
            parallel=Parallel((stage,), **apart | dict(variant)),
            check=Check(reference=True),
        )


KEPT_TOO_MUCH = {
    "parameters": "something still refers to full weights, or to a buffer that its shard is a view of: keep a copy of "
                  "the shard, and let go of gathered weights (del weights) after their use",
    "gradients": "keep keeps a full gradient, keep_shard this rank's chunk alone; a view of a chunk, as replica.own "
                 "gives it, keeps the full buffer alive",
    "optimizer": "the optimizer's state is this stage's own affair: put nothing into replica.state.optimizer",
}
HELD_TOO_LONG = {
    "parameters": "gathered weights of one unit are still referred to while the next one's are gathered: del weights "
                  "after forward and after backward, and keep them in no list",
    "gradients": "a full gradient is still referred to while the next one is computed: del gradient once its shard is "
                 "kept",
    "activations": "activations are still referred to that backward needs no more: give the same name to what forward "
                   "and backward return",
}
LIMIT_SECONDS = 30.0
"""For training on one of these, which takes a fraction of a second."""
MIXED_UP = ("a full buffer has all chunks of its unit, a shard this rank's alone (replica.own of the full one), and "
            "units differ in length: which of them is handed in here?")
HELD = "something is still referred to that is used no more"

SIZES = (
    Tiny(1, (), 1), Tiny(2, (), 1), Tiny(2, (), 2), Tiny(2, (3,), 2), Tiny(2, (3,), 2, part_by_part=True),
    Tiny(3, (5, 4), 3), Tiny(4, (5, 4), 3),
)
"""The smallest first."""


PLANNED = Scenario(
    world=World(64), model=Model(hidden=(4096, 4096, 4096)), train=Train(micro_batch=64, micro_batches=64))
MACHINE_IN_WORDS = "on 64 H100, 8 a host, with three layers of 4,096"


def itself(replica: Replica) -> Replica:
    """The replica as it is."""
    return replica


@dataclass
class StageTrial:
    """A learner's `step` in the place of that of `stage`; what came of it, once it has trained."""

    stage: str
    step: Step
    variant: Mapping[str, Any] = field(default_factory=dict)
    """What the row is asked to do, as keys of [parallel]."""
    hand: Callable[[Replica], Replica] = itself
    """What the step is given in place of a replica that does all that by itself."""
    in_parts: bool = False
    """Whether it is also tried on micro-batches that are parts of their own, if the stage may reduce them so."""
    outcomes: list[tuple[Tiny, TrainedRow]] = field(default_factory=list)

    def first_difference(self) -> str | None:
        """Where training first differs from training alone; up to there, the outcomes are noted."""
        for tiny in SIZES:
            if tiny.part_by_part and not (self.in_parts and STAGES[self.stage].may_reduce_parts):
                continue
            try:
                outcome = self.outcome(tiny)
            except NotImplementedError:
                raise
            except Exception as error:
                return self.failed(tiny, error)
            found = outcome.first_divergence
            if found is not None:
                return self.explained(tiny, f"{tiny}: {divergence(found)}", found.step)
            if outcome.disagreement is not None:
                return self.explained(tiny, f"{tiny}: {outcome.disagreement}", 1)
            self.outcomes.append((tiny, outcome))
        return None

    def explained(self, tiny: Tiny, complaint: str, step: int) -> str:
        """The complaint, and why: from the step in which it is seen first, done once more and watched."""
        return self.told(complaint, why_it_differs(self.case(tiny, step)), tiny)

    def failed(self, tiny: Tiny, error: Exception) -> str:
        """What was raised, and why."""
        if isinstance(error, StillRunning):
            return self.told(f"{tiny}: {raised(error, self.file)}", why_it_never_ends(error.places, self.file), tiny)
        known = hint(error)
        found = why_it_fails(self.case(tiny)) or (MIXED_UP if known == CUT else known)
        complaint = f"{tiny}: {raised(error, self.file)}"
        return "\n".join([complaint, *([f"why: {found}"] if found else []), f"see: {self.honest_command(tiny)}"])

    def told(self, complaint: str, cause: str | None, tiny: Tiny) -> str:
        """The complaint, why, and the commands that show the step, and how it should be."""
        return "\n".join([complaint, *([f"why: {cause}"] if cause else []), f"see: {self.command(tiny)}"])

    def command(self, tiny: Tiny) -> str:
        """What shows this step, and beside it one as it should be."""
        honest = self.honest_command(tiny)
        if not os.path.isfile(self.file):
            return honest
        return (f"zerosim show {near(self.file)}:{self.step.__name__} --ranks {tiny.ranks}, and as it should be: "
                f"{honest}")

    def honest_command(self, tiny: Tiny) -> str:
        """What shows a step of the stage as it should be."""
        return f"zerosim show {self.stage} --ranks {tiny.ranks}"

    @property
    def file(self) -> str:
        """Where the step is written."""
        code = getattr(self.step, "__code__", None)
        return code.co_filename if code else ""

    def case(self, tiny: Tiny, step: int | None = None) -> StageCase:
        """The learner's step and our own, watched; step `step`, or the last that was begun."""
        ours = self.watched(tiny, self.step, self.hand)
        honest = self.watched(tiny, STAGES[self.stage].step, itself)
        return StageCase(tiny.ranks, max(ours.last_step if step is None else step, 1), ours, honest)

    def watched(self, tiny: Tiny, step: Step, hand: Callable[[Replica], Replica]) -> Witness:
        """What a step does, up to where it raises something if it does."""
        witness = Witness()
        with suppress(Exception), in_place_of(self.stage, witness.watching(step, hand)):
            experiment = prepare(tiny.scenario(self.stage, self.variant), samples())
            run_locally(experiment, Silent(), limit_seconds=LIMIT_SECONDS)
        return witness

    def sent_otherwise(self) -> str | None:
        """The first rank that sent something else than the formula says; who is alone sends nothing."""
        for tiny, outcome in self.outcomes:
            for rank in outcome.traffic:
                if tiny.ranks > 1 and not rank.holds:
                    return self.told(f"{tiny}: {rank.fault}", calls_otherwise(self.case(tiny, 1)), tiny)
        return None

    def kept_otherwise(self) -> str | None:
        """The first rank that kept something else between steps than the formula says."""
        for tiny, outcome in self.outcomes:
            for rank in outcome.memory:
                for kind, due in rank.formula_bytes.items():
                    kept = rank.resting_bytes[kind]
                    if kept != due:
                        complaint = f"{tiny}: between steps rank {rank.rank} keeps {kept} bytes of {kind}, not {due}"
                        return self.told(complaint, KEPT_TOO_MUCH[kind], tiny)
        return None

    def held_too_much(self) -> str | None:
        """The first rank that held more at once within a step than it had to."""
        for tiny, outcome in self.outcomes:
            for rank in outcome.memory:
                for kind, bound in rank.bound_bytes.items():
                    peak = rank.peak_bytes[kind]
                    if peak > bound:
                        return self.told(
                            f"{tiny}: within a step rank {rank.rank} holds {peak} bytes of {kind}, where {bound} are "
                            "enough: del what you no longer use", HELD_TOO_LONG.get(kind, HELD), tiny,
                        )
        return None

    def too_slow(self) -> str | None:
        """What is wrong if a step takes longer on a virtual machine than ours."""
        took_ns, enough_ns = self.planned_ns(self.checked), self.planned_ns(STAGES[self.stage].step)
        if took_ns <= enough_ns:
            return None
        return (f"{MACHINE_IN_WORDS} a step takes {short(took_ns / 1e6)} ms, where {short(enough_ns / 1e6)} are enough")

    def planned_ns(self, step: Step) -> int:
        """Of a step on shapes, over the clock of a plan."""
        scenario = replace(PLANNED, parallel=Parallel((self.stage,), **self.variant))
        with in_place_of(self.stage, step):
            (row,) = prepare(scenario, load_dataset(scenario)).rows
            return rehearse(row, cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)).clock.now_ns

    def outcome(self, tiny: Tiny) -> TrainedRow:
        experiment = prepare(tiny.scenario(self.stage, self.variant), samples())
        with in_place_of(self.stage, self.checked):
            return run_locally(experiment, Silent(), limit_seconds=LIMIT_SECONDS).stages[0]

    def checked(self, replica: Replica, batch: Batch) -> Any:
        """The step, and a look at what it returns."""
        loss = self.step(self.hand(replica), batch)
        if loss is None or isinstance(loss, tuple | list | float):
            found = "None" if loss is None else f"a {type(loss).__name__}"
            raise CollectiveError(f"the step returned {found}: return the loss, as replica.tape.loss gave it")
        return loss


def first_complaint(training: StageTrial, complaint: Callable[[Tiny, RankTraffic], str | None]) -> str | None:
    """The first thing that is wrong with what a rank has sent."""
    found = (
        f"{tiny}: {said}" for tiny, outcome in training.outcomes for rank in outcome.traffic
        if (said := complaint(tiny, rank))
    )
    return next(found, None)


@contextmanager
def in_place_of(stage: str, step: Step) -> Iterator[None]:
    """The table of stages with another step in the row of `stage`, for as long as this lasts."""
    honest = STAGES[stage]
    STAGES[stage] = replace(honest, step=step)
    try:
        yield
    finally:
        STAGES[stage] = honest


def samples() -> Dataset:
    """A few random samples of two classes."""
    random = np.random.default_rng(0)
    return Dataset(random.standard_normal((24, 3)).astype(np.float32), random.integers(0, 2, 24), None, None, 2)
