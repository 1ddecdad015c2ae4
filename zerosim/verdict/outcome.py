"""The outcome of a run: its measurements with the expected values, and every failed check.

Nothing here knows a terminal or a picture: views read the document that `zerosim.show.document` makes of an outcome.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

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

Figure = TypeVar("Figure")

TRAFFIC = {
    "sent_bytes": "bytes sent", "received_bytes": "bytes received", "messages": "messages",
    "between_bytes": "bytes sent to other hosts", "largest_message_bytes": "bytes in the largest message"}
"""The compared counts of all messages, and their words."""
MOST_NAMES = 4
"""The most rows that a verdict names."""
BEGINNINGS = {"reduce_scatter": "a reduce-scatter", "update": "an update"}
"""The operations before which a step frees what it no longer needs, in words."""


def traffic_fault(rank: int, measured: Count, expected: Count) -> str | None:
    """The first count of a rank's messages that differs from the one due, as the words after the name of a row."""
    figures = [(words, getattr(measured, name), getattr(expected, name)) for name, words in TRAFFIC.items()]
    for collective, ours, theirs in paired(measured.by_collective, expected.by_collective, Count()):
        figures += [(f"{words} of {collective}", getattr(ours, name), getattr(theirs, name))
                    for name, words in ({"calls": "calls"} | TRAFFIC).items()]
    return next((f"{what} are not the formula's: {seen:,} of rank {rank}; expected {expected:,}"
                 for what, seen, expected in figures if seen != expected), None)


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
    """
    >>> span_words(0, 0), span_words(0, 1024)
    ('0', 'from 0 to 1,024')
    """
    return f"{least:,}" if least == most else f"from {least:,} to {most:,}"


def lingering(measured: RankMemory, expected: RankMemory) -> list[str]:
    """The memory that a step should have freed before it reduced a gradient, or updated weights, in words."""
    return [
        f"{size:,} B of {kind} as {words} begins; expected {most:,}"
        for name, words in BEGINNINGS.items() for kind, most in expected.held_at_beginning.get(name, {}).items()
        if (size := measured.held_at_beginning.get(name, {}).get(kind, 0)) > most]


def memory_faults(
    measured: RankBytes, expected: RankBytes, heavy: Sequence[str], held: Sequence[str]
) -> Iterator[tuple[set[str], str]]:
    """The bytes of a rank that differ from those due, and units that are `heavy` or memory that is `held` too long: of
    the bytes `kept` between steps, at the `peak` and later, or on the `host`; and the fault in words."""
    if heavy or measured.resting_bytes != expected.resting_bytes:
        keeps = f": rank {expected.rank} keeps {', '.join(heavy)}" if heavy else ""
        yield {"kept"}, f"bytes kept are not the formula's{keeps}"
    for kind, most in expected.peak_bytes.items():
        peak, least = measured.peak_bytes[kind], expected.least_bytes.get(kind, 0)
        what = "all kinds together" if kind == "total" else kind
        if peak > most:
            yield {"peak"}, (f"more memory than allowed is in use at the peak: rank {measured.rank} holds {peak:,} B "
                             f"of {what}; {most:,} are enough")
        elif peak < least:
            yield {"peak"}, (f"less memory than required is in use at the peak: rank {measured.rank} holds {peak:,} B "
                             f"of {what}, where {least:,} are used")
    for words in held:
        yield {"peak"}, f"memory is held too long: rank {measured.rank} holds {words}"
    for which, words, ours, theirs in (
            ({"host", "peak"}, "{} between steps", measured.host_resting_bytes, expected.host_resting_bytes),
            ({"host", "peak"}, "{} at the peak", measured.host_peak_bytes, expected.host_peak_bytes),
            ({"peak"}, "bytes moved of {}", measured.moved_bytes, expected.moved_bytes)):
        for what, here, there in paired(ours, theirs, 0):
            if here != there:
                yield which, (f"host memory is not the formula's: rank {measured.rank}, {words.format(what)}: "
                              f"{here:,} B; expected {there:,}")


