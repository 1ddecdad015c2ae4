"""The model chunks of the ranks of a pipeline, and the arrays that pass between them."""

from dataclasses import replace
from typing import Any

import numpy as np

from zerosim.autograd.tape import Policy, Tape
from zerosim.core.extents import Extent, extent
from zerosim.models.units import Model
from zerosim.stages.pipeline import Chunk, pieces


def chunks_of(
    model: Model, count: int, layers: tuple[int, ...], micro_batch: int, dtype: np.dtype[Any], policy: Policy
) -> list[Chunk]:
    """The pieces of a model in the order of its layers, for micro-batches of so many samples and weights of `dtype`.

    >>> from zerosim.autograd.tape import as_written
    >>> from zerosim.models.mlp import mlp
    >>> model = mlp(4, [8, 6], 2, "relu", "cross_entropy")
    >>> [each.output for each in chunks_of(model, 2, (1, 2), 16, np.dtype(np.float32), as_written)]
    [Extent((16, 8), float32), Extent((16, 2), float32)]
    """
    task, units = model.task, [
        unit if len(unit.segments) == 1 else replace(unit, end=unit.segments.index(segment))
        for unit, segment in model.segments]
    shape, tape = (micro_batch, task.inputs), Tape(
        extent, lowest=len(model.layers), policy=policy)
    ends: list[Any] = [np.zeros(shape, np.int64) if task.tokens else Extent(shape, dtype)]
    outputs: dict[Any, Any] = {}      # equal segments have equal outputs for equal inputs
    for unit in units:
        weights: Any = Extent(unit.count, dtype)
        alike = unit.segments[0].computation, ends[-1].shape, ends[-1].dtype
        outputs[alike] = outputs.get(alike) or tape.forward(unit, weights, ends[-1:])
        ends += outputs[alike]
    cuts = pieces(tuple(unit.numbers for unit in model.units), count, layers)
    return [Chunk([units[number] for number in cut], ends[cut.start], ends[cut.stop], cut.start == 0, cut is cuts[-1])
            for cut in cuts]
