"""A run read from its JSON document: its rows, and the data for their tables and pictures.

Terminal, page, pictures and plain rows read a run here alone, so a run and its old document show the same. Fields that
only later versions write, or only runs with a verdict, may be missing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from zerosim.core.errors import UsageError
from zerosim.core.precisions import PRECISIONS, Precision
from zerosim.core.sharding import Directions
from zerosim.core.words import KEPT, ByteUnit, common_unit, plural, printable
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.observe.trace import Trace
from zerosim.show.document import SCHEMA, read_trace
from zerosim.show.trace_events import message_ends
from zerosim.stages import STAGES
from zerosim.stages.schedules import Slot
from zerosim.verdict.outcome import does_not_fit

KIND_NAMES: dict[str, str] = {kind: KEPT.get(kind, kind) for kind in MEMORY_KINDS}
STEP_LANES = {"computation": 0, "waiting": 0, "collectives": 1, "communication out": 1, "communication in": 2}
COPIES = 5
"""The lane of copies between tiers of memory, below all others; waits for them are in the step's own lane."""
MOST_SPANS = 8_000
"""The most spans on a page, over all rows: a browser draws them in a second."""
NO_UNIT = "no unit"
"""The unit of spans without one."""
TURNS = "In this process ranks take turns: others compute while one waits. Use mpirun for real times."


class StageWords(NamedTuple):
    """A stage as tables describe it: its title, its other names, and the states that it shards."""

    title: str
    also: str
    sharded: tuple[str, ...]


