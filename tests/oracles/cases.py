"""What PyTorch and zerosim are both asked: networks, optimizers, norms to clip, a pattern of overflows.

Everything comes from `numpy.random.RandomState`, whose stream NumPy has frozen, and is float32; a network in 16 bits
gets the same numbers rounded. Nothing here knows zerosim or PyTorch.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ROWS = 9
STEPS = 20


@dataclass(frozen=True)
class Network:
    """A multi-layer perceptron, its loss, and one batch of `ROWS` samples."""

    widths: tuple[int, ...]
    activation: str
    loss: str

    @property
    def name(self):
        return f"{'-'.join(map(str, self.widths))} {self.activation} {self.loss}"

    @property
    def lengths(self):
        """How many numbers a vector of answers holds: outputs, then weight and bias of each layer."""
        layers = [length for i, o in pairwise(self.widths) for length in (i * o, o)]
        return [ROWS * self.widths[-1], *layers]

    def parameters(self):
        """The weight, (outputs, inputs), and the bias of each layer: values keep their size from layer to layer."""
        random = np.random.RandomState(sum(self.widths))
        return [
            (single(random.uniform(-1, 1, (o, i)) * np.sqrt(3 / i)), single(random.uniform(-0.5, 0.5, o)))
            for i, o in pairwise(self.widths)
        ]

    def batch(self):
        """Inputs, and targets: class numbers for the cross-entropy, float32 for the squared error."""
        random = np.random.RandomState(1 + sum(self.widths))
        inputs, outputs = self.widths[0], self.widths[-1]
        x = single(random.standard_normal((ROWS, inputs)))
        if self.loss == "cross_entropy":
            return x, random.randint(outputs, size=ROWS)
        return x, single(random.standard_normal((ROWS, outputs)))


def single(values):
    return values.astype(np.float32)


NETWORKS = [
    Network(widths, activation, loss)
    for widths in ((5, 7, 3), (33, 19, 11, 4), (3, 17, 9, 13, 2))
    for activation in ("relu", "tanh", "gelu")
    for loss in ("cross_entropy", "mean_squared_error")
]
DTYPES = ("float32", "bfloat16", "float16")


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
