"""The measurements of a row, without expected values, and the observers that make them on one rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from zerosim.core.allocation import Allocator, Array, Kind, allocate, allocate_on_host
from zerosim.core.comm import Communicator
from zerosim.models.units import Unit
from zerosim.observe.faults import Faults
from zerosim.observe.location import Locator
from zerosim.observe.memory import HeldAtBeginnings, Ledger, Lifetime, Lifetimes, Moves
from zerosim.observe.observed import Observed, ObservedAllocator, carrying
from zerosim.observe.trace import Trace, Tracer
from zerosim.observe.traffic import Traffic
from zerosim.stages.schedules import Slot
from zerosim.stages.storage import HostMemory
from zerosim.training.comparison import Evidence
from zerosim.training.config import Config


@dataclass(frozen=True)
class RankTraffic:
    """The traffic of one rank in all steps: measured, or due."""

    rank: int
    sent_bytes: int
    received_bytes: int
    messages: int
    by_collective: dict[str, dict[str, int]]
    largest_message_bytes: int = 0
    inside_bytes: int = 0
    between_bytes: int = 0
    """Bytes sent to other hosts."""


def without_zeros(counts: Mapping[Kind, int]) -> dict[str, int]:
    return {str(kind): count for kind, count in counts.items() if count}


def traffic_counts(rank: int, traffic: Traffic) -> RankTraffic:
    """The traffic figures of one rank."""
    return RankTraffic(
        rank=rank,
        sent_bytes=traffic.sent_bytes,
        received_bytes=traffic.received_bytes,
        messages=traffic.messages,
        by_collective={each: dict(vars(count)) for each, count in traffic.by_collective.items()},
        largest_message_bytes=traffic.largest_bytes,
        inside_bytes=traffic.sent_bytes - traffic.between_bytes,
        between_bytes=traffic.between_bytes,
    )


def by_pipeline(passes: list[list[Slot]], ranks: int) -> list[list[list[Slot]]]:
    """The passes of the ranks of each pipeline; nothing without one."""
    stride = len(passes) // ranks
    return [passes[first::stride] for first in range(stride)] if ranks > 1 else []


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """The memory of one rank between steps and at the peak within a step: measured by its ledger, or due.

    Where due, `resting_bytes`, those on the host and `moved_bytes` are exact, and all others the most that is allowed.
    """

    rank: int
    resting_bytes: dict[str, int]
    """Bytes of each model state after the last step."""
    peak_bytes: dict[str, int]
    """The peak of each kind and of the total."""
    least_bytes: dict[str, int] = field(default_factory=dict)
    """Where due, the least allowed peak, for kinds whose peak is known exactly."""
    padding_bytes: int = 0
    """Where due, the padding among the bytes between steps."""
    host_resting_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes between steps on the host, by kind."""
    host_peak_bytes: dict[str, int] = field(default_factory=dict)
    """The peak of each kind on the host."""
    moved_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes copied between device and host in all steps, by kind and direction."""
    owners: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes after the last step, by kind, and within a kind by unit or purpose."""
    at_rest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The least and greatest live bytes of each kind between two steps."""
    held_as_began: dict[str, dict[Kind, int]] = field(default_factory=dict)
    """The greatest live bytes of each kind at the beginning of a unit's reduction or update."""
    alive_bytes: int = 0
    """The live bytes of all kinds between steps, including buffers for reuse."""
    resident_bytes: int = 0
    """The resident memory of the process between steps, minus that before the run."""
    curve: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """Nanoseconds since the beginning of the last step, and bytes by kind, at each change."""
    copies_messages: bool = False
    """Whether buffers include the world's copies of messages."""


def figure(heading: str = "", **default: Any) -> Any:
    """A field that every document of an outcome copies; with a heading, terminal, page and `rows()` have it too."""
    return field(metadata={"figure": True, "heading": heading}, **default)


