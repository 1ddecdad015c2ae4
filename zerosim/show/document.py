"""The outcome of a run as a document: these dataclasses are what `zerosim run --json` writes and what all views read.

Terminal, page, pictures and plain rows are functions of a `RunDocument`, so a run and its `--json` show the same. A new
key is a field with its docstring, here or where it is measured; its value is the attribute of that name, unless
`document` says otherwise. `docs/outcome.md` is generated from these classes: fields without a docstring share that of
the next field which has one.
"""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any

import msgspec

from zerosim.core.errors import UsageError
from zerosim.core.words import ByteUnit, common_unit
from zerosim.observe.trace import ClockOffset, Span, StepTimes, Trace
from zerosim.scenario import resolved
from zerosim.stages import STAGES, Stage
from zerosim.training.measurement import Figures, RankBytes
from zerosim.verdict.addresses import Fragmentation
from zerosim.verdict.diagnosis import RowDifference
from zerosim.verdict.outcome import (
    Judgement,
    Outcome,
    RowOutcome,
    does_not_fit,
    lingering,
    memory_claims,
    overweight,
    traffic_claims,
)
from zerosim.worlds.world import sharing

TURNS = "In this process ranks take turns: others compute while one waits. Use mpirun for real times."


@dataclass(frozen=True)
class CallsDocument:
    """The traffic of one rank in all calls of a collective."""

    calls: int
    sent_bytes: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class TrafficFigures:
    """The traffic of one rank in the whole run: measured, or due."""

    sent_bytes: int
    received_bytes: int
    messages: int
    """its bytes and messages"""
    by_collective: dict[str, CallsDocument]
    """`calls`, `sent_bytes`, `messages` of each collective, such as `all_gather`"""
    inside_bytes: int
    between_bytes: int
    largest_message_bytes: int
    """bytes sent within the host, to other hosts, and in the largest message"""


@dataclass(frozen=True, kw_only=True)
class TrafficDocument(TrafficFigures):
    """The traffic of one rank in the whole run, measured and due."""

    rank: int
    due: TrafficFigures
    """the rank; the same figures by formula"""


@dataclass(frozen=True, kw_only=True)
class MemoryDocument(RankBytes):
    """The memory of one rank between steps and at the peak within a step, measured and due."""

    due: RankBytes | None = None
    """the same by formula; `peak_bytes` are the most, exact except for buffers in a world that copies messages"""
    overweight: list[str] = field(default_factory=list)
    lingering: list[str] = field(default_factory=list)
    """in words: units that keep more bytes than the formula, arrays that outlive the step; arrays no longer needed"""
    curve: list[dict[str, int]] = field(default_factory=list)
    """at each change in the last step `ns` since it began and the bytes of each kind"""

    @property
    def on_host(self) -> dict[str, int]:
        """The bytes on the host by kind: model states between steps, and offloaded activations at the peak."""
        kept = {**self.host_resting_bytes, "activations": self.host_peak_bytes.get("activations", 0)}
        return {kind: count for kind, count in kept.items() if count}

    @property
    def wrong(self) -> set[str]:
        """Which bytes differ from those due: those `kept` between steps, on the `host`, or at the `peak` and later."""
        claims = memory_claims(self, self.due, self.overweight, self.lingering) if self.due else ()
        wrong = {claim.about for claim in claims if not claim.holds}
        return wrong | ({"peak"} if "host" in wrong else set())


@dataclass(frozen=True, kw_only=True)
class StepDocument(StepTimes):
    """One traced step of one rank."""

    rank: int
    step: int
    begin_ns: int
    end_ns: int
    """the rank; the step, from 1; its beginning and end"""
    spans: list[Span]
    """in the order of their ends"""
    memory: list[dict[str, int]]
    """at the beginning and at each change `ns` and the live bytes of each kind"""


@dataclass(frozen=True)
class TraceDocument:
    """Times are integer nanoseconds of rank 0's monotonic clock since the first traced step began."""

    hidden: float | None
    """fraction of the time in collectives that overlaps computation; `null` without collectives"""
    clocks: list[ClockOffset]
    steps: list[StepDocument]
    """the clock, and each traced step, of each rank"""


@dataclass(frozen=True)
class MisfitDocument:
    """A row whose model states exceed the memory limit, which was not trained."""

    stage: str
    name: str
    needed_bytes: int
    allowed_bytes: int
    would_fit: list[str]
    """the row and its stage; bytes of model states on a rank; the limit; the stages whose model states fit"""

    @property
    def words(self) -> str:
        return f"{self.name} does not fit: {does_not_fit(self.needed_bytes, self.allowed_bytes, self.would_fit)}"


@dataclass(frozen=True)
class OtherRanksDocument:
    """A row on one of the numbers of ranks in `check.same_bits_on`."""

    ranks: int
    name: str
    weights_sha256: str
    """the number of ranks, the row, the digest of its weights"""


@dataclass(frozen=True)
class OwnStage:
    """A stage in words: its title, its other names, and the states that it shards."""

    title: str
    also: str
    sharded: tuple[str, ...]
    """as the stage declares them"""