@dataclass(frozen=True)
class RowDocument:
    """One line of the comparison; `of` names its run if the page shows two."""

    found: dict[str, Any]
    ranks: int
    steps: int
    of: str = ""
    drawn: int = 0
    """The number of ranks whose spans are drawn, from rank 0 on; 0 for all."""

    @property
    def name(self) -> str:
        name = printable(str(self.found["name"]))
        return f"{self.of}: {name}" if self.of else name

    @property
    def passes(self) -> list[list[Slot]]:
        """The passes of each rank of its first pipeline in the last step; none without one."""
        pipelines = self.found.get("passes") or [[]]
        return [[Slot(*each) for each in of_rank] for of_rank in pipelines[0]]

    @property
    def heading(self) -> str:
        """The heading of a single picture: stage, ranks, model and parameters, as far as they are known."""
        parts = [self.name, plural(self.found.get("ranks", self.ranks), "rank")]
        if (model := self.found.get("model")) is not None:
            parts += [printable(str(model["title"])), f"{model['parameters']:,} parameters"]
        return ", ".join(parts)

    @property
    def stage(self) -> StageWords | None:
        """The stage in words: a shipped one's, or a user's as declared; None for a script."""
        own, shipped = self.found.get("own_stage"), STAGES.get(str(self.found["stage"]))
        if shipped is not None:
            return StageWords(shipped.title, shipped.also, shipped.sharded)
        return StageWords(own["title"], own["also"], tuple(own["sharded"])) if own else None

    @property
    def is_trained(self) -> bool:
        """Whether it was trained: not if its model states did not fit."""
        return "needed_bytes" not in self.found

    @property
    def also(self) -> str:
        """Another name of the stage; "PyTorch" for a script."""
        return "PyTorch" if self.stage is None else self.stage.also.partition(",")[0]

    @cached_property
    def traced(self) -> list[dict[str, Any]]:
        """The last traced step of each rank; empty without a trace."""
        steps: list[dict[str, Any]] = (self.found.get("trace") or {"steps": []})["steps"]
        last = max((step["step"] for step in steps), default=0)
        return [step for step in steps if step["step"] == last]

    @property
    def hidden(self) -> float | None:
        """The share of the communication during which its rank computed, from 0 to 1."""
        found: float | None = (self.found.get("trace") or {"hidden": None})["hidden"]
        return found

    @cached_property
    def spans(self) -> list[dict[str, Any]]:
        """The spans of the traced step, sorted by rank, lane and time; times count from the step's beginning."""
        first = self.first_ns
        found = [
            span | {"lane": lane(span), "kind": span["lane"], "unit": span["unit"] or NO_UNIT,
                    "begin_ns": span["begin_ns"] - first, "end_ns": span["end_ns"] - first}
            for step in self.traced for span in step["spans"] if step["rank"] < (self.drawn or self.ranks)
        ]
        return sorted(found, key=lambda span: (span["rank"], span["lane"], span["begin_ns"], -span["end_ns"]))

    @property
    def step_ns(self) -> int:
        """The time of the traced step, from the beginning of the first rank to the end of the last span."""
        return max((span["end_ns"] for span in self.spans), default=0)

    @property
    def computing_ns(self) -> float:
        """The time of computation in the traced step, the mean over its ranks."""
        computed = [span["end_ns"] - span["begin_ns"] for span in self.spans if span["kind"] == "computation"]
        total: int = sum(computed)
        return total / (len({span["rank"] for span in self.spans}) or 1)

    @cached_property
    def links(self) -> list[tuple[int, int]]:
        """Each message as the numbers of its two spans, at its sender and at its receiver."""
        return message_ends((span["kind"], span["rank"], span["peer"], span["channel"]) for span in self.spans)

    @property
    def curve(self) -> list[dict[str, int]]:
        """The memory of the fullest rank after each change since the step began: in the traced step, or else in the
        last."""
        for step in self.traced:
            if step["rank"] == self.fullest["rank"] and step["memory"]:
                return [at | {"ns": max(at["ns"] - self.first_ns, 0)} for at in step["memory"]]
        found: list[dict[str, int]] = self.fullest["curve"]
        return found

    @property
    def fullest(self) -> dict[str, Any]:
        """The memory of the rank with the highest peak."""
        found: dict[str, Any] = max(self.found["memory"], key=lambda rank: rank["peak_bytes"]["total"])
        return found

    @property
    def kept_on_host(self) -> dict[str, int]:
        """The bytes of each kind that the fullest rank keeps on the host: see `on_host`."""
        return on_host(self.fullest.get("host_resting_bytes", {}), self.fullest.get("host_peak_bytes", {}))

    @property
    def judged_memory(self) -> list[dict[str, Any]]:
        """The memory of each rank with the bytes due; empty if no step was left to do, or nothing is due."""
        return [each for each in self.found["memory"] if "formula_bytes" in each] if self.steps_here > 0 else []

    @property
    def on_host_as_due(self) -> bool:
        """Whether every rank keeps the bytes due on the host."""
        return all(rank.get(name) == rank.get(f"formula_{name}") for rank in self.judged_memory
                   for name in ("host_resting_bytes", "host_peak_bytes"))

    @cached_property
    def trace(self) -> Trace | None:
        """The traced steps, as they were recorded; None without a trace."""
        found = self.found.get("trace")
        return read_trace(found) if found and found["steps"] else None

    @property
    def first_ns(self) -> int:
        """The time at which the first rank begins the traced step."""
        found: int = min((step["begin_ns"] for step in self.traced), default=0)
        return found

    @property
    def end_ns(self) -> int:
        """The time of the last event of the step or of its memory, since the first rank began."""
        ends: list[int] = [step["end_ns"] - self.first_ns for step in self.traced]
        return max([*ends, *(at["ns"] for at in self.curve)], default=0)

    @property
    def steps_here(self) -> int:
        """The steps of the run, without those before the checkpoint that it resumed from."""
        return self.steps - int((self.found.get("resumed") or {"step": 0})["step"])

    @property
    def sent_bytes(self) -> int:
        """The bytes that a rank sends in a step, the mean over ranks and steps."""
        return self.mean("sent_bytes")

    def per_step(self, figure: str, collective: str = "") -> list[float]:
        """A figure of traffic in a step for each rank, ascending; by all collectives or by one."""
        ranks = self.found["traffic"]
        if collective:
            ranks = [rank["by_collective"].get(collective, {}) for rank in ranks]
        return sorted(rank.get(figure, 0) / max(self.steps_here, 1) for rank in ranks)

    def mean(self, figure: str) -> int:
        """A figure of traffic in a step, the mean over ranks and steps; 0 if it is unknown."""
        found = self.per_step(figure)
        return round(sum(found) / max(len(found), 1))

    @property
    def losses(self) -> list[float | None]:
        """The losses; None for those that are not finite."""
        return [loss if isinstance(loss, int | float) else None for loss in self.found["losses"]]


