"""Wire formats: encoded forms of 32-bit numbers, each a pair of functions with exactly specified rounding.

A `Format` has codes in blocks:

    block    a run of neighbouring elements, from an array's first on; its last block may be shorter. 0: all of them
    scale    one float32 per block: the largest |x| of its finite elements over the largest code, divided in float32
    code     one per element: x / scale, divided in float32 and rounded half to even, within ± the largest code

    format      codes                      largest   not a number   bytes of n elements in b blocks
    int8        −127 … 127                 127       −128           4 b + n
    int4        −7 … 7, two in a byte      7         −8             4 b + ⌈n/2⌉
    fp8_e4m3    ml_dtypes.float8_e4m3fn    448       0x7F           4 b + n
    fp8_e5m2    ml_dtypes.float8_e5m2      57344     0x7E           4 b + n

A message has all scales, little-endian, and then all codes. Of two elements in one byte the first is in the lower four
bits; an odd last one has zeros above it. If a scale is 0 (a block of zeros, or of numbers so small that the division
underflows) elements are divided by 1. Decoding multiplies code and scale in float32. Elements that are not finite are
sent as the code for not a number, so such an element does not widen its block's scale and is not lost; it is decoded as
the one NaN of `bits`.

Because both are functions, a reference can replay them, and quantised training is compared by raw bytes.

DeepSpeed's kernels divide by a scale of 2 max|x| + 10⁻⁵ instead of max|x|, and some are asymmetric, with a block's
minimum as offset. Symmetric codes need no offset and keep 0 as 0, on which padding depends. The code −2ᵇ⁻¹ is used for
NaN; that costs 1/255 of a step's width, and 1/15 in four bits.

Sources: Wang et al., "ZeRO++: Extremely efficient collective communication for giant model training" (2023), section
3.1 (block quantisation); Micikevicius et al., "FP8 formats for deep learning" (2022), table 1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import Array
from zerosim.core.bits import NOT_A_NUMBER, with_one_nan

SCALE = np.dtype("<f4")
PIECE = 1 << 14
"""The number of elements that are encoded at a time, unless a block has more."""


@dataclass(frozen=True)
class CodeFormat:
    """Narrow numbers: `dtype` holds one, `largest` is the largest, `nan` the byte for not a number."""

    dtype: npt.DTypeLike
    largest: float
    nan: int
    packed: bool = False
    """Whether two codes share a byte."""

    def bytes_of(self, count: int) -> int:
        """
        >>> CODES["int8"].bytes_of(5), CODES["int4"].bytes_of(5)
        (5, 3)
        """
        return -(-count // 2) if self.packed else count

    def rounded(self, quotients: Array) -> Array:
        """Finite float32 as bytes, one per code, rounded half to even."""
        integers = np.dtype(self.dtype) == np.int8
        limited = np.clip(np.rint(quotients) if integers else quotients, -self.largest, self.largest)
        return limited.astype(self.dtype).view(np.uint8)

    def write(self, codes: Array, out: Array) -> None:
        """Write bytes with one code each in the format of messages."""
        if not self.packed:
            out[:] = codes
            return
        out[:] = codes[::2] & 15
        out[: len(codes) // 2] |= codes[1::2] << 4

    def read(self, coded: Array, count: int) -> Array:
        """The float32 of `count` received codes; NaN for the code of not a number."""
        codes = coded
        if self.packed:
            codes = np.empty(2 * len(coded), np.uint8)
            codes[::2], codes[1::2] = coded << 4, coded & 240
            codes = (codes.view(np.int8) >> 4).view(np.uint8)
        codes = codes[:count]
        values: Array = codes.view(self.dtype).astype(np.float32)
        values[codes == self.nan] = NOT_A_NUMBER
        return values


CODES = {
    "int8": CodeFormat(np.int8, 127.0, nan=0x80),
    "int4": CodeFormat(np.int8, 7.0, nan=0xF8, packed=True),
    "fp8_e4m3": CodeFormat(ml_dtypes.float8_e4m3fn, 448.0, nan=0x7F),
    "fp8_e5m2": CodeFormat(ml_dtypes.float8_e5m2, 57344.0, nan=0x7E),
}


@dataclass(frozen=True)
class Format:
    """Codes by their name, in blocks of `block` elements, each with its scale; 0: one block."""

    name: str
    block: int

    @property
    def codes(self) -> CodeFormat:
        return CODES[self.name]

    def blocks(self, count: int) -> int:
        """The number of blocks of `count` elements."""
        return -(-count // self.block) if self.block else min(count, 1)

    def encoded_bytes(self, count: int) -> int:
        """The number of bytes of `count` encoded elements.

        >>> [Format(name, block=4).encoded_bytes(10) for name in ("int8", "int4")]
        [22, 17]
        """
        return SCALE.itemsize * self.blocks(count) + self.codes.bytes_of(count)

    def encode(self, x: Array, out: Array) -> None:
        """Write flat `x`, float32 or narrower, into `out`: bytes, as many as `encoded_bytes` says."""
        scales, stored = self._parts(out, len(x))
        for elements, blocks, place in self._pieces(len(x)):
            values = in_blocks(x[elements], self.block)
            finite = np.isfinite(values)
            largest = np.where(finite, np.abs(values), 0).max(axis=1)
            scale = scales[blocks] = largest / np.float32(self.codes.largest)
            divisor = np.where(scale > 0, scale, np.float32(1))[:, np.newaxis]
            codes = self.codes.rounded(np.where(finite, values, 0) / divisor)
            codes[~finite] = self.codes.nan
            self.codes.write(codes.ravel()[: elements.stop - elements.start], stored[place])

    def decode(self, coded: Array, out: Array) -> None:
        """Fill flat `out` with the decoded values; a narrower dtype rounds them."""
        scales, stored = self._parts(coded, len(out))
        for elements, blocks, place in self._pieces(len(out)):
            count = elements.stop - elements.start
            values = in_blocks(self.codes.read(stored[place], count), self.block)
            values *= scales[blocks].astype(np.float32)[:, np.newaxis]
            out[elements] = with_one_nan(values.ravel()[:count])

    def arriving(self, x: Array) -> Array:
        """The received values of `x`: a copy that was encoded and decoded. Zeros behind `x` would change none of them.

        >>> Format("int8", block=2).arriving(np.float32([0.5, -1, 3e-9, 0])).tolist()
        [0.5039370059967041, -1.0, 3.000000026176508e-09, 0.0]
        """
        out, coded = np.empty_like(x), np.empty(self.encoded_bytes(len(x)), np.uint8)
        self.encode(x, coded)
        self.decode(coded, out)
        return out

    def _parts(self, coded: Array, count: int) -> tuple[Array, Array]:
        """The scales and codes of a message: views of bytes that need not be aligned."""
        split = SCALE.itemsize * self.blocks(count)
        return coded[:split].view(SCALE), coded[split:]

    def _pieces(self, count: int) -> Iterator[tuple[slice, slice, slice]]:
        """Elements, their blocks, and the bytes of their codes: whole blocks except the last, and no half bytes."""
        block = min(self.block or count, count)
        rows = max(PIECE // max(block, 1), 1)
        step = block * (rows + rows * block % 2)
        for start in range(0, count, max(step, 1)):
            stop = min(start + step, count)
            yield (
                slice(start, stop), slice(start // block, -(-stop // block)),
                slice(self.codes.bytes_of(start), self.codes.bytes_of(stop)),
            )


def in_blocks(x: Array, block: int) -> Array:
    """The elements as float32 (blocks, elements of a block), with zeros behind the last."""
    block = min(block or len(x), len(x))
    values = np.zeros(-(-len(x) // block) * block, np.float32)
    values[: len(x)] = x
    return values.reshape(-1, block)


@dataclass(frozen=True)
class WireError:
    """The error of arrays after messages, relative to the exact ones; None if it is undefined, as for zeros only."""

    relative: float | None
    """‖arrived − sent‖ / ‖sent‖, Euclidean, in float64, over all elements."""
    ulps: int
    """The median distance in float32, in representable numbers."""
    bits: float | None
    """−log₂ of the relative error: the number of correct bits."""


def wire_error(arrived: Sequence[Array], sent: Sequence[Array]) -> WireError:
    """The error of all of `arrived` relative to `sent`.

    >>> wire_error([np.float32([3.0, 4.5])], [np.float32([3.0, 4.0])])
    WireError(relative=0.1, ulps=524288, bits=3.321928094887362)
    """
    received, exact = (np.concatenate(arrays).astype(np.float64) for arrays in (arrived, sent))
    signal = float(np.sqrt(np.square(exact).sum()))
    relative = float(np.linalg.norm(received - exact)) / signal if signal else math.nan
    patterns = (values.astype(np.float32).view(np.int32).astype(np.int64) for values in (received, exact))
    place, place_due = (np.where(bits < 0, -(bits & 0x7FFFFFFF), bits) for bits in patterns)
    apart = np.abs(place - place_due)    # of places among all float32, from the lowest up; both zeros have one
    return WireError(
        relative if math.isfinite(relative) else None,
        int(np.median(apart)) if len(apart) else 0,
        -math.log2(relative) if relative and math.isfinite(relative) else None,
    )
