"""What is measured of a row, without a word of what it should be."""

from dataclasses import dataclass, field, fields
from typing import Any

from zerosim.allocation import MODEL_STATES, Array, Kind
from zerosim.instruments.lifetimes import Lifetime
from zerosim.instruments.trace import Trace
from zerosim.models.units import Unit
from zerosim.training.comparison import Evidence
from zerosim.training.config import Config


@dataclass(frozen=True)
class TrafficCounts:
    """What one rank sent and received in all steps."""

    rank: int
    sent_bytes: int
    received_bytes: int
    messages: int
    by_collective: dict[str, dict[str, int]]
    largest_message_bytes: int = 0
    inside_bytes: int = 0
    between_bytes: int = 0
    """The longest message that was sent."""


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes that one rank had between steps, and at most within one, as its ledger saw them."""

    rank: int
    owners: dict[str, dict[str, int]]
    """After the last step, by kind, and in each by the unit or purpose that they belong to."""
    at_rest: dict[str, tuple[int, int]]
    """The least and the most of each kind that was alive between two steps."""
    held_as_began: dict[str, dict[Kind, int]]
    """The most of each kind that was alive as a reduction, or an update, of a unit began."""
    peak_bytes: dict[str, int]
    """The peak of each kind, and of their total."""
    alive_bytes: int
    """The bytes of all kinds between steps: what is kept, and buffers that wait to be used again."""
    resident_bytes: int
    """What the process has in memory between steps beyond what it had before the run."""
    curve: list[tuple[int, dict[str, int]]]
    """Nanoseconds since the last step began, and bytes by kind, at each change."""
    copies_messages: bool
    """Whether the world's copies of messages are among the buffers."""
    offloaded_bytes: int = 0
    """The most there were in the file for what is offloaded."""
    far_resting_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes between steps in each tier of memory beside the device's, by kind."""
    far_peak_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """The peak of each kind there."""
    moved_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes that were carried between tiers in all steps, by what, from where and to where."""

    @property
    def resting_bytes(self) -> dict[str, int]:
        """Bytes of each model state after the last step."""
        return {kind: sum(self.owners[kind].values()) for kind in MODEL_STATES}


def figure(**default: Any) -> Any:
    """A field that the document of an outcome has under its own name."""
    return field(metadata={"figure": True}, **default)


@dataclass(frozen=True)
class Measurement:
    """All that rank 0 knows of a row when it has been trained; where it did not fit, only that.

    A new figure is a field here and its value in `training.run`; every document of an outcome then has it.
    """

    config: Config
    fits: bool = True
    compared: bool = False
    """Whether every step was compared with one process."""
    evidence: Evidence | None = None
    """The first bytes that were not that process's."""
    disagreement: str | None = figure(default=None)
    """What a rank lacks, has too much of or counts otherwise than one process, or what was collected otherwise.
    Without such a comparison, what two ranks hold that should be the same and is not."""
    holdings_sha256: str | None = None
    """Without such a comparison, the digest of all that the ranks hold after the last step."""
    losses: list[Array] = field(default_factory=list)
    weights_sha256: str = figure(default="")
    optimizer_sha256: str = figure(default="")
    test: float | None = figure(default=None)
    """How good it is on the test split, as the data set measures it; None without a test split."""
    sample: str | None = figure(default=None)
    """A line that a language model generates."""
    wire_errors: dict[str, dict[str, float | None]] = figure(default_factory=dict)
    """How far `weights` and `gradients` of the last step were off because they travelled as codes."""
    operations: list[dict[str, int]] = figure(default_factory=list)
    """On each rank, in all steps: floating-point operations of matrix products, in forward, backward, recomputation."""
    hosts: list[int] = figure(default_factory=list)
    """The number of each rank's host."""
    traffic: list[TrafficCounts] = field(default_factory=list)
    memory: list[MemoryFigures] = field(default_factory=list)
    trace: Trace | None = None
    """The trace of those steps for which one was wanted."""
    updates: int = figure(default=0)
    """Steps that were not skipped because a gradient overflowed."""
    updates_before: int = 0
    """The updates among them that were done before this run."""
    seconds: dict[str, float] = figure(default_factory=dict)
    """The seconds of this run: `train` within steps, `save` after steps, to write checkpoints."""
    weights: dict[Unit, Array] | None = None
    lifetimes: list[Lifetime] = field(default_factory=list)
    """What rank 0 allocated in the last step, where the scenario asks for it."""
    missed_faults: list[str] = field(default_factory=list)
    """The faults that had no opportunity to strike."""
    on_other_ranks: dict[int, "Measurement"] = field(default_factory=dict)
    """The measurement on each other number of ranks."""

    @property
    def updates_here(self) -> int:
        """The updates in this run's steps."""
        return self.updates - self.updates_before

    @property
    def figures(self) -> dict[str, Any]:
        """The fields that documents have as they are, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata.get("figure")}
