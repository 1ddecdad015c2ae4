"""A row of a comparison: one stage with its variant keys, the keys that all rows share, and the claims about it."""

from dataclasses import dataclass

from zerosim.scenario.sections import ModelKeys, Parallel, Train
from zerosim.sharding import Directions


@dataclass(frozen=True)
class Claims:
    """The claims of a scenario about one row; None for no claim."""

    volume: float | None = None
    messages: int | None = None
    largest_message: int | None = None
    """The bytes of the largest message."""
    activations: int | None = None
    """The bytes of activations at the peak."""
    beyond_peak: int | None = None
    """The bytes beyond the peak that first fit needs."""
    beyond_peak_laid_out: int | None = None
    """The bytes beyond the peak that first fit needs if long-lived arrays are laid out beforehand."""
    fragmentation: bool = False
    """Whether fragmentation is measured."""
    does_not_fit: bool = False
    test_accuracy: float = 0.0
    test_loss: float = 0.0
    """The upper limit of the test loss; 0 for no claim."""
    reference: bool = True
    """The claim that it equals one process, which is then trained."""
    between_bytes: int | None = None
    """The bytes that leave hosts in a step, over all ranks."""
    kept_bytes: int | None = None
    """The bytes of model states that a rank keeps between steps."""


@dataclass(frozen=True)
class Row:
    """One line of a comparison. Rows are identified by themselves, never by their position."""

    name: str
    """The scenario's name of the row, or one made from its keys; empty: the title of its stage."""
    stage: str
    """A key of the table of stages."""
    ranks: int
    """The number of ranks with micro-batches of their own."""
    directions: Directions
    """The ranks that share each of these micro-batches."""
    ranks_per_host: int
    """The number of ranks on a host; 0: that of the real hosts."""
    short_gather_bytes: int
    """The longest vector that is short, for `parallel.all_gather = "auto"`."""
    memory_limit_mb: int
    model: ModelKeys
    train: Train
    parallel: Parallel
    """The section with the row's own keys; its `stages` names this row's alone."""
    layers: tuple[tuple[int, ...], ...]
    """The layers of each unit."""
    claims: Claims
