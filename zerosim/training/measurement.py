"""What is measured of a row, without a word of what it should be."""

from dataclasses import dataclass, field

from zerosim.allocation import Array, Kind
from zerosim.instruments.takings import Taking
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
    """Of those sent."""


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes that one rank had between steps, and at most within one, as its ledger saw them."""

    rank: int
    owners: dict[str, dict[str, int]]
    """After the last step, by kind, and in each by the unit or purpose that they belong to."""
    at_rest: dict[str, tuple[int, int]]
    """Of each kind the least and the most that was alive between two steps."""
    held_as_began: dict[str, dict[Kind, int]]
    """The most of each kind that was alive as a reduction, or an update, of a unit began."""
    peak_bytes: dict[str, int]
    """By kind, and in total."""
    alive_bytes: int
    """Of all kinds, between steps: what is kept, and buffers that wait to be used again."""
    resident_bytes: int
    """What the process has in memory between steps beyond what it had before the run."""
    curve: list[tuple[int, dict[str, int]]]
    """Nanoseconds since the last step began, and bytes by kind, at each change."""
    copies_messages: bool
    """Whether the world's copies of messages are among the buffers."""
    offloaded_bytes: int = 0
    """The most there were in the file for what is offloaded."""


@dataclass(frozen=True)
class Measurement:
    """All that rank 0 knows of a row when it has been trained; where it did not fit, only that."""

    config: Config
    fits: bool = True
    compared: bool = False
    """Whether every step was compared with one process."""
    evidence: Evidence | None = None
    """The first bytes that were not that process's."""
    disagreement: str | None = None
    """What a rank lacks, has too much of or counts otherwise than one process, or what came home otherwise; without
    such a comparison, what two ranks hold that should be the same and is not."""
    holdings_sha256: str | None = None
    """Without such a comparison: of all that the ranks hold after the last step."""
    losses: list[Array] = field(default_factory=list)
    weights_sha256: str = ""
    optimizer_sha256: str = ""
    test: float | None = None
    """How good it is on the test split, as the data set measures it; None without a test split."""
    sample: str | None = None
    """A line of what a language model says."""
    operations: list[dict[str, int]] = field(default_factory=list)
    """On each rank, in all steps: floating-point operations of matrix products, in forward, backward, recomputation."""
    traffic: list[TrafficCounts] = field(default_factory=list)
    memory: list[MemoryFigures] = field(default_factory=list)
    trace: Trace | None = None
    """Of the steps of which one was wanted."""
    updates: int = 0
    """Steps that were not skipped because a gradient overflowed."""
    updates_before: int = 0
    """Those of them that were done before this run."""
    seconds: float = 0.0
    """Within the steps of this run."""
    seconds_saving: float = 0.0
    """After steps, to put the state away."""
    weights: dict[Unit, Array] | None = None
    takings: list[Taking] = field(default_factory=list)
    """Of rank 0 in the last step, where the scenario asks for them."""
    missed_faults: list[str] = field(default_factory=list)
    """Of the faults that were to strike, those that had no moment to."""
    on_other_ranks: dict[int, "Measurement"] = field(default_factory=dict)
    """By the number of ranks."""

    @property
    def updates_here(self) -> int:
        """Those in this run's steps."""
        return self.updates - self.updates_before
