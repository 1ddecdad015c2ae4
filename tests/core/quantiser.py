"""A second quantiser, written from the head of `core/wires.py` as loops over single numbers: bytes, nothing shared.

Rationals decide which code is nearest, so nothing here rounds but what the definition says is rounded.
"""

import math
import struct
from fractions import Fraction
from functools import cache

import numpy as np

F32 = np.float32
LARGEST = {"int8": 127, "int4": 7, "fp8_e4m3": 448, "fp8_e5m2": 57344}
NAN_BYTE = {"int8": 0x80, "int4": 0x8, "fp8_e4m3": 0x7F, "fp8_e5m2": 0x7E}
FORM = {"fp8_e4m3": (3, 7), "fp8_e5m2": (2, 15)}  # bits of the mantissa, bias of the exponent


@cache
def eight_bits(name, byte):
    """The value of a byte without a sign, by the definition of the format."""
    mantissa_bits, bias = FORM[name]
    exponent, mantissa = byte >> mantissa_bits, Fraction(byte & ((1 << mantissa_bits) - 1), 1 << mantissa_bits)
    return mantissa * Fraction(2) ** (1 - bias) if exponent == 0 else (1 + mantissa) * Fraction(2) ** (exponent - bias)


@cache
def finite_bytes(name):
    """All positive bytes up to the largest number, in order of their values."""
    return [byte for byte in range(128) if eight_bits(name, byte) <= LARGEST[name]]


def nearest(q, values):
    """The place of the value that is nearest to `q`; of two as near, that of even place."""
    return min(range(len(values)), key=lambda place: (abs(values[place] - q), place % 2))


def code_of(name, quotient):
    """The byte, or the four bits, of one finite quotient."""
    q, negative = Fraction(float(abs(quotient))), math.copysign(1, float(quotient)) < 0
    if name.startswith("int"):
        below = math.floor(q)
        rest = q - below
        whole = below + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1))
        whole = min(whole, LARGEST[name])
        return (-whole if negative else whole) & (0xFF if name == "int8" else 0xF)
    bytes_ = finite_bytes(name)
    return bytes_[nearest(q, [eight_bits(name, byte) for byte in bytes_])] | (0x80 if negative else 0)


def value_of(name, code):
    """The number of a code; None if it is none."""
    if code == NAN_BYTE[name]:
        return None
    if name.startswith("int"):
        bits = 8 if name == "int8" else 4
        return float(code - (1 << bits) if code >> (bits - 1) else code)
    return math.copysign(float(eight_bits(name, code & 0x7F)), -1.0 if code & 0x80 else 1.0)


def blocks_of(count, block):
    size = block or count
    return [range(start, min(start + size, count)) for start in range(0, count, size)] if count else []


@np.errstate(all="ignore")
def encode(name, block, x):
    """The bytes of a message."""
    scales, codes = [], []
    for places in blocks_of(len(x), block):
        finite = [abs(F32(x[place])) for place in places if np.isfinite(x[place])]
        scale = F32(max(finite, default=F32(0)) / F32(LARGEST[name]))
        scales.append(scale)
        for place in places:
            if not np.isfinite(x[place]):
                codes.append(NAN_BYTE[name])
            else:
                codes.append(code_of(name, F32(x[place]) / (scale if scale > 0 else F32(1))))
    if name == "int4":
        codes = [low | high << 4 for low, high in zip(codes[::2], [*codes[1::2], 0], strict=False)]
    return b"".join(struct.pack("<f", scale) for scale in scales) + bytes(codes)


@np.errstate(all="ignore")
def decode(name, block, message, count):
    """The float32 of a message of `count` elements; NaN for what is none."""
    blocks = blocks_of(count, block)
    codes = list(message[4 * len(blocks) :])
    if name == "int4":
        codes = [half for byte in codes for half in (byte & 15, byte >> 4)]
    found = np.empty(count, F32)
    for number, places in enumerate(blocks):
        scale = F32(struct.unpack_from("<f", message, 4 * number)[0])
        for place in places:
            value = value_of(name, codes[place])
            found[place] = np.nan if value is None else F32(value) * scale
    return found
