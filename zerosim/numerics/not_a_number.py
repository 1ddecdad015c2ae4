"""One NaN for all: every NaN becomes the one that this processor makes of itself.

IEEE 754 leaves open which of two NaNs an addition returns, and processors decide by where in a vector the operands
stand. Shards are cut elsewhere than units, so without this rule runs that diverge to NaN would differ in its sign.
The optimizer applies the rule to gradients and the reports to losses, on both sides of a comparison.
"""

import numpy as np

from zerosim.allocation import Array

with np.errstate(invalid="ignore"):
    NOT_A_NUMBER = np.float32(np.inf) - np.float32(np.inf)
"""The NaN that this processor makes of itself. When both operands of an addition are NaNs, which of them comes out
depends on where in a vector they stand; so every NaN of a gradient or a loss is made this one first, and no others
arise."""


def with_one_nan(values: Array) -> Array:
    """`values` after every NaN in it has become the one that this processor makes of itself.

    >>> with_one_nan(np.array([1.0, -np.nan], np.float32)).view(np.uint32).tolist() == [
    ...     0x3F800000, int(NOT_A_NUMBER.view(np.uint32))]
    True
    """
    values[np.isnan(values)] = NOT_A_NUMBER
    return values
