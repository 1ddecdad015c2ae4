"""A run read from its JSON document: its rows, and the data for their pictures and tables."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from zerosim.errors import UsageError
from zerosim.report.document import SCHEMA
from zerosim.report.page.markup import printable
from zerosim.stages import STAGES
from zerosim.words import KEPT, plural

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")
KIND_NAMES = {kind: KEPT.get(kind, kind) for kind in KINDS}
STEP_LANES = {"computation": 0, "waiting": 0, "collectives": 1, "communication out": 1, "communication in": 2}
COPIES = 5
"""The lane of copies between tiers of memory, below all others; waits for them are in the step's own lane."""
MOST_SPANS = 8_000
"""The most spans on a page, over all rows: a browser draws them in a second."""
NO_UNIT = "no unit"
"""The unit of spans without one."""


@dataclass(frozen=True)
class PageRow:
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
    def heading(self) -> str:
        """The heading of a single picture: stage, ranks, model and parameters, as far as they are known."""
        parts = [self.name, plural(self.found.get("ranks", self.ranks), "rank")]
        if (model := self.found.get("model")) is not None:
            parts += [printable(str(model["title"])), f"{model['parameters']:,} parameters"]
        return ", ".join(parts)

    @property
    def also(self) -> str:
        """Another name of the stage; "PyTorch" for a script."""
        stage = STAGES.get(str(self.found["stage"]))
        return "PyTorch" if stage is None else stage.also.partition(",")[0]

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

    @cached_property
    def links(self) -> list[tuple[int, int]]:
        """Each message as the numbers of its two spans, at its sender and at its receiver.

        Messages between two ranks arrive in order in each channel, so the k-th sent is the k-th received.
        """
        ends: dict[tuple[int, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for number, span in enumerate(self.spans):
            if span["kind"] == "communication out":
                ends[span["rank"], span["peer"], span["channel"]][0].append(number)
            elif span["kind"] == "communication in":
                ends[span["peer"], span["rank"], span["channel"]][1].append(number)
        return [pair for left, came in ends.values() for pair in zip(left, came, strict=False)]

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

    def kept_on(self, tier: str) -> int:
        """The bytes that the fullest rank keeps between steps in another tier of memory than the device's."""
        return sum(self.fullest.get("far_resting_bytes", {}).get(tier, {}).values())

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
        return self._mean("sent_bytes")

    @property
    def between_bytes(self) -> int:
        """The sent bytes that go to another host; 0 if hosts are unknown."""
        return self._mean("between_bytes")

    def _mean(self, figure: str) -> int:
        """A figure of traffic, the mean over ranks and steps."""
        traffic = self.found["traffic"]
        total: int = sum(rank.get(figure, 0) for rank in traffic)
        return round(total / max(len(traffic) * self.steps_here, 1))

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
class PageRun:
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
    def rows(self) -> list[PageRow]:
        """The trained rows, with the number of ranks to be drawn."""
        rows = [PageRow(found, self.ranks, self.steps, self.label) for found in rows_in(self.document)]
        spans = Counter(span["rank"] for row in rows for span in row.spans)
        up_to = accumulate(spans[rank] for rank in range(self.ranks))
        drawn = max(1, sum(count <= MOST_SPANS for count in up_to))
        return [replace(row, drawn=drawn) for row in rows]

    @property
    def is_script(self) -> bool:
        """Whether it is a PyTorch script, which has no scenario."""
        return any("calls" in row.found for row in self.rows)

    @property
    def diverging(self) -> list[PageRow]:
        return [row for row in self.rows if row.found["first_divergence"]]


NEEDED = ("title", "scenario", "world", "command", "versions", "passed", "verdict", "failures", "did_not_fit")
NEEDED_OF_A_ROW = ("stage", "name", "equal", "compared_with", "first_divergence", "losses", "test", "weights_sha256",
                   "optimizer_sha256", "traffic", "traffic_holds", "volume", "memory")


def rows_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The trained rows; version 0.1 called them stages."""
    found: list[dict[str, Any]] = document.get("rows", document.get("stages", []))
    return found


def runs_of(documents: Sequence[Any], names: Sequence[str]) -> list[PageRun]:
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
    return [PageRun(document, label) for document, label in zip(documents, labels, strict=True)]
