"""Dropout, whose mask depends on the sample and not on the rank that computes it.

Backward draws the mask again instead of keeping it. That costs time and saves an array as large as the activation. It
is possible because `uniform` derives each number from its purpose only, and from no state. Philox computes numbers from
a key and a counter. The key is the seed and the step, the counter names the sample in the batch of all ranks, the layer
and the operation: so a sample gets the same numbers on any rank, on each call. Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3" (2011), section 3.
"""

from collections.abc import Callable

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation
from zerosim.core.allocation import Array
from zerosim.core.errors import ZerosimError

Draws = Callable[[Array], None]
"""Fills an array (samples, …) with uniform numbers from 0 to 1, the same ones on each call."""


def dropout_forward(x: Array, *, empty: Empty, probability: float, draws: Draws | None) -> Array:
    """y = x / (1 − p) where a uniform number is at least p, otherwise 0; y = x where nothing is to be random.

    x has any shape, samples first; p is from 0 to below 1. Srivastava et al., "Dropout" (2014), section 10, scaled
    while training.

    >>> def draws(array):
    ...     array[...] = [0.1, 0.3]
    >>> dropout_forward(np.ones(2), empty=np.empty, probability=0.2, draws=draws)
    array([0.  , 1.25])
    """
    if not 0.0 <= probability < 1.0:
        raise ZerosimError(f"dropout needs a probability from 0 to below 1, found {probability}")
    y = empty(x.shape, x.dtype)
    dropped(x, y, empty, probability, draws)
    return y


def dropout_backward(upstream: Array, into: Into, *, empty: Empty, probability: float, draws: Draws | None) -> None:
    """∂L/∂x = upstream / (1 − p) where forward kept x, otherwise 0; the mask is drawn again."""
    dropped(upstream, into["x"], empty, probability, draws)


def dropped(x: Array, out: Array, empty: Empty, probability: float, draws: Draws | None) -> None:
    if draws is None:
        np.copyto(out, x)
        return
    draws(drawn := empty(x.shape, np.float32))
    np.multiply(x, 1.0 / (1.0 - probability), out=out)
    np.multiply(out, drawn >= probability, out=out)


dropout = Operation(dropout_forward, dropout_backward)


def uniform(seed: int, step: int, out: Array, micro_batch: int, layer: int, operation: int) -> None:
    """Fill `out`, float32 (samples, …), with numbers from 0 to below 1, sample by sample.

    >>> two, one = np.empty((2, 3), np.float32), np.empty((1, 3), np.float32)
    >>> uniform(0, 1, two, 0, 2, 5)
    >>> uniform(0, 1, one, 1, 2, 5)                 # the second sample of all, in micro-batches of one
    >>> two[1].tolist() == one[0].tolist()
    True
    """
    for number, sample in enumerate(out, start=micro_batch * len(out)):
        counter = [0, operation, layer, number]
        np.random.Generator(np.random.Philox(key=[seed, step], counter=counter)).random(out=sample, dtype=np.float32)