def out_of_bounds(row: "RowOutcome") -> Iterator[str]:
    """The operations of all ranks and the peaks that the papers' formulas do not allow, in words."""
    for what, (least, most) in row.operations_between.items():
        seen = sum(operations.get(what, 0) for operations in row.measured.operations)
        if not least <= seen <= most:
            yield (f"floating-point operations of {what} are beyond their bounds: {seen:,} of all ranks; the model's "
                   f"sizes allow {span_words(least, most)}")
    for (measured, due), traffic in zip(row.memory, row.measured.traffic, strict=True):
        kinds = {kind: peak for kind, peak in measured.peak_bytes.items() if kind != "total"}
        together = max([sum(due.resting_bytes.values()), *kinds.values()]), sum(kinds.values())
        bytes_seen = {f"{kind} at the peak": peak for kind, peak in measured.peak_bytes.items()} | {
            SENT: sum(count.sent_bytes for name, count in traffic.by_collective.items() if name.startswith("tensor_")),
            MOVED: sum(count for what, count in measured.moved_bytes.items() if what.partition(",")[0] in MODEL_STATES)}
        for what, (least, most) in (due.between | {"total at the peak": together}).items():
            if not least <= (seen := bytes_seen[what]) <= most:
                yield (f"bytes are beyond their bounds: rank {measured.rank} has {seen:,} B of {what}; the model's "
                       f"sizes allow {span_words(least, most)}")


def grown(measured: RankMemory, ranks: int) -> str | None:
    """The growth of a process of up to `ranks` ranks beyond what a step may leave in it, in words."""
    if not measured.process_bytes:
        return None
    grown_bytes, steps = growth(measured.process_bytes)
    allowed = ranks * steps * STEP_BYTES
    return None if grown_bytes <= allowed else (
        f"the process of rank {measured.rank} grows: it holds {grown_bytes:,} B more after its last {steps} steps, of "
        f"arrays and objects that no ledger counts; {allowed:,} are allowed")


def paired(ours: Mapping[str, Figure], other: Mapping[str, Figure], zero: Figure) -> list[tuple[str, Figure, Figure]]:
    """Each key of either side, in order, with both figures.

    >>> paired({"b": 1}, {"a": 2, "b": 1}, 0)
    [('a', 0, 2), ('b', 1, 1)]
    """
    return [(key, ours.get(key, zero), other.get(key, zero)) for key in sorted({*ours, *other})]


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
    def fits(self) -> bool:
        return self.measured.fits

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
        if not self.fits:
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
        return [row for row in self.rows if row.fits]

    @property
    def did_not_fit(self) -> list[RowOutcome]:
        """The rows whose model states exceed the limit, which were not trained."""
        return [row for row in self.rows if not row.fits]

    @property
    def on_other_ranks(self) -> list[tuple[int, RowOutcome]]:
        """The results of rows on different numbers of ranks, each with that number."""
        return [(ranks, row_on) for row in self.rows for ranks, row_on in row.on_other_ranks.items() if row_on.fits]

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
    if row.equal is False:
        yield "bits differ" + ("" if row.compared_with == "one process" else f" from {row.compared_with}")
    if row.measured.updates != row.config.train.steps and not row.config.scaling().dynamic:
        yield (f"counts {row.measured.updates} updates in {row.config.train.steps} steps, but no update may be skipped")
    if row.measured.disagreement:
        yield row.measured.disagreement
    yield from first_fault(traffic_fault(rank, *pair) for rank, pair in enumerate(row.traffic))
    yield from first_fault([row.sent_otherwise])
    yield from first_fault(miscalculated(row))
    if row.config.steps_here > 0:
        faults = [fault for pair in row.memory for fault in memory_faults(*pair, overweight(*pair), lingering(*pair))]
        kept = [words for which, words in faults if which == {"kept"}]
        yield from sorted(kept, key=lambda words: ": " not in words)[:1]
        yield from first_fault(words for which, words in faults if which != {"kept"})
        yield from first_fault(out_of_bounds(row))
        yield from first_fault(grown(measured, len(row.memory)) for measured, _ in row.memory)
        yield from first_fault([row.schedule_fault])
    if row.measured.missed_faults:
        yield f"a fault was not injected: {'; '.join(row.measured.missed_faults)}"


def first_fault(faults: Iterable[str | None]) -> list[str]:
    """The first of these words, if there are any."""
    return [words for words in faults if words][:1]


