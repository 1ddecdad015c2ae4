"""A second trainer of the MLP that tensor ranks split: every place in turn, sums in the order of the ring, every bit.

It shares nothing with zerosim. Layers are cut in pairs, outputs of the first and inputs of the second; each place has
layers of its own, which `independent.trained` updates as it updates any.
"""

import numpy as np

from tests.independent.mlp import (
    BACKWARD,
    FORWARD,
    chunks,
    cross_entropy,
    from_the_next,
    initial_layers,
    settled,
    trained,
)


def summed(parts):
    """The sum over the places, chunk by chunk of the flat array."""
    cuts = [chunks(part.ravel(), len(parts)) for part in parts]
    flat = [from_the_next([cut[c] for cut in cuts], c) for c in range(len(parts))]
    return np.concatenate(flat).reshape(parts[0].shape)


def contribution(keys, places, axes, x, targets):
    """The loss of a micro-batch, and the gradients of each layer of each place by its number."""
    def each(function, *of_places):
        return [function(*(a.astype(keys.wide) for a in arrays)).astype(keys.products)
                for arrays in zip(*of_places, strict=True)]

    xs, inputs, kept, gradients = [x.astype(keys.products)] * len(places), [], [], {}
    weights = [[layers[i][0].computed for layers in places] for i in range(len(axes))]
    biases = [[layers[i][1].computed for layers in places] for i in range(len(axes))]
    for i, axis in enumerate(axes):
        inputs.append(xs)
        if axis == 1:
            sums = [summed(each(lambda x, w: np.matmul(x, w.T), xs, weights[i]))] * len(places)
            xs = each(np.add, sums, biases[i])
        else:
            xs = each(lambda x, w, b: np.matmul(x, w.T) + b, xs, weights[i], biases[i])
        if i < len(axes) - 1:
            before, xs = xs, each(FORWARD[keys.activation], xs)
            kept.append(before if keys.activation.startswith("gelu") else xs)
    loss, u = cross_entropy(xs[0].astype(keys.wide), targets, keys.micro_batches * keys.micro_batch)
    us = [u.astype(keys.products)] * len(places)
    for i in range(len(axes) - 1, -1, -1):
        us = each(BACKWARD[keys.activation], us, kept[i]) if i < len(axes) - 1 else us
        of_weights, of_biases = each(lambda u, x: np.matmul(u.T, x), us, inputs[i]), each(lambda u: u.sum(axis=0), us)
        gradients |= {place * len(axes) + i: [of_weights[place], of_biases[place]] for place in range(len(places))}
        us = each(np.matmul, us, weights[i])
        us = [summed(us)] * len(places) if axes[i] == 0 else us
    return loss, gradients


def train(x, y, tensor, **given):
    """Final weights of the whole model by name, the loss of every step, and how many updates were made."""
    keys = settled(**given)
    layers = initial_layers(keys, x.shape[1], y.max() + 1)
    axes = [None if len(layers) % 2 and n == len(layers) - 1 else n % 2 for n in range(len(layers))]
    cut = {name: axis for layer, axis in zip(layers, axes, strict=True) for name, array in layer.items()
           if axis is not None and axis < array.ndim}
    initial = [{f"{place} {name}": np.split(array, tensor, cut[name])[place] if name in cut else array
                for name, array in layer.items()} for place in range(tensor) for layer in layers]

    def contributions(found, step, batch, scale):
        places = [found[place * len(axes) :][: len(axes)] for place in range(tensor)]
        return [contribution(keys, places, axes, x[at].astype(keys.computed), y[at]) for at in batch]

    found, losses, updates = trained(keys, len(x), initial, contributions)
    return {name: np.concatenate([found[f"{place} {name}"] for place in range(tensor)], cut[name]) if name in cut
            else found[f"0 {name}"] for layer in layers for name in layer}, losses, updates
