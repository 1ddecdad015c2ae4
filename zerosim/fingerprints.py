"""SHA-256 of weights and optimizer state: how ranks compare what they hold with the reference without moving it.

The unit of comparison is a chunk of a unit, without its padding, in C order and little-endian. Equal fingerprints stand
for equal bytes, so +0 differs from −0 and one NaN from another.
"""

import hashlib

from zerosim.allocation import Array
from zerosim.sharding import bounds

Digest = bytes


def little_endian(array: Array) -> bytes:
    """The array's bytes in C order, as a little-endian machine has them."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def digest(array: Array) -> Digest:
    """SHA-256 of the array's bytes."""
    return hashlib.sha256(little_endian(array)).digest()


def chunk_digests(flat: Array, size: int) -> list[Digest]:
    """The digest of each chunk of a unit's flat, unpadded buffer."""
    return [digest(flat[start:stop]) for start, stop in bounds(len(flat), size)]
