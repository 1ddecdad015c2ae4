"""What a language model says once it has been trained: a line that it goes on with."""

from collections.abc import Mapping

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.tape import Tape
from zerosim.data import Dataset
from zerosim.models.units import Model, Unit

LONGEST = 256
"""Tokens of a text that are looked at: each one said takes a pass forward over all of them."""


def continued(model: Model, weights: Mapping[Unit, Array], dataset: Dataset, seed: int) -> str:
    """The first test sequence as far as it is given, and after `|` what the model makes of it.

    Of a task the answer, each token the likeliest one; of a text, after a quarter of the sequence, or of its first 256
    tokens, each token drawn with the model's own probabilities. The same weights and seed always say the same.
    """
    assert dataset.x_test is not None
    assert dataset.y_test is not None
    answers = dataset.measure == "exact sequences"
    tokens = np.append(dataset.x_test[0] if answers else dataset.x_test[0, :LONGEST], 0)
    counted = np.flatnonzero(dataset.y_test[0] >= 0)
    first, last = (int(counted[0]), int(counted[-1])) if answers else (len(tokens) // 4, len(tokens) - 2)
    random = np.random.default_rng(seed)
    for place in range(first, last + 1):
        scores = outputs(model, weights, tokens[np.newaxis, :-1])[0, place].astype(np.float64)
        tokens[place + 1] = scores.argmax() if answers else drawn(random, scores)
    said = [dataset.decode(part) for part in (tokens[: first + 1], tokens[first + 1 : last + 2])]
    return "|".join(said)


def outputs(model: Model, weights: Mapping[Unit, Array], inputs: Array) -> Array:
    """A score for every token of the vocabulary, at each place of each sample."""
    tape, activations = Tape(lowest=len(model.layers)), [inputs]
    for unit in model.forward_units:
        activations = tape.forward(unit, weights[unit], activations)
    return activations[0]


def drawn(random: np.random.Generator, scores: Array) -> int:
    """A token, with the probabilities that its scores stand for."""
    sums = np.cumsum(np.exp(scores - scores.max()))
    return int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
