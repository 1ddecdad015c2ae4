"""GPipe: all micro-batches forward, then all backward.

    1. for each micro-batch: receive its activation, run forward, send the output on
    2. for each micro-batch: receive the gradient of the output, run backward, send that of the input back;
       with the last one, reduce gradients over the data ranks
    3. update weights, as the stage of the data direction does

Rank i of p waits i forwards at the beginning of 1 and p − 1 − i at its end, and as long in 2: of m + p − 1 slots each
way, p − 1 are a bubble. Every rank holds the activations of all m micro-batches at the end of 1.

Source: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism" (2019). There
backward runs from the last micro-batch to the first; here as in the other schedules, so that all have the same bits.
"""

from zerosim.autograd.tape import Total
from zerosim.stages.pipeline import Pipeline, run_backward, run_forward
from zerosim.stages.replica import Batch


def step(pipeline: Pipeline, batch: Batch) -> Total:
    """One step: updates the weights and returns this rank's part of the loss."""
    parts = pipeline.begin(batch)

    for part in parts:                                                    # 1
        run_forward(pipeline, part)

    for part in parts:                                                    # 2
        run_backward(pipeline, part)

    return pipeline.update()                                              # 3