@dataclass(frozen=True, kw_only=True)
class RowDocument(Judgement, Figures):
    """One row of the comparison: a variant or, without variants, a stage."""

    stage: str
    name: str
    """`ddp`, `zero1`, `zero2`, `zero3`, or your own; the name of the variant or stage"""
    model: dict[str, Any] = field(default_factory=dict)
    """the shape in words (`title`) and the number of `parameters`"""
    shard_ranks: int = 1
    """the ranks over which the stage cuts model states"""
    losses: list[float] = field(default_factory=list)
    """the mean loss of each step, also of those before a resume"""
    traffic: list[TrafficDocument] = field(default_factory=list)
    traffic_holds: bool = True
    """bytes and messages of each rank in the run; whether they equal the formula"""
    memory: list[MemoryDocument] = field(default_factory=list)
    fragmentation: Fragmentation | None = None
    """of each rank; of rank 0's last step if `[check]` asks for it, else `null`"""
    ignored: dict[str, str] = field(default_factory=dict)
    """the keys of `[parallel]` that do not apply, each with the reason"""
    own_stage: OwnStage | None = None
    """`title`, `also` and `sharded` of your own stage; `null` for a shipped one"""
    resumed: dict[str, Any] | None = None
    """`folder`, `step`, `stage` and `ranks` of the checkpoint from which the row resumed; else `null`"""
    trace: TraceDocument | None = None
    """the traced steps, with `--trace`, `--report` or `--trace-steps`; else `null`"""

    @property
    def stage_words(self) -> OwnStage | Stage:
        return self.own_stage or STAGES[self.stage]

    @property
    def ranks(self) -> int:
        return len(self.memory)

    @property
    def steps_here(self) -> int:
        """The steps of the run, without those before the checkpoint that it resumed from."""
        return len(self.losses) - int((self.resumed or {"step": 0})["step"])

    @cached_property
    def fullest(self) -> MemoryDocument:
        """The memory of the rank with the highest peak."""
        return max(self.memory, key=lambda rank: rank.peak_bytes["total"])

    @cached_property
    def wrong(self) -> set[str]:
        """The kinds of figures that differ from those due: `sent` and, unless no step was left to do, those of memory.
        """
        ranks = self.memory if self.steps_here > 0 else []
        return {"sent"} - {"sent" * self.traffic_holds} | {kind for rank in ranks for kind in rank.wrong}

    def per_step(self, figure: str, collective: str = "") -> list[float]:
        """A figure of traffic in a step for each rank, ascending; by all collectives or by one."""
        counts = [getattr(rank.by_collective.get(collective) if collective else rank, figure, 0)
                  for rank in self.traffic]
        return sorted(count / max(self.steps_here, 1) for count in counts)

    def most(self, figure: str) -> int:
        """A figure of traffic in a step, the mean over steps, of the rank with the most, as in plans."""
        return round(max(self.per_step(figure), default=0))

    @cached_property
    def traced(self) -> list[StepDocument]:
        """The last traced step of each rank; empty without a trace."""
        steps = self.trace.steps if self.trace else []
        last = max((step.step for step in steps), default=0)
        return [step for step in steps if step.step == last]

    @property
    def first_ns(self) -> int:
        """The time at which the first rank begins the traced step."""
        return min((step.begin_ns for step in self.traced), default=0)

    @property
    def step_ns(self) -> int:
        """The time of the traced step, from the beginning of the first rank to the end of the last one."""
        return max((step.end_ns for step in self.traced), default=0) - self.first_ns

    @property
    def curve(self) -> list[dict[str, int]]:
        """The memory of the fullest rank after each change since the step began: in the traced step, or else in the
        last."""
        for step in self.traced:
            if step.rank == self.fullest.rank and step.memory:
                return [at | {"ns": max(at["ns"] - self.first_ns, 0)} for at in step.memory]
        return self.fullest.curve


