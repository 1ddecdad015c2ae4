"""Exercise 5: f and g of tensor parallelism. Fill in the function, then run `pytest test_5_f_and_g.py`.

    x ── f ── relu(x upᵀ) ── · downᵀ ── g ── y

The ranks share a micro-batch. Each has x, some rows of `up`, and the columns of `down` that belong to them. You have

    all_reduce(array)      # the sum of `array` over all ranks, a new array

g adds what the ranks have parts of. f copies, and its backward adds what f has copied to the ranks.
"""

import numpy as np  # noqa: F401 - np.maximum is useful


def split_pair(all_reduce, x, up, down, upstream):
    """Return y, ∂L/∂x, ∂L/∂up and ∂L/∂down, where upstream is ∂L/∂y, the same on all ranks.

    x is (samples, width), up (mine, width), down (width, mine). y and ∂L/∂x are those of the whole matrices, the other
    two those of this rank's pieces.
    """
    raise NotImplementedError
