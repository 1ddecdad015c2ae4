"""The measurements of a row, without expected values. What is due has the same shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerosim.core.allocation import Array, Kind
from zerosim.models.units import Unit
from zerosim.observe.ledger import Lifetime
from zerosim.observe.trace import Trace
from zerosim.observe.traffic import Count
from zerosim.stages.schedules import Slot
from zerosim.training.comparison import Evidence
from zerosim.training.config import Config


def without_zeros(counts: Mapping[Kind, int]) -> dict[str, int]:
    return {str(kind): count for kind, count in counts.items() if count}


@dataclass(frozen=True, kw_only=True)
class RankBytes:
    """The memory of one rank between steps and at the peak within a step, as documents have it."""

    rank: int
    resting_bytes: dict[str, int]
    """the rank; its bytes kept between steps: `parameters`, `gradients`, `optimizer`"""
    peak_bytes: dict[str, int]
    """peak of the live bytes of each kind, of `activations`, of `buffers`, and in `total`"""
    alive_bytes: int = 0
    """live bytes between steps, buffers for reuse included"""
    resident_bytes: int = 0
    """growth of the process's resident memory since before the run"""
    host_resting_bytes: dict[str, int] = field(default_factory=dict)
    host_peak_bytes: dict[str, int] = field(default_factory=dict)
    """bytes of each kind on the host: between steps, and at the peak"""
    moved_bytes: dict[str, int] = field(default_factory=dict)
    """bytes copied in all steps, such as `gradients, device to host`"""
    padding_bytes: int = 0
    """bytes of padding that are due in `resting_bytes`"""
    least_bytes: dict[str, int] = field(default_factory=dict)
    """lower bound of the peak, for the kinds whose peak is known to the byte"""
    between: dict[str, tuple[int, int]] = field(default_factory=dict)
    """floor and ceiling of peaks, of what is sent to tensor ranks and moved to the host, from the model's sizes and the
    papers' formulas, without the stages' code"""


@dataclass(frozen=True, kw_only=True)
class RankMemory(RankBytes):
    """The memory of one rank: measured by its ledger, or due.

    Where due, `resting_bytes`, those on the host and `moved_bytes` are exact, and all others the most that is allowed.
    """

    owners: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes after the last step, by kind, and within a kind by unit or purpose."""
    at_rest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The least and greatest live bytes of each kind between two steps."""
    held_at_beginning: dict[str, dict[Kind, int]] = field(default_factory=dict)
    """The greatest live bytes of each kind at the beginning of a unit's reduction or update."""
    process_bytes: list[int] = field(default_factory=list)
    """The live bytes of the process after each step, of whatever code, if the scenario requests them."""
    curve: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """Nanoseconds since the beginning of the last step, and bytes by kind, at each change."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a row that documents have as they were measured."""

    disagreement: str | None = None
    """missing or extra state, a differing counter, or a differing digest of what rank 0 collects; else `null`"""
    layout: str = ""
    """directions, stage and its ranks, such as `tp2 × Stage I on 2`; empty if no ranks share a micro-batch"""
    weights_sha256: str = ""
    optimizer_sha256: str = ""
    """SHA-256 of the full, unpadded weights in C order, little-endian; of the optimizer state, in each layer slot by
    slot"""
    test: float | None = None
    """the `test_measure` on the test split, a loss in nats per token; `null` without one"""
    sample: str | None = None
    """of a language model the beginning of a test sequence and, after `|`, its continuation; else `null`"""
    wire_errors: dict[str, dict[str, float | None] | None] = field(default_factory=dict)
    """quantisation error of `weights` and `gradients` in the last step: `relative`, Euclidean; median `ulps`; `bits`,
    −log₂ of the relative error. `{}` without a reference"""
    operations: list[dict[str, int]] = field(default_factory=list)
    """operations of matrix products of each rank in all steps: `forward`, `backward`, `recomputation`"""
    passes: list[list[list[Slot]]] = field(default_factory=list)
    """for each pipeline, the passes of each of its ranks in the last step: `F`, `B` or `W`, micro-batch, model chunk;
    `[]` without one"""
    hosts: list[int] = field(default_factory=list)
    """the host number of each rank"""
    updates: int = 0
    """the number of steps with an update: those without an overflow"""
    seconds: dict[str, float] = field(default_factory=dict)
    """rank 0's time: `train` in the steps, `save` between them for checkpoints"""


@dataclass(frozen=True)
class Measurement(Figures):
    """All measurements of a row, on rank 0; if the row did not fit, only that fact."""

    config: Config
    fits: bool = True
    compared: bool = False
    """Whether every step was compared with one process."""
    evidence: Evidence | None = None
    """The first bytes that differ from one process's."""
    losses: list[Array] = field(default_factory=list)
    traffic: list[Count] = field(default_factory=list)
    """The traffic of each rank in all steps."""
    memory: list[RankMemory] = field(default_factory=list)
    trace: Trace | None = None
    """The trace of the requested steps."""
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
        return self.updates - (self.config.resumed.about["updates"] if self.config.resumed else 0)
