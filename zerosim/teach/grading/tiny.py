"""Tiny scenarios for training a learner's stage: few samples, few ranks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zerosim.data import Dataset
from zerosim.scenario import Check, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.stages import STAGES
from zerosim.teach.grading.verb_calls import LearnersStep
from zerosim.words import plural

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Tiny:
    """The numbers of ranks, hidden layers and steps; `train` has further keys of [train] and their values."""

    ranks: int
    hidden: tuple[int, ...]
    steps: int
    part_by_part: bool = False
    """Whether each micro-batch is a separate part, which is reduced by itself."""
    train: tuple[tuple[str, Any], ...] = ()
    drawn: int = 0
    """The seed of the samples."""

    def __str__(self) -> str:
        layers = len(self.hidden) + 1
        parts = ", in 2 parts" * self.part_by_part
        keys = "".join(f", {key} = {value}" for key, value in self.train)
        return f"on {plural(self.ranks, 'rank')}, {plural(layers, 'layer')}, {plural(self.steps, 'step')}{parts}{keys}"

    def scenario(self, stage: str, variant: Mapping[str, Any]) -> Scenario:
        """Two micro-batches of two samples per rank, trained by `stage`; `variant` has keys of [parallel]."""
        accumulation = {"accumulation": "micro_batch" if self.part_by_part else "layered"}
        return Scenario(
            world=WorldKeys(self.ranks),
            model=ModelKeys(hidden=self.hidden, activation="tanh"),
            train=Train(micro_batch=2, micro_batches=2 * self.ranks, steps=self.steps, learning_rate=LEARNING_RATE,
                        **dict(self.train)),
            parallel=Parallel((stage,), **accumulation | dict(variant)),
            check=Check(reference=True),
        )


EVEN = (
    Tiny(1, (), 1), Tiny(2, (), 1), Tiny(2, (), 2), Tiny(2, (3,), 2), Tiny(2, (3,), 2, part_by_part=True),
    Tiny(4, (7, 3), 3),
)
"""Layers that the ranks divide, the smallest first."""
ODD = (Tiny(3, (), 1), Tiny(3, (5, 4), 3), Tiny(4, (5, 4), 2))
"""Layers that the ranks do not divide."""
CLIPPED = (("clip_norm", 0.05),)
PRECISE = (
    Tiny(2, (3,), 2, train=CLIPPED), Tiny(2, (3,), 2, train=(("precision", "bf16"),)),
    Tiny(3, (5,), 3, train=(("precision", "fp16"), *CLIPPED)), Tiny(2, (), 2, train=(("precision", "fp64"),)),
)
"""Trainings with clipped gradients, and in other precisions."""
SIZES = (*EVEN, *ODD, *PRECISE)


@contextmanager
def in_place_of(stage: str, step: LearnersStep) -> Iterator[None]:
    """Replace the step of `stage` in the table of stages, for the duration of the block."""
    honest = STAGES[stage]
    STAGES[stage] = replace(honest, step=step)
    try:
        yield
    finally:
        STAGES[stage] = honest


def samples(seed: int) -> Dataset:
    """A few random samples of two classes."""
    random = np.random.default_rng(seed)
    return Dataset(random.standard_normal((24, 3)).astype(np.float32), random.integers(0, 2, 24), None, None, 2)
