"""The outcome of a run: its measurements with the expected values, and every failed check.

Nothing here knows a terminal or a picture: views read the document that `zerosim.show.document` makes of an outcome.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.words import joined_names, plural
from zerosim.observe.process import STEP_BYTES, growth
from zerosim.observe.traffic import Count
from zerosim.scenario import Scenario
from zerosim.stages import STAGES
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.measurement import Measurement, RankBytes, RankMemory
from zerosim.verdict.addresses import FIRST_FIT, LAID_OUT, Fragmentation
from zerosim.verdict.bounds import MOVED, SENT
from zerosim.verdict.diagnosis import Divergence, RowDifference

TRAFFIC = {
    "sent_bytes": "bytes sent", "received_bytes": "bytes received", "messages": "messages",
    "between_bytes": "bytes sent to other hosts", "largest_message_bytes": "bytes in the largest message"}
"""The compared counts of all messages, and their words."""
MOST_NAMES = 4
"""The most rows that a verdict names."""


class Claim(NamedTuple):
    """A figure as measured, the least and the most that it may be, and the fault in words if it is not.

    >>> Claim(6, 5, 5, "sends 6 messages, not 5").holds
    False
    """

    seen: Any
    least: Any
    most: Any
    fault: str
    about: str = ""
    """Of a rank's memory: `kept` between steps, on the `host`, or at the `peak` and later."""

    @property
    def holds(self) -> bool:
        return bool(self.least <= self.seen <= self.most)


def first_fault(claims: Iterable[Claim]) -> list[str]:
    """The fault of the first claim that does not hold, if there is one."""
    return [*islice((claim.fault for claim in claims if not claim.holds), 1)]


def traffic_claims(rank: int, measured: Count, expected: Count) -> Iterator[Claim]:
    """Each count of a rank's messages is the one due."""
    ours_of, theirs_of = measured.by_collective, expected.by_collective
    collectives = [(f" of {name}", ours_of.get(name, Count()), theirs_of.get(name, Count()))
                   for name in sorted({*ours_of, *theirs_of})]
    for of, ours, theirs in [("", measured, expected), *collectives]:
        for name, words in (({"calls": "calls"} if of else {}) | TRAFFIC).items():
            seen, due = getattr(ours, name), getattr(theirs, name)
            yield Claim(seen, due, due, f"{words}{of} are not the formula's: {seen:,} of rank {rank}; expected {due:,}")


def overweight(measured: RankMemory, expected: RankMemory) -> list[str]:
    """The units that keep more than is due, and other memory that outlives the step, in words."""
    kept = [
        f"{size:,} B of {owner}'s {kind}; expected {most:,}" if kind in MODEL_STATES else
        f"{size:,} B of {kind} for {owner} after the step"
        for kind, owners in measured.owners.items() for owner, size in owners.items()
        if (kind not in MODEL_STATES or owner in expected.owners[kind])
        and size > (most := expected.owners[kind].get(owner, 0))]
    return kept + [
        f"{span_words(least, most)} B of {kind} between steps; expected {span_words(*expected.at_rest[kind])}"
        for kind, (least, most) in measured.at_rest.items()
        if kind in expected.at_rest and not expected.at_rest[kind][0] <= least <= most <= expected.at_rest[kind][1]]


def span_words(least: int, most: int) -> str:
    """A number, or the least and the most of a range, in words.

    >>> span_words(0, 0), span_words(0, 1024)
    ('0', 'from 0 to 1,024')
    """
    return f"{least:,}" if least == most else f"from {least:,} to {most:,}"


def lingering(measured: RankMemory, expected: RankMemory) -> list[str]:
    """The memory that a step should have freed before it reduced a gradient, or updated weights, in words."""
    return [
        f"{size:,} B of {kind} as {words} begins; expected {most:,}"
        for name, words in (("reduce_scatter", "a reduce-scatter"), ("update", "an update"))
        for kind, most in expected.held_at_beginning.get(name, {}).items()
        if (size := measured.held_at_beginning.get(name, {}).get(kind, 0)) > most]


