"""Exercise 7: 1F1B, a schedule of a pipeline. Fill in the function, then run `zerosim grade 7_one_f_one_b.py`.

    1. warm-up: one forward for each rank after this one, or for each micro-batch if there are fewer
    2. steady: one forward, then one backward
    3. cool-down: the remaining backwards, in the order of the micro-batches
    4. update

A rank has a piece of the model's layers. Its verbs, for a micro-batch `part`:

    activation = pipeline.receive_activation(part)     # from the rank before; on the first rank, the input
    activation = pipeline.forward(part, activation)
    pipeline.send_activation(part, activation)         # to the rank after; on the last, nothing is sent
    upstream = pipeline.receive_gradient(part)         # from the rank after; on the last rank, that of the loss
    upstream = pipeline.backward(part, upstream)       # also adds the gradient of this rank's weights
    pipeline.send_gradient(part, upstream)             # to the rank before

A send never waits. `pipeline.after` is the number of ranks after this one.
"""


def one_f_one_b_step(pipeline, batch):
    """Train one step of all micro-batches, pipeline.begin(batch), and return pipeline.update()."""
    raise NotImplementedError
