"""What a run finds out: the records that reports read."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from zerosim.allocation import Array
from zerosim.model import Unit
from zerosim.recipe import Recipe
from zerosim.stages import STAGES
from zerosim.verdict import Divergence


@dataclass(frozen=True)
class RankTraffic:
    """What one rank sent and received in all steps, and what it must have by formula."""

    rank: int
    sent_bytes: int
    received_bytes: int
    messages: int
    by_collective: dict[str, dict[str, int]]
    formula_bytes: int
    formula_received_bytes: int
    formula_messages: int
    formula_by_collective: dict[str, dict[str, int]]

    @property
    def fault(self) -> str | None:
        """The first figure that is not the formula's, as the words after the name of a row."""
        figures = [
            ("bytes sent", self.sent_bytes, self.formula_bytes),
            ("bytes received", self.received_bytes, self.formula_received_bytes),
            ("messages", self.messages, self.formula_messages),
        ]
        for name in sorted({*self.by_collective, *self.formula_by_collective}):
            seen, due = self.by_collective.get(name, {}), self.formula_by_collective.get(name, {})
            figures += [(f"{what} of {name}", seen.get(what, 0), due.get(what, 0)) for what in {**seen, **due}]
        return next((
            f"{what} are not the formula's: {seen:,} of rank {self.rank}, where {due:,} are due"
            for what, seen, due in figures if seen != due
        ), None)

    @property
    def holds(self) -> bool:
        return self.fault is None


@dataclass(frozen=True)
class RankMemory:
    """Bytes that one rank kept between steps and held at most within one, by kind, as its ledger saw them."""

    rank: int
    resting_bytes: dict[str, int]
    formula_bytes: dict[str, int]
    padding_bytes: int
    peak_bytes: dict[str, int]
    bound_bytes: dict[str, int]
    """The most that there should be, of each kind."""
    alive_bytes: int
    """Of all kinds, between steps: what is kept, and buffers that wait to be used again."""
    resident_bytes: int
    """What the process has in memory between steps beyond what it had before the run."""
    overweight: list[str]
    """Of which units more is kept than the formula says, and what else outlives the step, in words."""
    curve: list[tuple[int, dict[str, int]]]
    """Nanoseconds since the last step began, and bytes by kind, at each change."""

    @property
    def rests(self) -> bool:
        return self.resting_bytes == self.formula_bytes and not self.overweight

    @property
    def peaks(self) -> bool:
        return all(self.peak_bytes[kind] <= bound for kind, bound in self.bound_bytes.items())


@dataclass(frozen=True)
class Shortage:
    """A stage's model states did not fit under the limit that the run had set on each rank."""

    needed_bytes: int
    allowed_bytes: int
    would_fit: list[str]

    def __str__(self) -> str:
        others = ", ".join(STAGES[name].title for name in self.would_fit) or "no stage"
        return (
            f"needs {self.needed_bytes / 1e6:,.0f} MB for its model states on each rank, "
            f"{self.allowed_bytes / 1e6:,.0f} MB are allowed; {others} would fit"
        )


@dataclass(frozen=True)
class StageOutcome:
    """What one stage computed, and whether it is what one process computes."""

    name: str
    """Of the row: the variant's, or the stage's title."""
    recipe: Recipe
    """Of the row alone."""
    equal: bool | None
    """None when there was nothing to compare with."""
    compared_with: str | None
    """One process, or the name of the first row that adds in the same order."""
    disagreement: str | None
    """Without a reference: what two ranks hold that should be the same and is not."""
    first_divergence: Divergence | None
    order: dict[str, str] | None
    """Of the chunk that diverged: the order in which the collective adds it, and the declared one."""
    losses: list[Array]
    weights_sha256: str
    optimizer_sha256: str
    test: float | None
    """Accuracy on the test split, or its mean squared error; None without a test split."""
    traffic: list[RankTraffic]
    memory: list[RankMemory]
    volume: float
    """What the formula says a rank sends in a step, in units of P (N − 1)/N."""
    most_messages: int
    """What the formula says the rank that sends the most sends in a step that is not skipped."""
    updates: int
    """Steps that were not skipped because a gradient overflowed."""
    seconds: float
    weights: dict[Unit, Array] | None

    @property
    def stage(self) -> str:
        return self.recipe.stage

    def messages_in_a_step(self, steps: int) -> Fraction:
        """Those of the rank that sent the most; where steps were skipped, by the formula that traffic is held to."""
        if self.updates < steps:
            return Fraction(self.most_messages)
        return Fraction(max(rank.messages for rank in self.traffic), max(steps, 1))


