"""Shipped scenarios with few steps, and the slowest with a smaller model."""

from pathlib import Path

from zerosim.scenario import Scenario, load

SCENARIOS = Path(__file__).parents[1] / "scenarios"
FEW_STEPS = ("train.steps=2", "train.warmup_steps=0", "check.test_accuracy=0", "check.test_loss=0")
SMALLER = {
    "any_world_same_bits.toml": ("world.ranks=4", "train.micro_batches=8", "check.same_bits_on=[1, 2]"),
    "defragmentation.toml": (
        "train.steps=1", "model.layers=3", "check.beyond_peak=[9024, 15104, 2432, 40768]",
        "check.beyond_peak_laid_out=[4800, 17984, 11840, 134720]"),
    "fits_only_sharded.toml": ("model.hidden=[8]", "check.does_not_fit=[]"),
    "offload.toml": ("train.steps=1", "model.layers=3", "check.activations=[514080, 254880, 239520, 239520]"),
    "recompute.toml": ("train.steps=1", "model.layers=2", "check.activations=[901632, 590336, 819712]"),
    "shakespeare.toml": ("model.layers=1", "model.width=16", "model.sequence=16"),
}
"""What makes these smaller, and the figures that they then claim."""


def small(name: str, *more: str) -> list[str]:
    """The overrides of a shipped scenario, those of a test last."""
    return [*FEW_STEPS, *SMALLER.get(name, ()), *more]


def small_if_it_trains(name: str, *more: str) -> list[str]:
    """The same; none where it calls collectives alone, and has no steps."""
    return small(name, *more) if isinstance(load(SCENARIOS / name), Scenario) else []
