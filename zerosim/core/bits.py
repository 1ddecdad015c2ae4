"""The bits that are compared: one NaN for all, and SHA-256 of ranks' arrays.

Every NaN is replaced by the one that this processor's own operations return. IEEE 754 does not define which of two NaNs
an addition returns, and processors choose by the operands' position in a vector. Shards are cut elsewhere than units,
so without this rule runs that diverge to NaN would differ in its sign. The optimizer applies the rule to gradients and
the reports to losses, on both sides of a comparison.

Arrays are compared with the reference, and with each other, without sending them. A digest covers a chunk of a unit, in
C order and little-endian. Equal digests stand for equal bytes, so +0 differs from −0 and one NaN from another. Padding
is part of a chunk, because a NaN left there is harmless only until a layout, a norm or a checkpoint reads it.
"""

import hashlib

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


Digest = bytes


def little_endian(array: Array) -> memoryview:
    """The bytes of a flat array in little-endian order; no copy of a contiguous array on a little-endian machine.

    >>> list(little_endian(np.array([1.0], np.float32)))
    [0, 0, 128, 63]
    """
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).view(np.uint8).data


def digest(array: Array) -> Digest:
    """SHA-256 of the array's bytes, little-endian in C order.

    >>> digest(np.zeros(1)) == digest(-np.zeros(1)), digest(np.ones(1, ">i4")) == digest(np.ones(1, "<i4"))
    (False, True)
    """
    return hashlib.sha256(little_endian(array)).digest()
