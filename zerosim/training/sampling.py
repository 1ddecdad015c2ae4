"""A sample from a trained language model: the continuation of a line."""

from collections.abc import Mapping

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.tape import Policy, Tape, as_written
from zerosim.data import Dataset
from zerosim.models.units import Model, Unit

LONGEST = 256
"""The greatest number of tokens used of a text; each generated token takes a forward pass over all of them."""


def continued(
    model: Model, weights: Mapping[Unit, Array], dataset: Dataset, seed: int, policy: Policy = as_written
) -> str:
    """The beginning of the first test sequence, then `|`, then the model's continuation.

    For a task the continuation is the answer, each token the likeliest one. For a text it begins after a quarter of
    the sequence, or of its first 256 tokens, and each token is drawn with the model's probabilities. The same weights
    and seed give the same sample.
    """
    assert dataset.x_test is not None
    assert dataset.y_test is not None
    answers = dataset.measure == "exact sequences"
    tokens = np.append(dataset.x_test[0] if answers else dataset.x_test[0, :LONGEST], 0)
    counted = np.flatnonzero(dataset.y_test[0] >= 0)
    first, last = (int(counted[0]), int(counted[-1])) if answers else (len(tokens) // 4, len(tokens) - 2)
    random = np.random.default_rng(seed)
    for place in range(first, last + 1):
        scores = outputs(model, weights, tokens[np.newaxis, :-1], policy)[0, place].astype(np.float64)
        tokens[place + 1] = scores.argmax() if answers else drawn(random, scores)
    said = [dataset.decode(part) for part in (tokens[: first + 1], tokens[first + 1 : last + 2])]
    return "|".join(said)


def outputs(model: Model, weights: Mapping[Unit, Array], inputs: Array, policy: Policy) -> Array:
    """The scores of all tokens at each position of each sample."""
    tape, activations = Tape(lowest=len(model.layers), policy=policy), [inputs]
    for unit in model.forward_units:
        activations = tape.forward(unit, weights[unit], activations)
    return activations[0]


def drawn(random: np.random.Generator, scores: Array) -> int:
    """A token drawn with the softmax probabilities of its scores."""
    sums = np.cumsum(np.exp(scores - scores.max()))
    return int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
