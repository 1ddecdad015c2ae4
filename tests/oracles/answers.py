"""Answers to `cases`, PyTorch's or zerosim's, held against recorded ones, each by what rounding permits.

Answers are a dictionary: for each dtype `"… losses"`, one of each network, and `"… answers"`, all their outputs and
gradients end to end; `"updates"` (optimizers, steps, weights); `"clipped"`, the norm and then the gradients, for each
norm to clip at; `"loss scales"` as exponents of 2, and `"taken"`, whether the step was.
"""

from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.oracles import cases
from tests.oracles.rounding import FLOAT32, excess, spreads

RECORDED = Path(__file__).with_name("torch_answers.npz")
DIFFERENT = 0.05
"""How many of all 16-bit numbers may differ at all. Roundings agree unless a float32 sum, added in another order, falls
to the other side of a boundary of 16 bits, which is rare, though whatever is computed from it may then differ too."""
NUMPY = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def read(path):
    """The answers in a file; numbers of 16 bits are widened."""
    with np.load(path) as stored:
        answers = dict(stored)
    answers["bfloat16 answers"] = answers["bfloat16 answers"].view(ml_dtypes.bfloat16).astype(np.float32)
    return answers


def disagreements(found, recorded):
    """A line by the name of each case in which two answers are further apart than rounding permits."""
    return {
        name: f"{name}: {ratio:.3g} times as far from the recorded answer as rounding permits"
        for name, ratio in excesses(found, recorded).items() if not ratio <= 1.0
    }


def excesses(found, recorded):
    """How far apart two answers are in each case, in units of what rounding permits."""
    ratios = {}
    for dtype in cases.DTYPES:
        ends = np.cumsum([sum(network.lengths) for network in cases.NETWORKS])[:-1]
        vectors = zip(*(np.split(answers[f"{dtype} answers"], ends) for answers in (found, recorded)), strict=True)
        losses = zip(found[f"{dtype} losses"], recorded[f"{dtype} losses"], strict=True)
        for network, loss, vector in zip(cases.NETWORKS, losses, vectors, strict=True):
            of_loss, of_vector = spreads_of(network, dtype)
            ratios[f"{dtype} {network.name}"] = float(np.max([excess(*loss, of_loss), excess(*vector, of_vector)]))
        if dtype != "float32":
            different = found[f"{dtype} answers"] != recorded[f"{dtype} answers"]
            ratios[f"{dtype} bits"] = float(np.mean(different)) / DIFFERENT
    for (name, h), *updated in zip(cases.OPTIMIZERS, found["updates"], recorded["updates"], strict=True):
        ratios[f"{name} {h}"] = largest(*updated, rounding_of_updates(updated[1]))
    for norm, *clipped in zip(cases.CLIP_NORMS, found["clipped"], recorded["clipped"], strict=True):
        ratios[f"clipped at {norm}"] = largest(*clipped, rounding_of_clipping(clipped[1]))
    for name in ("loss scales", "taken"):
        ratios[name] = 0.0 if np.array_equal(found[name], recorded[name]) else np.inf
    return ratios


@lru_cache
def spreads_of(network, dtype):
    """What other roundings make of a network whose inputs are rounded to `dtype`."""
    def rounded(array):
        return array.astype(NUMPY[dtype]).astype(np.float64)

    x, targets = network.batch()
    return spreads(network, [(rounded(w), rounded(b)) for w, b in network.parameters()], rounded(x), targets, dtype)


def largest(found, recorded, permitted):
    return float(np.max(np.abs(found.astype(np.float64) - recorded) / permitted))


def rounding_of_updates(weights):
    """For each step: its errors at worst, grown with √steps, as independent ones do.

    Two implementations each round a weight at decay and subtraction, and its difference in at most eight operations.
    """
    first, _ = cases.trajectory()
    before = np.concatenate([first[np.newaxis], weights[:-1]])
    largest_step = np.abs(weights - before).max(axis=0)
    steps = np.arange(1, len(weights) + 1)[:, np.newaxis]
    return FLOAT32 * np.sqrt(steps) * (4 * np.abs(before).max(axis=0) + 16 * largest_step)


def rounding_of_clipping(clipped):
    """Half of the relative error of a sum of n squares in float32, √n roundings, and four operations on each side."""
    return FLOAT32 * (np.sqrt(len(clipped)) / 2 + 8) * np.abs(clipped)