@dataclass(frozen=True)
class Measurement:
    """All measurements of a row, on rank 0; if the row did not fit, only that fact.

    A new figure needs a field here and its value in `training.program`; every document of an outcome then has it. With
    a heading it is shown where some row has it.
    """

    config: Config
    fits: bool = True
    compared: bool = False
    """Whether every step was compared with one process."""
    evidence: Evidence | None = None
    """The first bytes that differ from one process's."""
    disagreement: str | None = figure(default=None)
    """A missing or extra state, a differing counter, or a differing digest of the collected state. Without a reference,
    the first state in which two ranks differ that should be equal.
    """
    layout: str = figure(default="")
    """The directions, the stage and its data ranks in a word; empty if no ranks share a micro-batch."""
    holdings_sha256: str | None = None
    """Without a reference, the digest of the state of all ranks after the last step."""
    losses: list[Array] = field(default_factory=list)
    weights_sha256: str = figure(default="")
    optimizer_sha256: str = figure(default="")
    test: float | None = figure(default=None)
    """The measure of the test split; None without a test split."""
    sample: str | None = figure("says", default=None)
    """A line generated by a language model."""
    wire_errors: dict[str, dict[str, float | None]] = figure(default_factory=dict)
    """The quantisation errors of `weights` and `gradients` in the last step."""
    operations: list[dict[str, int]] = figure(default_factory=list)
    """Floating-point operations of matrix products in all steps, by rank: forward, backward, recomputation."""
    passes: list[list[list[Slot]]] = figure(default_factory=list)
    """The forward and backward passes of each rank of each pipeline in the last step, in order; empty without one."""
    hosts: list[int] = figure(default_factory=list)
    """The number of each rank's host."""
    traffic: list[RankTraffic] = field(default_factory=list)
    memory: list[RankMemory] = field(default_factory=list)
    trace: Trace | None = None
    """The trace of the requested steps."""
    updates: int = figure(default=0)
    """Steps that were not skipped because of an overflow in a gradient."""
    updates_before: int = 0
    """The number of these updates before this run."""
    seconds: dict[str, float] = figure(default_factory=dict)
    """The seconds of this run: `train` within steps, `save` for checkpoints."""
    weights: dict[Unit, Array] | None = None
    lifetimes: list[Lifetime] = field(default_factory=list)
    """Rank 0's allocations in the last step, if the scenario requests them."""
    missed_faults: list[str] = field(default_factory=list)
    """The faults that had no opportunity to occur."""
    on_other_ranks: dict[int, "Measurement"] = field(default_factory=dict)
    """The measurement on each other number of ranks."""

    @property
    def updates_here(self) -> int:
        """The updates in this run."""
        return self.updates - self.updates_before

    @property
    def figures(self) -> dict[str, Any]:
        """The fields that documents copy under the same names."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.metadata.get("figure")}


BEGINNINGS = ("reduce_scatter", "update")
"""Operations at whose beginning a step should have freed all arrays that it no longer needs."""


class Observers:
    """The instruments of row `row` on `rank`, with that rank's faults; `hosts` has each rank's host.

    Every row has new ones. `moves` are the copies to the host and back; `lifetimes` are None unless the arrays of the
    last step are recorded, `tracer` is None unless a step is traced.
    """

    def __init__(
        self, row: str, rank: int, hosts: Sequence[int], faults: Faults, *, lifetimes: bool, traced: bool
    ) -> None:
        self.locator, self.faults, self.moves = Locator(row), faults, Moves()
        self.traffic = Traffic(away=lambda to: hosts[to] != hosts[rank])
        self.ledger, self.host = Ledger(), Ledger()
        self.held = HeldAtBeginnings(self.ledger, BEGINNINGS)
        self.lifetimes = Lifetimes() if lifetimes else None
        self.tracer = Tracer(rank) if traced else None
        self._traced = [self.tracer] if self.tracer else []

    def observed(self, comm: Communicator) -> Observed:
        """A channel whose traffic the instruments observe."""
        injected = [self.faults] if self.faults.faults else []
        return Observed(comm, self.locator, *injected, self.traffic, self.held, *self._traced)

    def host_memory(self) -> HostMemory:
        """The host's memory, with instruments."""
        return HostMemory(ObservedAllocator(allocate_on_host, self.host), carrying(self.moves, *self._traced))

    def allocator(self) -> Allocator:
        """The allocator of the device's memory, with instruments."""
        return ObservedAllocator(allocate, self.ledger, *([self.lifetimes] if self.lifetimes else []))
