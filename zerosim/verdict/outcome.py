"""The outcome of a run: its measurements with the expected values, and every failed check. Reports read this.

Outcomes know no terminal and no picture. Reports read outcomes; the page reads only the JSON document.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from zerosim.figures.addresses import LAID_OUT, Fragmentation
from zerosim.models.units import Model
from zerosim.scenario import Scenario
from zerosim.stages import STAGES
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.measurement import Measurement, MemoryCounts, MemoryFigures, TrafficCounts
from zerosim.verdict.diagnosis import Divergence, RowDifference
from zerosim.worlds.world import counted

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class RankTraffic:
    """The messages that one rank sent and received in all steps, and those due."""

    counts: TrafficCounts
    due: TrafficCounts

    @property
    def fault(self) -> str | None:
        """The first count that differs from the one due, as the words after the name of a row."""
        seen, due = self.counts, self.due
        figures = [
            ("bytes sent", seen.sent_bytes, due.sent_bytes),
            ("bytes received", seen.received_bytes, due.received_bytes),
            ("messages", seen.messages, due.messages),
            ("bytes sent to other hosts", seen.between_bytes, due.between_bytes),
            ("bytes in the largest message", seen.largest_message_bytes, due.largest_message_bytes),
        ]
        for name, ours, theirs in paired(seen.by_collective, due.by_collective, {}):
            figures += [(f"{what} of {name}", found, expected) for what, found, expected in paired(ours, theirs, 0)]
        return next((
            f"{what} are not the formula's: {found:,} of rank {seen.rank}; expected {expected:,}"
            for what, found, expected in figures if found != expected
        ), None)

    @property
    def holds(self) -> bool:
        return self.fault is None


@dataclass(frozen=True)
class RankMemory:
    """The bytes that one rank kept between steps and at the peak of a step, and those due."""

    figures: MemoryFigures
    due: MemoryCounts
    padding_bytes: int
    """The padding among the bytes due between steps."""
    least_bytes: dict[str, int]
    """The least allowed peak, for kinds whose peak is known exactly."""
    overweight: list[str]
    """The units that keep more than is due, and other memory that outlives the step, in words."""
    lingering: list[str]
    """The memory that a step should have freed before it reduced a gradient or updated weights, in words."""

    @property
    def rests(self) -> bool:
        return self.figures.resting_bytes == self.due.resting_bytes and not self.overweight

    @property
    def peaks(self) -> bool:
        return self.mismeasured is None

    @property
    def mismeasured(self) -> str | None:
        """The first kind with too much or too little memory at the peak or later, or offloaded, in words."""
        found = self.figures
        for kind, bound in self.due.peak_bytes.items():
            peak, least = found.peak_bytes[kind], self.least_bytes.get(kind, 0)
            if peak > bound:
                return (f"more memory than allowed is in use at the peak: rank {found.rank} holds {peak:,} B of "
                        f"{kind}; {bound:,} are enough")
            if peak < least:
                return (f"less memory than required is in use at the peak: rank {found.rank} holds {peak:,} B of "
                        f"{kind}, where {least:,} are used")
        if self.lingering:
            return f"memory is held too long: rank {found.rank} holds {self.lingering[0]}"
        if found.offloaded_bytes != self.due.offloaded_bytes:
            return (f"offloaded bytes are not the formula's: rank {found.rank} had {found.offloaded_bytes:,} B in its "
                    f"file; expected {self.due.offloaded_bytes:,}")
        return self.misplaced

    @property
    def misplaced(self) -> str | None:
        """The first figure of host memory, files or copies between them that differs from the one due, in words."""
        found, due = self.figures, self.due
        figures = [
            (f"{kind} {words} on {tier}", held, expected)
            for words, ours, theirs in (("between steps", found.far_resting_bytes, due.far_resting_bytes),
                                        ("at the peak", found.far_peak_bytes, due.far_peak_bytes))
            for tier in ("host", "disk")
            for kind, held, expected in paired(ours.get(tier, {}), theirs.get(tier, {}), 0)
        ]
        figures += [(f"bytes moved of {what}", moved, expected)
                    for what, moved, expected in paired(found.moved_bytes, due.moved_bytes, 0)]
        return next((
            f"far memory is not the formula's: rank {found.rank}, {words}: {held:,} B; expected {expected:,}"
            for words, held, expected in figures if held != expected
        ), None)


def paired(ours: Mapping[str, Figure], due: Mapping[str, Figure], nothing: Figure) -> list[tuple[str, Figure, Figure]]:
    """Each key of either side, in order, with both figures.

    >>> paired({"b": 1}, {"a": 2, "b": 1}, 0)
    [('a', 0, 2), ('b', 1, 1)]
    """
    return [(key, ours.get(key, nothing), due.get(key, nothing)) for key in sorted({*ours, *due})]


@dataclass(frozen=True)
class DoesNotFit:
    """A row whose states, or whose steps, did not fit under the run's limit on each rank."""

    needed_bytes: int
    allowed_bytes: int
    would_fit: list[str]

    def __str__(self) -> str:
        others = ", ".join(STAGES[name].title for name in self.would_fit) or "no stage"
        return (
            f"needs {self.needed_bytes / 1e6:,.0f} MB for its model states on each rank, "
            f"and more in a step; {self.allowed_bytes / 1e6:,.0f} MB are allowed; the states of {others} would fit"
        )


