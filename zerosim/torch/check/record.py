"""What a check knows of a rank: plain data, written by `recorder.py` and read by `judge.py`. PyTorch is not needed."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Sketched:
    """A rank's part of one tensor: the rows of its sketch, its place, and the unit roundoff of its dtype."""

    rows: Array
    key: Any
    roundoff: float
    smallest: float
    partial: bool = False
    """Whether the sum over the ranks of tensor parallelism is still due."""


@dataclass
class Term:
    """The gradient of one backward, before any reduction."""

    part: Sketched
    backward: int
    line: str
    version: int
    dropped: bool = False
    """Whether it was cleared before an update."""


@dataclass
class Clip:
    """A call that clips gradients; `norms` are those of the parts that this rank had, by name and place."""

    line: str
    most: float
    order: float
    norms: dict[tuple[str, Any], float]
    unscaled: bool


@dataclass
class Batch:
    """The tensors that a model was given, and those that it returned, as digests."""

    given: int
    returned: int
    line: str
    epoch: dict[str, Any] = field(default_factory=dict)
    """The settings of the DistributedSampler that has begun an epoch with this batch."""


@dataclass
class Step:
    """Everything between two updates of one optimizer."""

    optimizer: int
    number: int
    line: str = ""
    seen: bool = False
    skipped: bool = False
    settings: list[dict[str, Any]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    terms: dict[str, list[Term]] = field(default_factory=dict)
    before: dict[str, Sketched] = field(default_factory=dict)
    """The gradients before they were clipped."""
    found: dict[str, Sketched] = field(default_factory=dict)
    """The gradients as the optimizer sees them."""
    clips: list[Clip] = field(default_factory=list)
    weights: dict[str, tuple[Any, int, int]] = field(default_factory=dict)
    """For each parameter its place, the digest of its bits, and the digest in the dtype of the forward."""
    used: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The digests of gathered weights as the forward has used them, with its line."""
    trains: dict[str, bool] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    """The parameters of the optimizer."""
    scale: float = 1.0
    """GradScaler's factor in the terms."""
    unscaled: bool = False
    """Whether GradScaler has taken it out again."""
    changed: bool = False
    """Whether the script has changed gradients between the last backward and the update."""
    reasons: list[str] = field(default_factory=list)
    """Why its gradients are not judged."""


@dataclass
class Record:
    """One rank's record."""

    rank: int
    size: int
    trainer: str = ""
    group: list[int] = field(default_factory=list)
    """The ranks over which the trainer reduces; empty if there is none."""
    row: list[int] = field(default_factory=list)
    """The ranks of tensor parallelism that hold parts of the same layers."""
    reduced: tuple[float, float] = (0.0, 0.0)
    """The unit roundoff and the smallest number of the dtype in which a trainer reduces."""
    divisor: float = 0.0
    """FSDP2's divide factor, if the script has set one."""
    wrapped: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """For each sharded parameter its digest before it was sharded, and whether the shard was kept until training."""
    wrapping_line: str = ""
    buffers: dict[str, int] = field(default_factory=dict)
    communicates: str = ""
    """How the script's forwards communicate."""
    obstacles: list[str] = field(default_factory=list)
    """Why no step of the script is judged."""
    unknown: list[str] = field(default_factory=list)
    """Parameters that get gradients and belong to no module that was called."""
    unheld: list[str] = field(default_factory=list)
    """Parameters that get gradients and that no optimizer has."""
    steps: list[Step] = field(default_factory=list)
