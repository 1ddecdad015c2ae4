"""Optimizers on flat arrays: a whole model, a unit, or a rank's shard of it.

    w   weights          g   gradient           m, v   momentum and variance
    η   learning rate    λ   weight decay       μ      momentum's factor
    ε   epsilon          β₁, β₂   betas         t      the step, from 1

Formulas are elementwise, so any partition of a vector gives the same bits. They are applied in place and piece by
piece, because one piece of every array fits into a core's cache.

Conventions are those of `torch.optim`: m and v start from 0, ε is added outside the root, and λ w is added to the
gradient except in AdamW. Sources: Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and
momentum in deep learning" (2013); Kingma and Ba, "Adam: a method for stochastic optimization" (2015); Loshchilov and
Hutter, "Decoupled weight decay regularization" (2019).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.bits import with_one_nan
from zerosim.core.parts import Table
from zerosim.core.parts.loading import Declared

PIECE = 1 << 14
"""The number of elements per piece."""


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of a scenario; each formula reads some of them."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    gradient_factor: float = 1.0
    """The factor of the gradient, applied first: it undoes the loss scale and clips."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The hyperparameters of a user's formula, by name."""


@dataclass(frozen=True)
class Optimizer(Declared):
    """An optimizer: `formula(g, *slots, t, h, a, b)` reads g and writes to `a` the difference to subtract.

    `a` and `b` are scratch arrays with the length of the piece. With `decoupled` decay, w is multiplied by 1 − η λ
    before the subtraction; otherwise λ w is added to the gradient. A formula gets its own hyperparameters, `keys`, by
    name.

    >>> weights = np.array([1.0, 2.0])
    >>> OPTIMIZERS["sgd"].update(weights, np.array([10.0, 0.0]), {}, 1, Hyperparameters(0.01))
    >>> weights
    array([0.9, 2. ])
    """

    WRITTEN: ClassVar[str] = "formula"

    name: str
    slots: tuple[str, ...]
    formula: Callable[..., None]
    decoupled: bool = False
    usual_weight_decay: float = 0.0
    """The default weight decay."""
    of_matrix: Callable[..., None] | None = None
    """`of_matrix(difference, *, h)` rewrites the difference of a whole matrix in place, before it is subtracted."""
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The formula's own hyperparameters, which [train] may set, with their defaults."""

    def update(
        self, weights: Array, gradient: Array, state: Mapping[str, Array], step: int, h: Hyperparameters,
        out: Array | None = None, *, applies: bool = True,
    ) -> None:
        """Update `weights` and `state` in place, in the dtype of the weights; differences are written to `out` too and,
        unless it `applies` them, subtracted nowhere.

        All arrays are flat and of equal length, and no two overlap. `state` has one for each of `slots`, all zero
        before the first step, which is step 1. `gradient` is only read, and may have fewer bits.
        """
        arrays = [weights, *(state[slot] for slot in self.slots)]
        if {len(array) for array in (*arrays, gradient)} != {len(weights)}:
            lengths = ", ".join(str(len(array)) for array in (*arrays[1:], gradient))
            raise ValueError(f"weights have {len(weights)} elements, the optimizer's state and the gradient {lengths}")
        scratch = np.empty((3, min(len(weights), PIECE)), weights.dtype)
        for start in range(0, len(weights), PIECE):
            piece = slice(start, start + PIECE)
            w, *slots = (array[piece] for array in arrays)
            a, b, g = scratch[:, : len(w)]
            g[:] = gradient[piece]
            if h.gradient_factor != 1.0:
                g *= h.gradient_factor
            if np.isnan(np.dot(g, g)):
                with_one_nan(g)
            if h.weight_decay and not self.decoupled:
                g += np.multiply(w, h.weight_decay, out=a)
            self.formula(g, *slots, t=step, h=h, a=a, b=b, **h.own)
            if applies:
                apply(w, a, self.decay(h))
            if out is not None:
                out[piece] = a

    def decay(self, hyperparameters: Hyperparameters) -> float:
        """The factor of the weights before the subtraction."""
        return 1.0 - hyperparameters.learning_rate * hyperparameters.weight_decay if self.decoupled else 1.0


def apply(weights: Array, difference: Array, decay: float) -> None:
    """w ← decay · w − difference, each operation rounded to the dtype of the weights."""
    if decay != 1.0:
        weights *= decay
    weights -= difference


def sgd(g: Array, *, t: int, h: Hyperparameters, a: Array, b: Array) -> None:
    """w ← w − η g."""
    np.multiply(g, h.learning_rate, out=a)


def momentum(g: Array, m: Array, *, t: int, h: Hyperparameters, a: Array, b: Array) -> None:
    """m ← μ m + g;  w ← w − η m."""
    m *= h.momentum
    m += g
    np.multiply(m, h.learning_rate, out=a)


def adam(g: Array, m: Array, v: Array, *, t: int, h: Hyperparameters, a: Array, b: Array) -> None:
    """m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  w ← w − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε)."""
    beta1, beta2 = h.betas
    m *= beta1
    m += np.multiply(g, 1.0 - beta1, out=b)
    v *= beta2
    np.square(g, out=b)
    v += np.multiply(b, 1.0 - beta2, out=b)
    np.sqrt(v, out=a)
    a /= math.sqrt(1.0 - beta2**t)
    a += h.epsilon
    np.divide(m, a, out=a)
    a *= h.learning_rate / (1.0 - beta1**t)


OPTIMIZERS: Table[Optimizer] = Table({
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("sgd", (), sgd),
        Optimizer("momentum", ("momentum",), momentum),
        Optimizer("adam", ("momentum", "variance"), adam),
        Optimizer("adamw", ("momentum", "variance"), adam, decoupled=True, usual_weight_decay=0.01),
    )
})
