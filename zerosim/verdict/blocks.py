"""Activations of a transformer by formula, from the operations themselves, with a published formula.

    s, b, h, a    tokens of a sequence, sequences in a micro-batch, width, heads

Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022), section 4.1, count
s b h (34 + 5 a s / h) bytes for a block of GPT-2's shape in 16 bits. This package keeps s b h (32 + 2 a s / h): nothing
for dropout, since its masks are drawn again (2 s b h, and in attention 3 a s² b with the softmax's dropped copy,
as nothing is dropped there).
"""

from dataclasses import dataclass, replace

from zerosim.models.units import Task
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import Config, configured
from zerosim.verdict.shapes import expected


@dataclass(frozen=True)
class BlockActivations:
    """The bytes of one micro-batch in 16 bits: kept by a block, by the published formula, and peaks over all blocks."""

    block_bytes: int
    """What one more block adds to the peak."""
    korthikanti_bytes: int
    peak_bytes: int
    """The peak of a whole pass."""
    recomputed_peak_bytes: int
    """The peak if every unit keeps only its input."""


def transformer(model: ModelKeys, samples: int) -> tuple[int, BlockActivations]:
    """A transformer's parameters, and the activations of a micro-batch of `samples` sequences on one rank.

    >>> gpt2 = ModelKeys(kind="transformer", layers=12, width=768, heads=12, vocabulary=50257, sequence=1024,
    ...              tied_embeddings=True)
    >>> count, kept = transformer(gpt2, samples=1)
    >>> count, kept.block_bytes == 1024 * 768 * (32 + 2 * 12 * 1024 // 768), kept.korthikanti_bytes
    (124439808, True, 89653248)
    """
    task = Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)

    def config(layers: int = model.layers, *, recompute: bool = False) -> Config:
        (row,) = Scenario(
            world=WorldKeys(1), model=replace(model, layers=layers),
            train=Train(micro_batch=samples, micro_batches=1, precision="bf16"),
            parallel=Parallel(("ddp",), recompute=recompute)).rows
        return configured(row, task)

    def peak(config: Config) -> int:
        return expected(config).peak_bytes["activations"]

    s, h, a, row = model.sequence, model.width, model.heads, config()
    return row.model.count, BlockActivations(
        peak(config(model.layers + 1)) - peak(row), s * samples * (34 * h + 5 * a * s), peak(row),
        peak(config(recompute=True)))
