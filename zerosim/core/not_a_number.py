"""One NaN for all: every NaN is replaced by the one that this processor's own operations return.

IEEE 754 does not define which of two NaNs an addition returns, and processors choose by the operands' position in a
vector. Shards are cut elsewhere than units, so without this rule runs that diverge to NaN would differ in its sign.
The optimizer applies the rule to gradients and the reports to losses, on both sides of a comparison.
"""

import numpy as np

from zerosim.core.allocation import Array

with np.errstate(invalid="ignore"):
    NOT_A_NUMBER = np.float32(np.inf) - np.float32(np.inf)
"""The NaN that this processor's own operations return."""


def with_one_nan(values: Array) -> Array:
    """`values` with every NaN replaced, in place, by the one of this processor.

    >>> with_one_nan(np.array([1.0, -np.nan], np.float32)).view(np.uint32).tolist() == [
    ...     0x3F800000, int(NOT_A_NUMBER.view(np.uint32))]
    True
    """
    values[np.isnan(values)] = NOT_A_NUMBER
    return values
