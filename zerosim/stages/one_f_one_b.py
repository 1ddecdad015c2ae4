"""1F1B: as soon as a rank has its first gradient, it runs one micro-batch forward and one backward in turn.

    1. warm-up: one forward for each rank after this one, or for each micro-batch if there are fewer
    2. steady: one forward, then one backward
    3. cool-down: the remaining backwards; with the last micro-batch, reduce gradients over the data ranks
    4. update weights, as the stage of the data direction does

The bubble is that of GPipe, (p − 1)/(m + p − 1). Rank i holds the activations of at most p − i micro-batches.

Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training" (2019); with a flush at the end
of each step, so that all micro-batches use the same weights: Narayanan et al., "Efficient large-scale language model
training on GPU clusters using Megatron-LM" (2021), section 2.2.1.
"""

from zerosim.autograd.tape import Total
from zerosim.stages.pipeline import Pipeline, run_backward, run_forward
from zerosim.stages.replica import Batch


def step(pipeline: Pipeline, batch: Batch) -> Total:
    """One step: updates the weights and returns this rank's part of the loss."""
    parts = pipeline.begin(batch)
    ahead = min(pipeline.after, len(parts))

    for part in parts[:ahead]:                                            # 1
        run_forward(pipeline, part)

    for part, earlier in zip(parts[ahead:], parts, strict=False):         # 2
        run_forward(pipeline, part)
        run_backward(pipeline, earlier)

    for part in parts[len(parts) - ahead :]:                              # 3
        run_backward(pipeline, part)

    return pipeline.update()                                              # 4