@dataclass(frozen=True, kw_only=True)
class RunDocument:
    """`zerosim run --json FILE` writes this document to a file, `--json -` to standard output; tables then go to
    standard error. Byte counts are exact. NaN and infinities are the strings `"nan"`, `"inf"`, `"-inf"`.
    """

    schema: str
    """`zerosim.run/2`"""
    title: str
    scenario: dict[str, Any]
    """its title, and the scenario with every default; `null` in a variant: the key of `[parallel]` applies"""
    world: dict[str, Any]
    """`kind` (`mpi` or `local`), `ranks`, `library`; with more ranks than cores also `shared_cores`"""
    command: str | None
    versions: dict[str, str]
    """the command line, or `null`; versions of `zerosim`, `python` and `numpy`"""
    passed: bool
    verdict: str
    """whether every check held; the result in words"""
    test_measure: str | None
    """the measure of `test` in each row: `accuracy`, `exact sequences`, `loss` or `mean squared error`; `null` without
    a test split"""
    failures: list[dict[str, str]]
    """the checks that failed: the `name` of the row, and `what` is wrong"""
    rows: list[RowDocument]
    """the trained rows, in the scenario's order; `stages` is the same list"""
    differences: list[RowDifference]
    did_not_fit: list[MisfitDocument]
    on_other_ranks: list[OtherRanksDocument]
    """below"""

    @property
    def ranks(self) -> int:
        return int(self.world["ranks"])

    @property
    def steps(self) -> int:
        return int(self.scenario["train"]["steps"])

    @property
    def takes_turns(self) -> bool:
        """Whether all ranks ran in one process, where others compute while one waits."""
        return bool(self.world["kind"] == "local")

    @property
    def about_times(self) -> str:
        """A warning about times that mean little: ranks that take turns in one process, or share cores."""
        return TURNS if self.takes_turns else sharing(self.ranks, self.world.get("shared_cores", 0))

    @property
    def times_mislead(self) -> bool:
        """Whether ranks take turns or share cores, or compute in less than half of the traced steps."""
        mostly_idle = sum(2 * step.computation_ns - (step.end_ns - step.begin_ns)
                          for row in self.rows for step in row.traced) < 0
        return self.takes_turns or bool(self.world.get("shared_cores")) or mostly_idle

    @property
    def compared_with(self) -> set[str]:
        """The partners of all comparisons: one process, or rows."""
        return {row.compared_with for row in self.rows if row.compared_with is not None}


def document(outcome: Outcome, world: dict[str, Any], command: str | None = None) -> RunDocument:
    """The whole outcome; `command` is the command line of the run, if there was one."""
    scenario, dataset = outcome.scenario, outcome.experiment.dataset
    return msgspec.convert({
        "schema": "zerosim.run/2",
        "title": scenario.title,
        "scenario": resolved(scenario),
        "world": world,
        "command": command,
        "versions": {"zerosim": version("zerosim"), "python": platform.python_version(), "numpy": version("numpy")},
        "passed": outcome.passed,
        "verdict": outcome.verdict,
        "test_measure": None if dataset.x_test is None else dataset.measure,
        "failures": [{"name": name, "what": what} for name, what in outcome.failures],
        "rows": [*map(row_document, outcome.trained)],
        "differences": outcome.differences,
        "did_not_fit": outcome.did_not_fit,
        "on_other_ranks": [{"ranks": ranks, "name": row.name, "weights_sha256": row.measured.weights_sha256}
                           for ranks, row in outcome.on_other_ranks],
    }, RunDocument, from_attributes=True)


def row_document(row: RowOutcome) -> dict[str, Any]:
    """The values of a row's fields: those of the row and its measurement, under their names, and others."""
    config, resumed, trace = row.config, row.config.resumed, row.measured.trace
    return vars(row.measured) | vars(row) | {
        "stage": row.stage,
        "name": row.name,
        "model": {"title": config.model.words, "parameters": config.model.count},
        "shard_ranks": config.placement.mesh.group,
        "losses": [float(loss[0]) for loss in row.measured.losses],
        "ignored": config.ignored,
        "traffic": [{name: getattr(measured, name) for name in TrafficFigures.__annotations__} | {
            "rank": rank, "due": due} for rank, (measured, due) in enumerate(row.traffic)],
        "traffic_holds": all(claim.holds for pair in row.traffic for claim in traffic_claims(0, *pair)),
        "memory": [vars(measured) | {
            "due": due, "overweight": overweight(measured, due), "lingering": lingering(measured, due),
            "curve": [{"ns": at, **now} for at, now in measured.curve]} for measured, due in row.memory],
        "own_stage": None if row.stage in STAGES else config.stage,
        "resumed": resumed and {
            "folder": str(resumed.path), **{key: resumed.about[key] for key in ("step", "stage", "ranks")}},
        "trace": trace and trace_document(trace),
    }


def trace_document(trace: Trace) -> TraceDocument:
    steps = [StepDocument(**vars(step) | vars(step.times) | {
        "memory": [{"ns": at, **held} for at, held in step.memory]}) for step in trace.steps]
    return TraceDocument(trace.hidden, trace.clocks, steps)


def plain(value: Any) -> Any:
    """`value` with tuples as lists and non-finite floats as strings, for strict JSON.

    >>> plain({"losses": (1.0, math.nan)})
    {'losses': [1.0, 'nan']}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def written(run: RunDocument) -> dict[str, Any]:
    """The document in JSON's own types."""
    document: dict[str, Any] = plain(msgspec.to_builtins(run))
    return document | {"stages": document["rows"]}


def read(content: bytes, name: str) -> RunDocument:
    """The document in a file; `UsageError` if it is no outcome."""
    try:
        return msgspec.json.decode(content, type=RunDocument, strict=False)
    except msgspec.DecodeError as error:
        what = "an outcome of a training run" if isinstance(error, msgspec.ValidationError) else "JSON"
        raise UsageError(f"{name} is not {what}: {error}; write an outcome with zerosim run SCENARIO --json FILE"
                         ) from error


def unit_of(rows: Sequence[RowDocument]) -> ByteUnit:
    """The unit for all bytes of these rows, chosen by the highest peak."""
    return common_unit(max((row.fullest.peak_bytes["total"] for row in rows), default=0))
