"""Optimizers on flat arrays: a whole model, a unit, or the shard of it that a rank owns.

    w   weights          g   gradient           m, v   momentum and variance
    η   learning rate    λ   weight decay       μ      momentum's factor
    ε   epsilon          β₁, β₂   betas         t      the step, from 1

A formula works element by element, so however a vector is cut, its bits come out the same. It is
applied in place, piece by piece, because one piece of every array fits into a core's cache.

Conventions are those of `torch.optim`: m and v start from 0, ε is added outside the root, and λ
joins the gradient except in AdamW. Sources: Sutskever, Martens, Dahl and Hinton, "On the importance
of initialization and momentum in deep learning" (2013); Kingma and Ba, "Adam: a method for
stochastic optimization" (2015); Loshchilov and Hutter, "Decoupled weight decay regularization"
(2019).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array

PIECE = 1 << 14
"""Elements that are updated at a time."""


@dataclass(frozen=True)
class Hyperparameters:
    """What a scenario chooses; each formula reads those that it names."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Optimizer:
    """`formula(w, g, *slots, t, h, a, b)` updates a piece; `a` and `b` are scratch of its length.

    >>> weights = np.array([1.0, 2.0])
    >>> OPTIMIZERS["sgd"].update(weights, np.array([10.0, 0.0]), {}, 1, Hyperparameters(0.01))
    >>> weights
    array([0.9, 2. ])
    """

    name: str
    slots: tuple[str, ...]
    formula: Callable[..., None]

    def update(
        self,
        weights: Array,
        gradient: Array,
        state: Mapping[str, Array],
        step: int,
        hyperparameters: Hyperparameters,
    ) -> None:
        """Leave the next weights in `weights` and the next state in `state`, in their own dtype.

        All arrays are flat and equally long, and no two overlap. `state` has one for each of
        `slots`, all zero before the first step, which is step 1. `gradient` is only read.
        """
        arrays = [weights, gradient, *(state[slot] for slot in self.slots)]
        assert {len(array) for array in arrays} == {len(weights)}
        scratch = np.empty((2, min(len(weights), PIECE)), weights.dtype)
        for start in range(0, len(weights), PIECE):
            pieces = [array[start : start + PIECE] for array in arrays]
            a, b = scratch[:, : len(pieces[0])]
            self.formula(*pieces, t=step, h=hyperparameters, a=a, b=b)


def sgd(w: Array, g: Array, *, t: int, h: Hyperparameters, a: Array, b: Array) -> None:
    """w ← w − η (g + λ w)."""
    g = _decayed(w, g, h, out=a)
    w -= np.multiply(g, h.learning_rate, out=a)


def momentum(
    w: Array, g: Array, m: Array, *, t: int, h: Hyperparameters, a: Array, b: Array
) -> None:
    """m ← μ m + (g + λ w); w ← w − η m."""
    m *= h.momentum
    m += _decayed(w, g, h, out=a)
    w -= np.multiply(m, h.learning_rate, out=a)


def adam(
    w: Array, g: Array, m: Array, v: Array, *, t: int, h: Hyperparameters, a: Array, b: Array
) -> None:
    """As `adamw`, but with g + λ w in place of g, and w itself not decayed."""
    _adam(w, _decayed(w, g, h, out=a), m, v, t=t, h=h, a=a, b=b)


def adamw(
    w: Array, g: Array, m: Array, v: Array, *, t: int, h: Hyperparameters, a: Array, b: Array
) -> None:
    """w ← w (1 − η λ);  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;
    w ← w − η / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + ε).
    """
    if h.weight_decay:
        w *= 1.0 - h.learning_rate * h.weight_decay
    _adam(w, g, m, v, t=t, h=h, a=a, b=b)


def _adam(
    w: Array, g: Array, m: Array, v: Array, *, t: int, h: Hyperparameters, a: Array, b: Array
) -> None:
    """Where `g` lies in `a`, it is no longer needed once `a` is written."""
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
    w -= np.multiply(a, h.learning_rate / (1.0 - beta1**t), out=a)


def _decayed(w: Array, g: Array, h: Hyperparameters, *, out: Array) -> Array:
    """g + λ w, in `out` unless it is g itself."""
    if not h.weight_decay:
        return g
    np.multiply(w, h.weight_decay, out=out)
    return np.add(g, out, out=out)


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("sgd", (), sgd),
        Optimizer("momentum", ("momentum",), momentum),
        Optimizer("adam", ("momentum", "variance"), adam),
        Optimizer("adamw", ("momentum", "variance"), adamw),
    )
}
