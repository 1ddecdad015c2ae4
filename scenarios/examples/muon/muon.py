"""Muon: a momentum whose matrices are made nearly orthogonal. Jordan et al., "Muon" (2024)."""

import numpy as np

from zerosim.extend import optimizer


def orthogonal(difference, *, h):
    """η NS(difference): five quintic Newton-Schulz steps move all singular values near 1."""
    a, b, c = (np.array(each, difference.dtype) for each in (3.4445, -4.775, 2.0315))
    x = difference if difference.shape[0] <= difference.shape[1] else difference.T
    x = x / (np.linalg.norm(x) + np.array(1e-7, x.dtype))
    for _ in range(5):
        y = x @ x.T
        x = a * x + (b * y + c * (y @ y)) @ x
    difference[...] = h.learning_rate * (x if x.shape == difference.shape else x.T)


@optimizer(decoupled=True, of_matrix=orthogonal)
def muon(g, momentum, *, t, h, a, b, beta=0.95):
    """m ← β m + g;  w ← w − η NS(g + β m) for a matrix, w − η (g + β m) for a bias."""
    momentum *= beta
    momentum += g
    np.multiply(momentum, beta, out=a)
    a += g
    a *= h.learning_rate
