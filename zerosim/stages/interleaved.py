"""Interleaved 1F1B: each of p ranks has v model chunks, and p micro-batches run through a chunk before the next one.

    1. warm-up: two forwards for each rank after this one, and p for each chunk but the last
    2. steady: one forward, then one backward
    3. cool-down: the remaining backwards; with the last micro-batch of a chunk, reduce its gradients
    4. update weights, as the stage of the data direction does

A slot has 1/v of the layers, so the bubble shrinks by v: (p − 1)/(v m + p − 1). Each cut is passed as often as before,
and there are v p − 1 of them instead of p − 1. The number of micro-batches must be a multiple of p.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
section 2.2.2.
"""

from zerosim.autograd.tape import Total
from zerosim.stages.pipeline import Pipeline, run_backward, run_forward
from zerosim.stages.replica import Batch


def step(pipeline: Pipeline, batch: Batch) -> Total:
    """One step: updates the weights and returns this rank's part of the loss."""
    parts = pipeline.begin(batch)
    size, chunks = pipeline.neighbours.size, len(pipeline.chunks)
    rounds = [parts[first : first + size] for first in range(0, len(parts), size)]
    forwards = [(part, chunk) for some in rounds for chunk in range(chunks) for part in some]
    backwards = [(part, chunk) for some in rounds for chunk in reversed(range(chunks)) for part in some]
    ahead = min(2 * pipeline.after + (chunks - 1) * size, len(forwards))

    for part, chunk in forwards[:ahead]:                                  # 1
        run_forward(pipeline, part, chunk)

    for later, earlier in zip(forwards[ahead:], backwards, strict=False):  # 2
        run_forward(pipeline, *later)
        run_backward(pipeline, *earlier)

    for part, chunk in backwards[len(backwards) - ahead :]:               # 3
        run_backward(pipeline, part, chunk)

    return pipeline.update()                                              # 4