def broken_claims(row: RowOutcome) -> Iterator[str]:
    """The checks of a scenario for this row that do not hold, in words."""
    check, measured, test, steps = row.config.check, row.measured, row.measured.test, row.config.steps_here
    if test is not None and check.test_accuracy and test < check.test_accuracy:
        yield f"test accuracy is {percent(test)}, below {percent(check.test_accuracy)}"
    if test is not None and check.test_loss and not test < check.test_loss:
        yield f"test loss is {test:.6g}, not below {check.test_loss:.6g}"
    for claimed in check.volumes:
        if round(row.volume, 6) != round(claimed, 6):
            yield f"sends {row.volume:.4g} P (N−1)/N, not {claimed:.4g}"
    by_collectives = [sum(count.sent_bytes for name, count in rank.by_collective.items()
                          if name in check.collectives or not check.collectives) for rank in measured.traffic]
    beyond = row.fragmentation.beyond_peak_bytes if row.fragmentation else {}
    of_steps: list[tuple[Sequence[int], Fraction | int | None, str]] = [
        *((claims, beyond.get(name), f"needs {{:,}} bytes beyond the peak by {name}, not {{:,}}")
          for name, claims in ((FIRST_FIT, check.beyond_peak), (LAID_OUT, check.beyond_peak_laid_out))),
        (check.activations, max((rank.peak_bytes["activations"] for rank in measured.memory), default=0),
         "holds {:,} bytes of activations at the peak, not {:,}"),
        (check.between_bytes, Fraction(sum(rank.between_bytes for rank in measured.traffic), max(steps, 1)),
         "sends {:,.10g} bytes between hosts in a step, not {:,}"),
        (check.kept_bytes, max((sum(rank.resting_bytes.values()) for rank in measured.memory), default=0),
         "keeps {:,} bytes between steps, not {:,}"),
        (check.collective_bytes,
         Fraction(max(by_collectives, default=0), max(steps, 1)),
         "sends {:,.10g} bytes a step by check.collectives, not {:,}"),
        (check.largest_messages, max((rank.largest_message_bytes for rank in measured.traffic), default=0),
         "sends {:,} bytes in its largest message, not {:,}"),
    ]
    finished_before = row.config.done > 0 and not steps
    for claims, figure, words in (
            (check.messages, row.most_messages, "sends {:g} messages a step, not {}"),
            *([] if finished_before else of_steps)):
        for claimed in claims:
            if figure != claimed:
                yield words.format(float(figure) if isinstance(figure, Fraction) else figure or 0, claimed)


def percent(share: float) -> str:
    """A percentage with six digits, so that a value just below a limit does not read as the limit.

    >>> percent(0.95), percent(0.9499987)
    ('95%', '94.9999%')
    """
    return f"{100 * share:.6g}%"


def other_bits(row: RowOutcome) -> Iterator[str]:
    """The faults of the row on different numbers of ranks, in words."""
    trained = {ranks: outcome for ranks, outcome in row.on_other_ranks.items() if outcome.fits}
    differing = [str(ranks) for ranks, outcome in trained.items()
                 if outcome.measured.weights_sha256 != row.measured.weights_sha256]
    if differing:
        yield f"different bits on {', '.join(differing)} rank{'s' * (differing != ['1'])}"
    for ranks, outcome in trained.items():
        yield from (f"on {plural(ranks, 'rank')}: {what}" for what in failed_checks(outcome))
    yield from (f"does not fit on {plural(ranks, 'rank')}" for ranks in row.on_other_ranks if ranks not in trained)


def miscalculated(row: RowOutcome) -> Iterator[str]:
    """The ranks whose matrix products differ from the model's operations, in words."""
    formulas, every = row.due_operations, row.measured.operations
    stride = len(every) // row.config.directions.pipeline
    for rank in range(stride):
        counted = {what: sum(operations.get(what, 0) for operations in every[rank::stride]) for what in formulas}
        if counted != formulas:
            what = next(kind for kind in formulas if counted[kind] != formulas[kind])
            yield (f"floating-point operations of {what} are not the model's: {counted[what]:,} of rank {rank}; "
                   f"expected {formulas[what]:,}")
