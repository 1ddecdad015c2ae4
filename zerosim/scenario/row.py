"""A row of a comparison: one stage with its variant keys, what all rows share, and what is claimed of it."""

from dataclasses import dataclass

from zerosim.scenario.sections import ModelKeys, Parallel, Train


@dataclass(frozen=True)
class Claims:
    """What a scenario says will be seen of one row; None where it says nothing."""

    volume: float | None = None
    messages: int | None = None
    largest_message: int | None = None
    """In bytes."""
    activations: int | None = None
    """Bytes at the peak."""
    beyond_peak: int | None = None
    """Bytes that addresses by first fit take beyond the peak."""
    beyond_peak_laid_out: int | None = None
    """And where what is long-lived is laid out beforehand."""
    fragmentation: bool = False
    """Whether this is to be found out."""
    does_not_fit: bool = False
    test_accuracy: float = 0.0
    test_loss: float = 0.0
    """What it must be below; 0 where nothing is said."""
    reference: bool = True
    """The claim that it computes what one process does, which is then trained."""
    between_bytes: int | None = None
    """Bytes that leave hosts in a step, of all ranks."""
    kept_bytes: int | None = None
    """Bytes of model states that a rank keeps between steps."""


@dataclass(frozen=True)
class Row:
    """One line of a comparison. Rows are told apart by themselves, never by where they stand."""

    name: str
    """The name that the scenario gives it, or one made of what the row sets; empty: the title of its stage."""
    stage: str
    """A key of the table of stages."""
    ranks: int
    ranks_per_host: int
    """0: those that a host has."""
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
