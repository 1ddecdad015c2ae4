"""ZB-H1: backward is split, and the gradients of weights wait until a rank would idle.

    F   forward                    the output of a rank's layers, which the next rank needs
    B   backward of the input      ∂L/∂input, which the rank before needs
    W   backward of the weights    ∂L/∂weights, which only the update needs

    1. warm-up: one F for each rank after this one, or for each micro-batch if there are fewer
    2. steady: one F while there are any, one B, and on rank i one W, of the micro-batch i before that of B
    3. cool-down: the remaining W; with the last micro-batch, reduce gradients over the data ranks
    4. update weights, as the stage of the data direction does

The result of B is sent before any W, so a rank waits (p − 1)(F + B − W), and not (p − 1)(F + B + W) as in 1F1B. A rank
has at most p micro-batches between F and W. On rank i, p − i of them are before B and keep all activations, as in 1F1B;
the others keep only inputs and ∂L/∂output of operations with weights.

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
        if ahead + number < len(parts):
            run_forward(pipeline, parts[ahead + number])
        run_backward_input(pipeline, part)
        if number >= behind:
            pipeline.backward_weights(parts[number - behind])

    for part in parts[len(parts) - behind :]:                             # 3
        pipeline.backward_weights(part)

    return pipeline.update()                                              # 4