def memory_claims(
    measured: RankBytes, expected: RankBytes, heavy: Sequence[str], held: Sequence[str]
) -> Iterator[Claim]:
    """The bytes of a rank are those due, no unit is `heavy`, and no memory is `held` too long."""
    rank, keeps = measured.rank, f": rank {expected.rank} keeps {', '.join(heavy)}" if heavy else ""
    differ = measured.resting_bytes != expected.resting_bytes
    yield Claim(len(heavy) + differ, 0, 0, f"bytes kept are not the formula's{keeps}", "kept")
    for kind, most in expected.peak_bytes.items():
        peak, least = measured.peak_bytes[kind], expected.least_bytes.get(kind, 0)
        holds = f"rank {rank} holds {peak:,} B of {'all kinds together' if kind == 'total' else kind}"
        for words, low, high, end in (("more memory than allowed", 0, most, f"; {most:,} are enough"),
                                      ("less memory than required", least, math.inf, f", where {least:,} are used")):
            yield Claim(peak, low, high, f"{words} is in use at the peak: {holds}{end}", "peak")
    for words in held:
        yield Claim(1, 0, 0, f"memory is held too long: rank {rank} holds {words}", "peak")
    for about, words, ours, theirs in (
            ("host", "{} between steps", measured.host_resting_bytes, expected.host_resting_bytes),
            ("host", "{} at the peak", measured.host_peak_bytes, expected.host_peak_bytes),
            ("peak", "bytes moved of {}", measured.moved_bytes, expected.moved_bytes)):
        for what in sorted({*ours, *theirs}):
            here, there = ours.get(what, 0), theirs.get(what, 0)
            yield Claim(here, there, there, f"host memory is not the formula's: rank {rank}, {words.format(what)}: "
                                            f"{here:,} B; expected {there:,}", about)


def bounds_claims(row: "RowOutcome") -> Iterator[Claim]:
    """The operations of all ranks, and the bytes of each, are within those that the papers' formulas allow."""
    for what, (least, most) in row.operations_between.items():
        seen = sum(operations.get(what, 0) for operations in row.measured.operations)
        yield Claim(seen, least, most, f"floating-point operations of {what} are beyond their bounds: {seen:,} of all "
                                       f"ranks; the model's sizes allow {span_words(least, most)}")
    for (measured, due), traffic in zip(row.memory, row.measured.traffic, strict=True):
        kinds = {kind: peak for kind, peak in measured.peak_bytes.items() if kind != "total"}
        together = max([sum(due.resting_bytes.values()), *kinds.values()]), sum(kinds.values())
        bytes_seen = {f"{kind} at the peak": peak for kind, peak in measured.peak_bytes.items()} | {
            SENT: sum(count.sent_bytes for name, count in traffic.by_collective.items() if name.startswith("tensor_")),
            MOVED: sum(count for what, count in measured.moved_bytes.items() if what.partition(",")[0] in MODEL_STATES)}
        for what, (least, most) in (due.between | {"total at the peak": together}).items():
            seen = bytes_seen[what]
            yield Claim(seen, least, most, f"bytes are beyond their bounds: rank {measured.rank} has {seen:,} B of "
                                           f"{what}; the model's sizes allow {span_words(least, most)}")


def growth_claims(memory: Sequence[RankMemory]) -> Iterator[Claim]:
    """No process of some of the ranks grows beyond what a step may leave in it, if the scenario requests its bytes."""
    for measured in memory:
        if measured.process_bytes:
            grown_bytes, steps = growth(measured.process_bytes)
            allowed = len(memory) * steps * STEP_BYTES
            yield Claim(grown_bytes, -math.inf, allowed, f"the process of rank {measured.rank} grows: it holds "
                        f"{grown_bytes:,} B more after its last {steps} steps, of arrays and objects that no ledger "
                        f"counts; {allowed:,} are allowed")


def operations_claims(row: "RowOutcome") -> Iterator[Claim]:
    """The matrix products of the ranks of each pipeline have the model's operations."""
    every = row.measured.operations
    stride = len(every) // row.config.directions.pipeline
    for rank in range(stride):
        for what, due in row.due_operations.items():
            seen = sum(operations.get(what, 0) for operations in every[rank::stride])
            yield Claim(seen, due, due, f"floating-point operations of {what} are not the model's: {seen:,} of rank "
                                        f"{rank}; expected {due:,}")


def does_not_fit(needed_bytes: int, allowed_bytes: int, would_fit: Sequence[str]) -> str:
    """What a row needs on each rank, the limit, and the stages whose model states would fit, in words."""
    others = ", ".join(STAGES[name].title for name in would_fit) or "no stage"
    return (
        f"needs {needed_bytes / 1e6:,.0f} MB for its model states on each rank, and more in a step; "
        f"{allowed_bytes / 1e6:,.0f} MB are allowed; the states of {others} would fit")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a row, in the fields that documents have too."""

    equal: bool | None = None
    """whether the bits equal the compared run; `null` if there was none"""
    compared_with: str | None = None
    """`one process` or, without a reference, the first row that adds in the same order, or `null`"""
    first_divergence: Divergence | None = None
    """the first differing bytes, or `null`"""
    due_operations: dict[str, int] = field(default_factory=dict)
    """the `operations` due of each rank; over a pipeline, of its ranks together"""
    operations_between: dict[str, tuple[int, int]] = field(default_factory=dict)
    """floor and ceiling of the `operations` of all ranks together, from the model's sizes; `{}` for your own model"""
    volume: float = 0.0
    """bytes sent per rank and step by formula, the mean over ranks, in units of P (N−1)/N"""


