"""What PyTorch and zerosim are both asked: optimizers, norms to clip, a pattern of overflows; each held to rounding.

Answers are a dictionary: `"updates"` (optimizers, steps, weights); `"clipped"`, the norm and then the gradients, for
each norm to clip at; `"loss scales"` as exponents of 2, and `"taken"`, whether the step was. All numbers are float32,
from `numpy.random.RandomState`, whose stream NumPy has frozen. Nothing here knows zerosim or PyTorch.
"""

import numpy as np

FILE = "torch_updates.npz"
STEPS = 20
ROUNDING = 2.0**-24
"""Half the distance of neighbours at 1."""


def single(values):
    return values.astype(np.float32)


OPTIMIZERS = [
    ("sgd", {"learning_rate": 0.1}),
    ("sgd", {"learning_rate": 0.1, "weight_decay": 0.05}),
    ("momentum", {"learning_rate": 0.03, "momentum": 0.9}),
    ("momentum", {"learning_rate": 0.03, "momentum": 0.5, "weight_decay": 0.1}),
    ("adam", {"learning_rate": 1e-2}),
    ("adam", {"learning_rate": 1e-2, "betas": (0.8, 0.95), "epsilon": 1e-3, "weight_decay": 0.1}),
    ("adamw", {"learning_rate": 1e-2, "weight_decay": 0.01}),
    ("adamw", {"learning_rate": 3e-2, "betas": (0.5, 0.9), "weight_decay": 0.3}),
]


def trajectory():
    """First weights, and the gradients of `STEPS` steps: some large, some tiny, some 0."""
    random = np.random.RandomState(20)
    weights, *gradients = random.standard_normal((1 + STEPS, 17))
    sizes = np.repeat([1.0, 30.0, 1e-6, 0.1], [7, 4, 4, 2])
    return single(weights), single(np.stack(gradients) * sizes * (random.uniform(size=(STEPS, 17)) < 0.9))


CLIP_NORMS = (1e-6, 7e-5, 5e-4, 1.0)


def gradients_to_clip():
    """One model's gradients, parameter by parameter: a norm of 10⁻³, beside which the epsilon of clipping is seen."""
    random = np.random.RandomState(3)
    return [single(1e-4 * random.standard_normal(count)) for count in (33, 7, 77, 11)]


def overflows():
    """Whether gradients overflow, step by step: 1,999 steps without are followed by an overflow, 2,000 are not."""
    found = np.zeros(8000, bool)
    found[[0, 1, 2, 5, 11, 12, 1900, 3900, 3901, 5902]] = True
    return found


def disagreements(found, recorded):
    """The names of the cases in which two answers are further apart than rounding permits."""
    wrong = set()
    for (name, h), *updated in zip(OPTIMIZERS, found["updates"], recorded["updates"], strict=True):
        if not near(*updated, rounding_of_updates(updated[1])):
            wrong.add(f"{name} {h}")
    for norm, *clipped in zip(CLIP_NORMS, found["clipped"], recorded["clipped"], strict=True):
        if not near(*clipped, rounding_of_clipping(clipped[1])):
            wrong.add(f"clipped at {norm}")
    return wrong | {name for name in ("loss scales", "taken") if not np.array_equal(found[name], recorded[name])}


def near(found, recorded, permitted):
    return np.all(np.abs(found.astype(np.float64) - recorded) <= permitted)


def rounding_of_updates(weights):
    """For each step: its errors at worst, grown with √steps, as independent ones do.

    Two implementations each round a weight at decay and subtraction, and its difference in at most eight operations.
    """
    first, _ = trajectory()
    before = np.concatenate([first[np.newaxis], weights[:-1]])
    largest_step = np.abs(weights - before).max(axis=0)
    steps = np.arange(1, len(weights) + 1)[:, np.newaxis]
    return ROUNDING * np.sqrt(steps) * (4 * np.abs(before).max(axis=0) + 16 * largest_step)


def rounding_of_clipping(clipped):
    """Half of the relative error of a sum of n squares in float32, √n roundings, and four operations on each side."""
    return ROUNDING * (np.sqrt(len(clipped)) / 2 + 8) * np.abs(clipped)