@dataclass(frozen=True)
class TrainedRow:
    """The measurements of one row, and the expected values."""

    measured: Measurement
    equal: bool | None
    """Whether it equals the row or process of `compared_with`; None without one."""
    compared_with: str | None
    """One process, or the name of the first row that adds in the same order."""
    first_divergence: Divergence | None
    order: dict[str, str] | None
    """The order in which the collective adds the chunk that diverged, and the declared one."""
    formula_operations: dict[str, int]
    """The floating-point operations of matrix products that each rank must do in all steps, by pass; over a pipeline,
    its ranks together."""
    traffic: list[RankTraffic]
    memory: list[RankMemory]
    volume: float
    """The bytes sent per rank and step by formula, in units of P (N − 1)/N."""
    most_messages: int
    """The messages by formula in a step that is not skipped, of the rank that sends the most."""
    schedule_fault: str | None = None
    """The first difference between the passes of a pipeline's ranks and the formulas, in words."""
    fragmentation: Fragmentation | None = None
    """The fragmentation of rank 0's memory in the last step, if the scenario requests it."""

    @property
    def config(self) -> Config:
        return self.measured.config

    @property
    def name(self) -> str:
        """The name of the row: the variant's, or the stage's title."""
        return self.config.name

    @property
    def stage(self) -> str:
        return self.config.row.stage

    @property
    def messages_in_a_step(self) -> Fraction:
        """The messages of the rank that sent the most; by the formula for traffic if steps were skipped.

        The formula is used too if a run had no step left to do.
        """
        if self.measured.updates < self.config.steps or not self.config.steps_here:
            return Fraction(self.most_messages)
        return Fraction(max(rank.counts.messages for rank in self.traffic), self.config.steps_here)


@dataclass(frozen=True)
class RowOutcome:
    """The outcome of a row: its results, or that it did not fit."""

    config: Config
    trained: TrainedRow | None
    did_not_fit: DoesNotFit | None = None
    on_other_ranks: Mapping[int, TrainedRow | None] = field(default_factory=dict)
    """The results on different numbers of ranks; None where the model states did not fit."""

    @property
    def failures(self) -> list[str]:
        """The failed checks of this row, in words."""
        claims = self.config.row.claims
        if self.trained is None:
            return [] if claims.does_not_fit else [str(self.did_not_fit)]
        return [
            *failed_checks(self.trained),
            *(["fits after all"] if claims.does_not_fit else []),
            *broken_claims(self.trained),
            *other_bits(self.trained, self.on_other_ranks),
        ]