@dataclass(frozen=True)
class RowOutcome(Judgement):
    """The outcome of a row: its measurement, and what is due in the same types; or what it needs, if it did not fit."""

    measured: Measurement
    due: Measurement | None = None
    """The traffic and the memory of each rank by the formulas; None if the row did not fit."""
    most_messages: int = 0
    """The messages by formula in a step that is not skipped, of the rank that sends the most."""
    sent_otherwise: str | None = None
    """What a user's collective sends and should not, in words."""
    schedule_fault: str | None = None
    """The first difference between the passes of a pipeline's ranks and the formulas, in words."""
    fragmentation: Fragmentation | None = None
    """The fragmentation of rank 0's memory in the last step, if the scenario requests it."""
    needed_bytes: int = 0
    """If it did not fit, the bytes of its model states."""
    allowed_bytes: int = 0
    would_fit: list[str] = field(default_factory=list)
    """The stages whose states would have fitted."""
    on_other_ranks: "Mapping[int, RowOutcome]" = field(default_factory=dict)
    """The results on different numbers of ranks."""

    @property
    def config(self) -> Config:
        return self.measured.config

    @property
    def traffic(self) -> list[tuple[Count, Count]]:
        """The traffic of each rank, measured and due."""
        return list(zip(self.measured.traffic, self.due.traffic, strict=True)) if self.due else []

    @property
    def memory(self) -> list[tuple[RankMemory, RankMemory]]:
        """The memory of each rank, measured and due."""
        return list(zip(self.measured.memory, self.due.memory, strict=True)) if self.due else []

    @property
    def name(self) -> str:
        """The name of the row: the variant's, or the stage's title."""
        return self.config.name

    @property
    def stage(self) -> str:
        return str(self.config.stage_key)

    @property
    def failures(self) -> list[str]:
        """The failed checks of this row, in words."""
        too_large = self.config.stage_key in self.config.check.does_not_fit
        if not self.measured.fits:
            return [] if too_large else [does_not_fit(self.needed_bytes, self.allowed_bytes, self.would_fit)]
        return [
            *failed_checks(self),
            *(["fits after all"] if too_large else []),
            *broken_claims(self),
            *other_bits(self),
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
    def trained(self) -> list[RowOutcome]:
        """The rows that were trained."""
        return [row for row in self.rows if row.measured.fits]

    @property
    def did_not_fit(self) -> list[RowOutcome]:
        """The rows whose model states exceed the limit, which were not trained."""
        return [row for row in self.rows if not row.measured.fits]

    @property
    def on_other_ranks(self) -> list[tuple[int, RowOutcome]]:
        """The results of rows on different numbers of ranks, each with that number."""
        return [(ranks, row_on) for row in self.rows for ranks, row_on in row.on_other_ranks.items()
                if row_on.measured.fits]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The failed checks: the row, and the fault in words."""
        failed = [(row.name, what) for row in self.rows for what in row.failures]
        claimed = self.scenario.check.same_weights
        if claimed is not None and claimed != self.same_weights:
            failed.append(("all rows", f"weights are {'the same' if self.same_weights else 'not the same'}"))
        return failed

    @property
    def same_weights(self) -> bool:
        """Whether all rows end with the same weights."""
        return len({row.measured.weights_sha256 for row in self.trained}) <= 1

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def verdict(self) -> str:
        """PASSED or FAILED with its subject, in a line."""
        if not self.passed:
            names = list(dict.fromkeys(name for name, _ in self.failures))
            of = joined_names(names) if len(names) <= MOST_NAMES else f"{len(names)} rows"
            return f"FAILED: {plural(len(self.failures), 'check')} did not hold, of {of}"
        rows, partners = self.trained, [row.compared_with for row in self.trained]
        if {*partners} == {"one process"}:
            bits = "every bit equal to one process"
        elif len(rows) > 1 and {*partners[1:]} == {rows[0].name}:
            bits = f"every bit equal to {rows[0].name}"
        elif {*partners} <= {None}:
            bits = "not compared with one process"
        else:
            bits = "every bit equal where rows add in the same order, not compared with one process"
        words = rows[0].name if len(rows) == 1 else plural(len(rows), "row")
        return f"PASSED: {words} on {plural(self.scenario.world.ranks, 'rank')}: {bits}"


def failed_checks(row: RowOutcome) -> Iterator[str]:
    """The failed checks of a row that every scenario has, in words; each check with its first rank."""
    measured, config = row.measured, row.config
    if row.equal is False:
        yield "bits differ" + ("" if row.compared_with == "one process" else f" from {row.compared_with}")
    if measured.updates != config.train.steps and not config.scaling().dynamic:
        yield f"counts {measured.updates} updates in {config.train.steps} steps, but no update may be skipped"
    yield from filter(None, [measured.disagreement])
    yield from first_fault(claim for rank, pair in enumerate(row.traffic) for claim in traffic_claims(rank, *pair))
    yield from filter(None, [row.sent_otherwise])
    yield from first_fault(operations_claims(row))
    if config.steps_here > 0:
        claims = [claim for pair in row.memory for claim in memory_claims(*pair, overweight(*pair), lingering(*pair))]
        kept = [claim for claim in claims if claim.about == "kept"]
        yield from first_fault(sorted(kept, key=lambda claim: ": " not in claim.fault))
        yield from first_fault(claim for claim in claims if claim.about != "kept")
        yield from first_fault(bounds_claims(row))
        yield from first_fault(growth_claims([rank for rank, _ in row.memory]))
        yield from filter(None, [row.schedule_fault])
    if measured.missed_faults:
        yield f"a fault was not injected: {'; '.join(measured.missed_faults)}"


def broken_claims(row: RowOutcome) -> Iterator[str]:
    """The checks of a scenario for this row that do not hold, in words."""
    check, measured, test, steps = row.config.check, row.measured, row.measured.test, row.config.steps_here
    if test is not None and check.test_accuracy and test < check.test_accuracy:
        # Six digits, so that a value just below the limit does not read as the limit.
        yield f"test accuracy is {100 * test:.6g}%, below {100 * check.test_accuracy:.6g}%"
    if test is not None and check.test_loss and not test < check.test_loss:
        yield f"test loss is {test:.6g}, not below {check.test_loss:.6g}"
    by_collectives = [sum(count.sent_bytes for name, count in rank.by_collective.items()
                          if name in check.collectives or not check.collectives) for rank in measured.traffic]
    called = {name for rank in measured.traffic for name in rank.by_collective}
    if check.collective_bytes and check.collectives and not called & {*check.collectives}:
        yield (f"calls none of check.collectives, {', '.join(check.collectives)}; name some of "
               f"{', '.join(sorted(called)) or 'none'}")
    beyond = row.fragmentation.beyond_peak_bytes if row.fragmentation else {}

    def in_step(count: int) -> float:
        return count / steps if steps and count % steps else count // max(steps, 1)

    of_steps: list[tuple[Sequence[int], float, str]] = [
        *((claims, beyond.get(name, math.nan), f"needs {{seen:,}} bytes beyond the peak by {name}, not {{due:,}}")
          for name, claims in ((FIRST_FIT, check.beyond_peak), (LAID_OUT, check.beyond_peak_laid_out))),
        (check.activations, max((rank.peak_bytes["activations"] for rank in measured.memory), default=0),
         "holds {seen:,} bytes of activations at the peak, not {due:,}"),
        (check.between_bytes, in_step(sum(rank.between_bytes for rank in measured.traffic)),
         "sends {seen:,.10g} bytes between hosts in a step, not {due:,}"),
        (check.kept_bytes, max((sum(rank.resting_bytes.values()) for rank in measured.memory), default=0),
         "keeps {seen:,} bytes between steps, not {due:,}"),
        (check.collective_bytes, in_step(max(by_collectives, default=0)),
         "sends {seen:,.10g} bytes a step by check.collectives, not {due:,}"),
        (check.largest_messages, max((rank.largest_message_bytes for rank in measured.traffic), default=0),
         "sends {seen:,} bytes in its largest message, not {due:,}"),
    ]
    for claims, figure, words in (
            ([round(claimed, 6) for claimed in check.volumes], round(row.volume, 6),
             "sends {seen:.4g} P (N−1)/N, not {due:.4g}"),
            (check.messages, row.most_messages, "sends {seen:g} messages a step, not {due}"),
            *(of_steps if row.config.done == 0 or steps else [])):
        for claimed in claims:
            yield from first_fault([Claim(figure, claimed, claimed, words.format(seen=figure, due=claimed))])


def other_bits(row: RowOutcome) -> Iterator[str]:
    """The faults of the row on different numbers of ranks, in words."""
    trained = {ranks: outcome for ranks, outcome in row.on_other_ranks.items() if outcome.measured.fits}
    differing = [str(ranks) for ranks, outcome in trained.items()
                 if outcome.measured.weights_sha256 != row.measured.weights_sha256]
    if differing:
        yield f"different bits on {', '.join(differing)} rank{'s' * (differing != ['1'])}"
    for ranks, outcome in trained.items():
        yield from (f"on {plural(ranks, 'rank')}: {what}" for what in failed_checks(outcome))
    yield from (f"does not fit on {plural(ranks, 'rank')}" for ranks in row.on_other_ranks if ranks not in trained)
