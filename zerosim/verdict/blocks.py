"""Activations of a transformer by formula, from the operations themselves, with a published formula.

    s, b, h, a    tokens of a sequence, sequences in a micro-batch, width, heads

Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022), section 4.1, count
s b h (34 + 5 a s / h) bytes for a block of GPT-2's shape in 16 bits. This package keeps s b h (32 + 2 a s / h): nothing
for dropout, since its masks are drawn again (2 s b h, and in attention 3 a s² b with the softmax's dropped copy,
as nothing is dropped there).
"""

from dataclasses import dataclass

import numpy as np

from zerosim.autograd.operation import Shape
from zerosim.autograd.player import Player, Precise
from zerosim.core.extents import extent, owner
from zerosim.models.units import Segment, Task, Unit
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Train, Variant, WorldKeys
from zerosim.training.config import configured
from zerosim.verdict.shapes import expected


@dataclass(frozen=True)
class BlockActivations:
    """The bytes of one micro-batch in 16 bits: kept by a block, by the published formula, and peaks over all blocks."""

    block_bytes: int
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
    scenario = Scenario(
        world=WorldKeys(1),
        model=model,
        train=Train(micro_batch=samples, micro_batches=1, precision="bf16"),
        variant=(Variant(stage="ddp"), Variant(stage="ddp", recompute=True)),
    )
    task = Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)
    config, again = (configured(row, task) for row in scenario.rows)
    unit = next(unit for unit in config.model.units if unit.numbers == (1,))
    (segment,) = unit.segments
    s, h, a = model.sequence, model.width, model.heads
    return config.model.count, BlockActivations(
        kept_bytes(unit, segment, (samples, s, h)),
        s * samples * (34 * h + 5 * a * s),
        expected(config).peak_bytes["activations"],
        expected(again).peak_bytes["activations"],
    )


def kept_bytes(unit: Unit, segment: Segment, shape: Shape) -> int:
    """The bytes that a segment keeps in 16 bits for an input of this shape, the input too; views count once."""
    plan = segment.plan(shape, of_parameters=True, of_input=True)
    dtype = np.dtype(np.float16)
    parameters = unit.parts(extent(unit.count, dtype, kind="parameters", owner=unit.name))
    player = Player(plan, parameters, Precise(extent, unit.name), lambda _: None)
    _, kept = player.forward(extent(shape, dtype, kind="activations", owner=unit.name))
    blocks = [owner(array) for array in (*kept.values.values(), *kept.saved.values())]
    return sum(block.nbytes for block in {id(block): block for block in blocks}.values())