@dataclass(frozen=True)
class Outcome:
    """All results of a run, on rank 0."""

    experiment: Experiment
    rows: list[RowOutcome]
    differences: list[RowDifference] = field(default_factory=list)
    """The rows that equal their references and end with different weights than the first, with the first difference."""

    @property
    def scenario(self) -> Scenario:
        return self.experiment.scenario

    @property
    def model(self) -> Model:
        """The model; rows may group its layers into different units."""
        return self.experiment.rows[0].model

    @property
    def trained(self) -> list[TrainedRow]:
        """The rows that were trained."""
        return [row.trained for row in self.rows if row.trained is not None]

    @property
    def did_not_fit(self) -> list[tuple[Config, DoesNotFit]]:
        """The rows that did not fit, and the memory they needed."""
        return [(row.config, row.did_not_fit) for row in self.rows if row.did_not_fit is not None]

    @property
    def on_other_ranks(self) -> list[tuple[int, TrainedRow]]:
        """The results of rows on different numbers of ranks, each with that number."""
        return [(ranks, found) for row in self.rows for ranks, found in row.on_other_ranks.items() if found is not None]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The failed checks: the row, and the fault in words."""
        failed = [(row.config.name, what) for row in self.rows for what in row.failures]
        claimed = self.scenario.check.same_weights
        if claimed is not None and claimed != self.same_weights:
            failed.append(("all rows", f"weights are {'the same' if self.same_weights else 'not the same'}"))
        return failed

    @property
    def same_weights(self) -> bool:
        """Whether all rows end with the same weights."""
        return len({stage.measured.weights_sha256 for stage in self.trained}) <= 1

    @property
    def passed(self) -> bool:
        return not self.failures


def failed_checks(stage: TrainedRow) -> Iterator[str]:
    """The failed checks of a row that hold for every scenario, in words; of each the first rank."""
    if stage.equal is False:
        yield "bits differ" + ("" if stage.compared_with == "one process" else f" from {stage.compared_with}")
    if stage.measured.updates != stage.config.steps and not stage.config.scaling().dynamic:
        yield (f"counts {stage.measured.updates} updates in {stage.config.steps} steps, but no update may be skipped")
    if stage.measured.disagreement:
        yield stage.measured.disagreement
    yield from first_fault(rank.fault for rank in stage.traffic)
    yield from first_fault(miscalculated(stage))
    if stage.config.steps_here > 0:
        if not all(rank.rests for rank in stage.memory):
            yield f"bytes kept are not the formula's{who(stage)}"
        yield from first_fault(rank.mismeasured for rank in stage.memory)
        yield from first_fault([stage.schedule_fault])
    if stage.measured.missed_faults:
        yield f"a fault was not injected: {'; '.join(stage.measured.missed_faults)}"


def first_fault(found: Iterable[str | None]) -> list[str]:
    """The first of these words, if there are any."""
    return [words for words in found if words][:1]


def broken_claims(stage: TrainedRow) -> Iterator[str]:
    """The claims of a scenario about this row that do not hold, in words."""
    claims, test = stage.config.row.claims, stage.measured.test
    if claims.test_accuracy and test is not None and test < claims.test_accuracy:
        yield f"test accuracy is {percent(test)}, below {percent(claims.test_accuracy)}"
    if claims.test_loss and test is not None and not test < claims.test_loss:
        yield f"test loss is {test:.6g}, not below {claims.test_loss:.6g}"
    if claims.volume is not None and round(stage.volume, 6) != round(claims.volume, 6):
        yield f"sends {stage.volume:.4g} P (N−1)/N, not {claims.volume:.4g}"
    steps, beyond = stage.config.steps_here, stage.fragmentation.beyond_peak_bytes if stage.fragmentation else {}
    finished_before = stage.config.done > 0 and not steps
    of_steps: list[tuple[int | None, Fraction | int | None, str]] = [] if finished_before else [
        (claims.beyond_peak, beyond.get("first_fit"), "needs {:,} bytes beyond the peak by first_fit, not {:,}"),
        (claims.beyond_peak_laid_out, beyond.get("first_fit" + LAID_OUT),
         f"needs {{:,}} bytes beyond the peak by first_fit{LAID_OUT}, not {{:,}}"),
        (claims.activations, max((rank.figures.peak_bytes["activations"] for rank in stage.memory), default=0),
         "holds {:,} bytes of activations at the peak, not {:,}"),
        (claims.between_bytes, Fraction(sum(rank.counts.between_bytes for rank in stage.traffic), max(steps, 1)),
         "sends {:,.10g} bytes between hosts in a step, not {:,}"),
        (claims.kept_bytes, max((sum(rank.figures.resting_bytes.values()) for rank in stage.memory), default=0),
         "keeps {:,} bytes between steps, not {:,}"),
        (claims.collective_bytes,
         Fraction(max((sent_by(claims.collectives, rank) for rank in stage.traffic), default=0), max(steps, 1)),
         "sends {:,.10g} bytes a step by check.collectives, not {:,}"),
        (claims.largest_message, max((rank.counts.largest_message_bytes for rank in stage.traffic), default=0),
         "sends {:,} bytes in its largest message, not {:,}"),
    ]
    for claimed, found, words in (
            (claims.messages, stage.messages_in_a_step, "sends {:g} messages a step, not {}"), *of_steps):
        if claimed is not None and found != claimed:
            yield words.format(float(found) if isinstance(found, Fraction) else found or 0, claimed)


def sent_by(collectives: Collection[str], rank: RankTraffic) -> int:
    """The bytes that a rank has sent by some collectives, or by all if none are named."""
    return sum(each["sent_bytes"] for name, each in rank.counts.by_collective.items()
               if name in collectives or not collectives)


def percent(share: float) -> str:
    """A percentage with six digits, so that a value just below a limit does not read as the limit.

    >>> percent(0.95), percent(0.9499987)
    ('95%', '94.9999%')
    """
    return f"{100 * share:.6g}%"


def other_bits(stage: TrainedRow, others: Mapping[int, TrainedRow | None]) -> Iterator[str]:
    """The faults of the row on different numbers of ranks, in words."""
    trained = {ranks: found for ranks, found in others.items() if found is not None}
    differing = [str(ranks) for ranks, found in trained.items()
                 if found.measured.weights_sha256 != stage.measured.weights_sha256]
    if differing:
        yield f"different bits on {', '.join(differing)} rank{'s' * (differing != ['1'])}"
    for ranks, found in trained.items():
        yield from (f"on {counted(ranks)}: {what}" for what in failed_checks(found))
    yield from (f"does not fit on {counted(ranks)}" for ranks, found in others.items() if found is None)


def who(stage: TrainedRow) -> str:
    """The owners of the memory of the first rank that keeps too much."""
    rank = next((rank for rank in stage.memory if rank.overweight), None)
    return f": rank {rank.figures.rank} keeps {', '.join(rank.overweight)}" if rank else ""


def miscalculated(stage: TrainedRow) -> Iterator[str]:
    """The ranks whose matrix products differ from the model's operations, in words."""
    due, every = stage.formula_operations, stage.measured.operations
    stride = len(every) // stage.config.directions.pipeline
    for rank in range(stride):
        found = {what: sum(each.get(what, 0) for each in every[rank::stride]) for what in due}
        if found != due:
            what = next(each for each in due if found[each] != due[each])
            yield (f"floating-point operations of {what} are not the model's: {found[what]:,} of rank {rank}; "
                   f"expected {due[what]:,}")