def lane(span: dict[str, Any]) -> int:
    """The number of the lane in which a span is drawn."""
    if span["lane"] == "offload":
        return COPIES if span["channel"] > 1 else 0
    return STEP_LANES[span["lane"]] + (2 if span["channel"] > 1 else 0)


@dataclass(frozen=True)
class RunDocument:
    """An outcome as `zerosim run --json` writes it; `label` distinguishes it from another on the same page."""

    document: dict[str, Any]
    label: str = ""

    @property
    def title(self) -> str:
        return str(self.document["title"])

    @property
    def scenario(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["scenario"]
        return found

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The keys of each declared row: [parallel] with the variant's own; `stage` and `name` too."""
        parallel = self.scenario["parallel"]
        variants = self.scenario.get("variant") or [
            {"name": "", "stage": stage} for stage in parallel.get("stages", [])]
        return [parallel | {key: value for key, value in each.items() if value is not None} for each in variants]

    @property
    def all_rows(self) -> list[RowDocument]:
        """All rows in declared order; of those that did not fit only name, stage and needs are known."""
        trained, missing = list(self.rows), [RowDocument(each, self.ranks, self.steps, self.label)
                                             for each in self.document["did_not_fit"]]
        found = []
        for each in self.declared:
            for left in (trained, missing):
                if left and left[0].found["stage"] == each["stage"] and left[0].name.startswith(each["name"]):
                    found.append(left.pop(0))
                    break
        return [*found, *trained, *missing]

    @property
    def shortages(self) -> list[str]:
        """The rows that did not fit, the memory that they need, and the stages that would fit."""
        keys = ("needed_bytes", "allowed_bytes", "would_fit")
        return [f"{row.name} does not fit: {does_not_fit(*(row.found[key] for key in keys))}"
                for row in self.all_rows if not row.is_trained]

    def sharding_ranks(self, stage: str) -> list[int]:
        """The numbers of ranks over which the rows of a stage shard, ascending."""
        rows = [(each, self.ranks // Directions.named(each).places) for each in self.declared if each["stage"] == stage]
        return sorted({each.get("shard_ranks") or ranks for each, ranks in rows})

    @property
    def splits_models(self) -> bool:
        """Whether ranks share micro-batches in some row."""
        return any(Directions.named(each).places > 1 for each in self.declared)

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.scenario["train"]["precision"]]

    @property
    def weights_bytes(self) -> int:
        """The bytes of all weights, in one copy."""
        return int(self.rows[0].found["model"]["parameters"]) * self.precision.weights.itemsize

    @property
    def gathering_bytes(self) -> int:
        """The bytes that a rank sends in one all-gather of all weights: what is due in a step, over its volume.

        That includes padding. If a step was skipped, or nothing is due, it is P (N − 1)/N without padding.
        """
        found, steps = self.rows[0].found, self.rows[0].steps_here
        due: int = sum(rank.get("formula_bytes", 0) for rank in found["traffic"])
        volume: float = found["volume"]
        if due and volume and found["updates"] == self.steps:
            return round(due / len(found["traffic"]) / steps / volume)
        return self.weights_bytes * (self.ranks - 1) // self.ranks

    @property
    def compared_with(self) -> set[str]:
        """The partners of all comparisons: one process, or rows."""
        return {row.found["compared_with"] for row in self.rows} - {None}

    @property
    def offloads(self) -> bool:
        """Whether some row keeps bytes on the host."""
        return any(row.kept_on_host for row in self.rows)

    @property
    def untraced(self) -> "RunDocument":
        """The run without its trace, whose times mean little if ranks take turns."""
        return replace(self, document=self.document | {
            "rows": [row | {"trace": None} for row in rows_in(self.document)]})

    @property
    def ranks(self) -> int:
        return int(self.document["world"]["ranks"])

    @property
    def shared_cores(self) -> int:
        """The cores that ranks shared, if there were more ranks than cores; else 0."""
        return int(self.document["world"].get("shared_cores", 0))

    @property
    def takes_turns(self) -> bool:
        """Whether all ranks ran in one process, where others compute while one waits."""
        return bool(self.document["world"]["kind"] == "local")

    @property
    def steps(self) -> int:
        return int(self.scenario["train"]["steps"])

    @cached_property
    def rows(self) -> list[RowDocument]:
        """The trained rows, with the number of ranks to be drawn."""
        rows = [RowDocument(found, self.ranks, self.steps, self.label) for found in rows_in(self.document)]
        spans = Counter(span["rank"] for row in rows for span in row.spans)
        up_to = accumulate(spans[rank] for rank in range(self.ranks))
        drawn = max(1, sum(count <= MOST_SPANS for count in up_to))
        return [replace(row, drawn=drawn) for row in rows]

    @property
    def is_script(self) -> bool:
        """Whether it is a PyTorch script, which has no scenario."""
        return any("calls" in row.found for row in self.rows)

    @property
    def about_times(self) -> str:
        """A warning about times that mean little: ranks that take turns in one process, or share cores."""
        return TURNS if self.takes_turns else sharing(self.ranks, self.shared_cores)

    @property
    def diverging(self) -> list[RowDocument]:
        return [row for row in self.rows if row.found["first_divergence"]]


def element_name(found: Mapping[str, Any], state: str | None) -> str:
    """The first differing element of a document's difference: its state, if it is not a weight, and its index.

    >>> element_name({"name": "layers.1.weight", "index": [0, 2]}, "gradient")
    'gradient of layers.1.weight[0, 2]'
    """
    index = f"[{', '.join(map(str, found['index']))}]" if found["index"] else ""
    return f"{state} of {found['name']}{index}" if state else f"{found['name']}{index}"


def on_host(states: Mapping[str, int], peaks: Mapping[str, int]) -> dict[str, int]:
    """The bytes on the host by kind: model states between steps, and offloaded activations at the peak.

    >>> on_host({"optimizer": 16}, {"optimizer": 24, "activations": 5})
    {'optimizer': 16, 'activations': 5}
    """
    found = {**states, "activations": peaks.get("activations", 0)}
    return {kind: count for kind, count in found.items() if count}


def unit_of(rows: Sequence[RowDocument]) -> ByteUnit:
    """The unit for all bytes of these rows, chosen by the highest peak."""
    return common_unit(max((row.fullest["peak_bytes"]["total"] for row in rows), default=0))


def sharing(ranks: int, shared_cores: int) -> str:
    """
    >>> sharing(4, 2), sharing(4, 0)
    ('4 ranks share 2 cores, so times include waiting for a core.', '')
    """
    cores = plural(shared_cores, "core")
    return f"{plural(ranks, 'rank')} share {cores}, so times include waiting for a core." if shared_cores else ""


NEEDED = ("title", "scenario", "world", "command", "versions", "passed", "verdict", "failures", "did_not_fit")
NEEDED_OF_A_ROW = ("stage", "name", "equal", "compared_with", "first_divergence", "losses", "test", "weights_sha256",
                   "optimizer_sha256", "traffic", "traffic_holds", "volume", "memory")


def rows_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The trained rows; version 0.1 called them stages."""
    found: list[dict[str, Any]] = document.get("rows", document.get("stages", []))
    return found


def runs_of(documents: Sequence[Any], names: Sequence[str]) -> list[RunDocument]:
    """The runs of these documents; two of them are named A and B. `UsageError` for a document that is no outcome."""
    for document, name in zip(documents, names, strict=True):
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            found = f"its schema is {schema!r}" if schema else "it names no schema"
            raise UsageError(f"{name} is not an outcome of a training run: {found}, not {SCHEMA!r}; "
                             "write one with zerosim run SCENARIO --json FILE")
        lacking = [key for key in NEEDED if key not in document]
        lacking += [key for row in rows_in(document) for key in NEEDED_OF_A_ROW if key not in row]
        if lacking:
            raise UsageError(f"{name} has no {lacking[0]!r}: it was written by another version of zerosim; write it "
                             "again with zerosim run SCENARIO --json FILE")
    labels = ["A", "B"] if len(documents) > 1 else [""]
    return [RunDocument(document, label) for document, label in zip(documents, labels, strict=True)]
