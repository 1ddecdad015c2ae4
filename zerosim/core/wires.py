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
the one NaN of `not_a_number`.

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
from zerosim.core.not_a_number import NOT_A_NUMBER, with_one_nan

SCALE = np.dtype("<f4")
PIECE = 1 << 14
"""The number of elements that are encoded at a time, unless a block has more."""


@dataclass(frozen=True)
class CodeFormat:
    """Narrow numbers in blocks of `block` elements, each with its scale; 0: one block.

    `dtype` holds a number, `largest` is the largest, `nan` the byte for not a number.
    """

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
        limited = np.clip(np.rint(quotients) if self.integers else quotients, -self.largest, self.largest)
        return limited.astype(self.dtype).view(np.uint8)

    @property
    def integers(self) -> bool:
        return np.dtype(self.dtype) == np.int8

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

    def blocks(self, count: int, block: int) -> int:
        """The number of blocks of `count` elements."""
        return -(-count // block) if block else min(count, 1)

    def encoded_bytes(self, count: int, *, block: int) -> int:
        """The number of bytes of `count` encoded elements.

        >>> [CODES[name].encoded_bytes(10, block=4) for name in ("int8", "int4")]
        [22, 17]
        """
        return SCALE.itemsize * self.blocks(count, block) + self.bytes_of(count)

    def encode(self, x: Array, out: Array, *, block: int) -> None:
        """Write flat `x`, float32 or narrower, into `out`: bytes, as many as `encoded_bytes` says."""
        scales, codes = self._parts(out, len(x), block)
        for elements, blocks, stored in self._pieces(len(x), block):
            values = in_blocks(x[elements], block)
            finite = np.isfinite(values)
            largest = np.where(finite, np.abs(values), 0).max(axis=1)
            scale = scales[blocks] = largest / np.float32(self.largest)
            divisor = np.where(scale > 0, scale, np.float32(1))[:, np.newaxis]
            found = self.rounded(np.where(finite, values, 0) / divisor)
            found[~finite] = self.nan
            self.write(found.ravel()[: elements.stop - elements.start], codes[stored])

    def decode(self, coded: Array, out: Array, *, block: int) -> None:
        """Fill flat `out` with the decoded values."""
        scales, codes = self._parts(coded, len(out), block)
        for elements, blocks, stored in self._pieces(len(out), block):
            count = elements.stop - elements.start
            values = in_blocks(self.read(codes[stored], count), block)
            values *= scales[blocks].astype(np.float32)[:, np.newaxis]
            out[elements] = values.ravel()[:count]

    def _parts(self, coded: Array, count: int, block: int) -> tuple[Array, Array]:
        """The scales and codes of a message: views of bytes that need not be aligned."""
        split = SCALE.itemsize * self.blocks(count, block)
        return coded[:split].view(SCALE), coded[split:]

    def _pieces(self, count: int, block: int) -> Iterator[tuple[slice, slice, slice]]:
        """Elements, their blocks, and the bytes of their codes: whole blocks except the last, and no half bytes."""
        block = min(block or count, count)
        rows = max(PIECE // max(block, 1), 1)
        step = block * (rows + rows * block % 2)
        for start in range(0, count, max(step, 1)):
            stop = min(start + step, count)
            yield (
                slice(start, stop), slice(start // block, -(-stop // block)),
                slice(self.bytes_of(start), self.bytes_of(stop)),
            )


def in_blocks(x: Array, block: int) -> Array:
    """The elements as float32 (blocks, elements of a block), with zeros behind the last."""
    block = min(block or len(x), len(x))
    values = np.zeros(-(-len(x) // block) * block, np.float32)
    values[: len(x)] = x
    return values.reshape(-1, block)


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

    def encoded_bytes(self, count: int) -> int:
        """The number of bytes of `count` encoded elements; none for none."""
        return CODES[self.name].encoded_bytes(count, block=self.block) if count else 0

    def encode(self, x: Array, out: Array) -> None:
        """Write flat `x`, float32 or narrower, into `out`: bytes, as many as `encoded_bytes` says."""
        if len(x):
            CODES[self.name].encode(x.astype(np.float32, copy=False), out, block=self.block)

    def decode(self, coded: Array, out: Array) -> None:
        """Fill flat `out` with the decoded values; a narrower dtype rounds them."""
        if len(out):
            values = out if out.dtype == np.float32 else np.empty(len(out), np.float32)
            CODES[self.name].decode(coded, values, block=self.block)
            out[:] = with_one_nan(values)

    def arriving(self, x: Array) -> Array:
        """The received values of `x`: a copy that was encoded and decoded. Zeros behind `x` would change none of them.

        >>> Format("int8", block=2).arriving(np.float32([0.5, -1, 3e-9, 0])).tolist()
        [0.5039370059967041, -1.0, 3.000000026176508e-09, 0.0]
        """
        out, coded = np.empty_like(x), np.empty(self.encoded_bytes(len(x)), np.uint8)
        self.encode(x, coded)
        self.decode(coded, out)
        return out


@dataclass(frozen=True)
class WireError:
    """The error of arrays after messages, relative to the exact ones; None if it is undefined, as for zeros only."""

    relative: float | None
    """‖arrived − due‖ / ‖due‖, Euclidean, in float64, over all elements."""
    ulps: int
    """The median distance in float32, in representable numbers."""
    bits: float | None
    """−log₂ of the relative error: the number of correct bits."""


def wire_error(arrived: Sequence[Array], due: Sequence[Array]) -> WireError:
    """The error of all of `arrived` relative to `due`.

    >>> wire_error([np.float32([3.0, 4.5])], [np.float32([3.0, 4.0])])
    WireError(relative=0.1, ulps=524288, bits=3.321928094887362)
    """
    found, wanted = (np.concatenate(arrays).astype(np.float64) for arrays in (arrived, due))
    signal = float(np.sqrt(np.square(wanted).sum()))
    relative = float(np.linalg.norm(found - wanted)) / signal if signal else math.nan
    apart = np.abs(places(found) - places(wanted))
    return WireError(
        relative if math.isfinite(relative) else None,
        int(np.median(apart)) if len(apart) else 0,
        -math.log2(relative) if relative and math.isfinite(relative) else None,
    )


def places(values: Array) -> Array:
    """The position of each value among all float32, from the lowest up; both zeros have the same."""
    bits = values.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
