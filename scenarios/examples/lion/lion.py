"""Lion: the sign of a momentum. Chen et al., "Symbolic discovery of optimization algorithms" (2023), algorithm 2."""

import numpy as np

from zerosim.extend import optimizer


@optimizer(decoupled=True, weight_decay=0.1)
def lion(g, momentum, *, t, h, a, b, beta1=0.9, beta2=0.99):
    """w ← (1 − η λ) w − η sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g."""
    np.multiply(momentum, beta1, out=a)
    a += np.multiply(g, 1.0 - beta1, out=b)
    np.sign(a, out=a)
    a *= h.learning_rate
    momentum *= beta2
    momentum += np.multiply(g, 1.0 - beta2, out=b)
