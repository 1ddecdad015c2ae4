"""A learner's stage, trained on tiny scenarios beside one process alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zerosim.data import Dataset, load_dataset
from zerosim.errors import CollectiveError
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.report.figures import plural, short
from zerosim.report.table import divergence
from zerosim.scenario import Check, Model, Parallel, Scenario, Train, World
from zerosim.stages import STAGES
from zerosim.stages.replica import Batch, Replica
from zerosim.training.experiment import prepare
from zerosim.training.run import Silent
from zerosim.verdict.outcome import RankTraffic, TrainedRow
from zerosim.verdict.run import run_locally

Step = Callable[[Replica, Batch], Any]


@dataclass(frozen=True)
class Tiny:
    """What a stage is tried on."""

    ranks: int
    hidden: tuple[int, ...]
    steps: int

    def __str__(self) -> str:
        layers = len(self.hidden) + 1
        return f"on {plural(self.ranks, 'rank')}, {plural(layers, 'layer')}, {plural(self.steps, 'step')}"

    def scenario(self, stage: str, variant: Mapping[str, Any]) -> Scenario:
        """Two micro-batches of two samples on every rank, trained by `stage` and by one process.

        `variant` has keys of [parallel].
        """
        return Scenario(
            world=World(self.ranks),
            model=Model(hidden=self.hidden, activation="tanh"),
            train=Train(steps=self.steps, micro_batch=2, micro_batches=2 * self.ranks, learning_rate=0.01),
            parallel=Parallel((stage,), **variant),
            check=Check(reference=True),
        )


SIZES = (Tiny(1, (), 1), Tiny(2, (), 1), Tiny(2, (), 2), Tiny(2, (3,), 2), Tiny(3, (5, 4), 3), Tiny(4, (5, 4), 3))
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
    outcomes: list[tuple[Tiny, TrainedRow]] = field(default_factory=list)

    def first_difference(self) -> str | None:
        """Where training first differs from training alone; up to there, the outcomes are noted."""
        for tiny in SIZES:
            outcome = self.outcome(tiny)
            if outcome.first_divergence is not None:
                return f"{tiny}: {divergence(outcome.first_divergence)}"
            self.outcomes.append((tiny, outcome))
        return None

    def sent_otherwise(self) -> str | None:
        """The first rank that sent something else than the formula says; who is alone sends nothing."""
        for tiny, outcome in self.outcomes:
            for rank in outcome.traffic:
                if tiny.ranks > 1 and not rank.holds:
                    return f"{tiny}: {rank.fault}"
        return None

    def kept_otherwise(self) -> str | None:
        """The first rank that kept something else between steps than the formula says."""
        for tiny, outcome in self.outcomes:
            for rank in outcome.memory:
                for kind, due in rank.formula_bytes.items():
                    kept = rank.resting_bytes[kind]
                    if kept != due:
                        return f"{tiny}: between steps rank {rank.rank} keeps {kept} bytes of {kind}, not {due}"
        return None

    def held_too_much(self) -> str | None:
        """The first rank that held more at once within a step than it had to."""
        for tiny, outcome in self.outcomes:
            for rank in outcome.memory:
                for kind, bound in rank.bound_bytes.items():
                    peak = rank.peak_bytes[kind]
                    if peak > bound:
                        return (
                            f"{tiny}: within a step rank {rank.rank} holds {peak} bytes of {kind}, where {bound} are "
                            "enough: del what you no longer use"
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
        try:
            with in_place_of(self.stage, self.checked):
                outcome = run_locally(experiment, Silent())
        except Exception as error:
            error.add_note(str(tiny))
            raise
        return outcome.stages[0]

    def checked(self, replica: Replica, batch: Batch) -> Any:
        """The step, and a look at what it returns."""
        loss = self.step(self.hand(replica), batch)
        if loss is None:
            raise CollectiveError("the step returned None: return the loss, as replica.tape.loss gave it")
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