@dataclass(frozen=True)
class RanksDigest:
    """What a stage came to on another number of ranks."""

    ranks: int
    name: str
    weights_sha256: str


@dataclass(frozen=True)
class Outcome:
    """All that a run found out, on rank 0."""

    recipe: Recipe
    stages: list[StageOutcome]
    on_other_ranks: list[RanksDigest] = field(default_factory=list)
    shortages: dict[str, Shortage] = field(default_factory=dict)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Each check that did not hold: the stage, and what is wrong with it."""
        check = self.recipe.scenario.check
        failed = [(stage.name, what) for stage in self.stages for what in self._faults(stage)]
        unexpected = {name: each for name, each in self.shortages.items() if name not in check.does_not_fit}
        failed += [(STAGES[name].title, str(shortage)) for name, shortage in unexpected.items()]
        failed += [(STAGES[name].title, "fits after all") for name in check.does_not_fit if name not in self.shortages]
        if check.same_weights is not None and check.same_weights != self.same_weights:
            failed.append(("all rows", f"weights are {'the same' if self.same_weights else 'not the same'}"))
        for stage, wanted in zip(self.stages, check.volumes, strict=False):
            if round(stage.volume, 6) != round(wanted, 6):
                failed.append((stage.name, f"sends {stage.volume:.4g} P (N−1)/N, not {wanted:.4g}"))
        steps = self.recipe.scenario.train.steps
        for stage, most in zip(self.stages, check.messages, strict=False):
            sent = stage.messages_in_a_step(steps)
            if sent != most:
                failed.append((stage.name, f"sends {float(sent):g} messages a step, not {most}"))
        return failed

    @property
    def same_weights(self) -> bool:
        """Whether all rows end with the same weights."""
        return len({stage.weights_sha256 for stage in self.stages}) <= 1

    @property
    def passed(self) -> bool:
        return not self.failures

    def _faults(self, stage: StageOutcome) -> list[str]:
        wanted = self.recipe.scenario.check.test_accuracy
        differing = [
            str(other.ranks) for other in self.on_other_ranks
            if other.name == stage.name and other.weights_sha256 != stage.weights_sha256
        ]
        stepped = self.recipe.scenario.train.steps > 0
        checks: list[tuple[Any, str]] = [
            (stage.equal is False, "bits differ"),
            (stage.disagreement, stage.disagreement or ""),
            (not all(rank.holds for rank in stage.traffic), miscounted(stage)),
            (stepped and not all(rank.rests for rank in stage.memory), f"bytes kept are not the formula's{who(stage)}"),
            (stepped and not all(rank.peaks for rank in stage.memory),
             f"more is alive at the peak than should be: {too_much(stage)}"),
            (wanted and stage.test is not None and stage.test < wanted, f"test accuracy is below {wanted:.2%}"),
            (differing, f"other bits on {', '.join(differing)} ranks"),
        ]
        return [what for failed, what in checks if failed]


def who(stage: StageOutcome) -> str:
    """Whose memory it is that the first rank with too much of it keeps."""
    rank = next((rank for rank in stage.memory if rank.overweight), None)
    return f": rank {rank.rank} keeps {', '.join(rank.overweight)}" if rank else ""


def miscounted(stage: StageOutcome) -> str:
    """What the first rank sent or received otherwise."""
    return next((rank.fault for rank in stage.traffic if rank.fault), "")


def too_much(stage: StageOutcome) -> str:
    """Of what the first rank had more alive than it should."""
    return next((
        f"rank {rank.rank} holds {rank.peak_bytes[kind]:,} B of {kind}, where {bound:,} are enough"
        for rank in stage.memory for kind, bound in rank.bound_bytes.items() if rank.peak_bytes[kind] > bound
    ), "")
