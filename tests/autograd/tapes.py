"""Small models on a tape."""

import numpy as np

from tests.models import transformers


def model_of(**keys):
    """The model of a small transformer's row, and its weights before the first step."""
    model = transformers.prepared(layers=1, **keys).rows[0].model
    return model, {unit: unit.initial(0) for unit in model.units}


def backpropagated(tape, model, weights, batches):
    """Each unit's gradient, of these micro-batches together."""
    activations, gradients = [x for x, _ in batches], {}
    for unit in model.forward_units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstreams = tape.loss(model.task.loss, activations, [y for _, y in batches], 4)
    for unit in model.backward_units:
        tape.recompute(unit, weights[unit])
        upstreams, found = tape.backward(unit, weights[unit], upstreams)
        if found is not None:
            assert unit not in gradients, "a unit's gradient comes with its last segment"
            gradients[unit.name] = found.tobytes()
    return loss.tobytes(), gradients


def batches(count=2):
    data = transformers.tokens()
    return [(data.x[2 * number : 2 * number + 2].astype(np.int64), data.y[2 * number : 2 * number + 2].astype(np.int64))
            for number in range(count)]
