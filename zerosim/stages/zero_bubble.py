"""ZB-H1: backward is split, and the gradients of weights wait until a rank would idle.

    F   forward                    the output of a rank's layers, which the next rank needs
    B   backward of the input      ∂L/∂input, which the rank before needs
    W   backward of the weights    ∂L/∂weights, which nobody needs before the update

    1. warm-up: F once for each rank after this one, or for each micro-batch if there are fewer
    2. for each micro-batch: F of a later one while there are any, its B, and W of an earlier one: rank i is i behind
    3. the remaining W; with the last micro-batch, reduce gradients over the data ranks
    4. update weights, as the stage of the data direction does

A B is sent as soon as it is computed, so ranks wait (p − 1)(F + B − W) in 1 and 2, where 1F1B waits (p − 1)(F + B + W).
Every rank has at most p micro-batches between F and W. Rank i has p − i of them before B, as in 1F1B; of the others it
keeps inputs and ∂L/∂output of operations with weights.

Source: Qi et al., "Zero bubble pipeline parallelism" (2023), section 2.1.
"""

from zerosim.autograd.tape import Total
from zerosim.stages.pipeline import Pipeline, run_backward_input, run_forward
from zerosim.stages.replica import Batch


def step(pipeline: Pipeline, batch: Batch) -> Total:
    """One step: updates the weights and returns this rank's part of the loss."""
    parts = pipeline.begin(batch)
    ahead, behind = min(pipeline.after, len(parts)), min(pipeline.neighbours.place, len(parts))

    for part in parts[:ahead]:                                            # 1
        run_forward(pipeline, part)

    for number, part in enumerate(parts):                                 # 2
        for later in parts[ahead + number :][:1]:
            run_forward(pipeline, later)
        run_backward_input(pipeline, part)
        if number >= behind:
            pipeline.backward_weights(parts[number - behind])

    for part in parts[len(parts) - behind :]:                             # 3
        pipeline.backward_weights(part)

    return pipeline.update()                                              # 4
