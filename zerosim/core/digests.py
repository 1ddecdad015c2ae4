"""SHA-256 of ranks' arrays: they are compared with the reference, and with each other, without sending them.

A digest covers a chunk of a unit, in C order and little-endian. Equal digests stand for equal bytes, so +0
differs from −0 and one NaN from another. Padding is part of a chunk, because a NaN left there is harmless only until
a layout, a norm or a checkpoint reads it.
"""

import hashlib

import numpy as np

from zerosim.core.allocation import Array

Digest = bytes


def little_endian(array: Array) -> memoryview:
    """The bytes of a flat array in little-endian order; no copy of a contiguous array on a little-endian machine.

    >>> list(little_endian(np.array([1.0], np.float32)))
    [0, 0, 128, 63]
    """
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).view(np.uint8).data


def digest(array: Array) -> Digest:
    """SHA-256 of the array's bytes."""
    return hashlib.sha256(little_endian(array)).digest()
