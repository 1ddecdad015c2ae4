"""A user's wire format: encode, decode and the length of a message, with laws that are tested before its use.

Each law is one that a run relies on. A format that draws other bytes the second time cannot be replayed. One that
changes its argument, or whose residual is not what was lost, makes error feedback wrong. One that loses infinity hides
an overflow, so that a step is applied that should be skipped.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.errors import UsageError
from zerosim.numerics.wires import Format
from zerosim.parts.users_code import error_line

COUNTS = (1, 2, 7, 64, 500)


def wire_format(
    *, decode: Callable[..., None], encoded_bytes: Callable[..., int], residual: Callable[..., None] | None = None,
    rounding: float = 0.0,
) -> Callable[[Callable[..., None]], Format]:
    """A decorator of `encode(x, out)` that declares a wire format.

    `encode` writes float32 `x` into bytes `out`, `encoded_bytes(count)` of them; `decode(coded, out)` writes float32.
    `residual(x, coded)` turns x into what was lost; by default what is decoded is subtracted. `rounding` is the largest
    change, relative to the largest element, when decoded values are encoded again.

    >>> def decode(coded, out): out[:] = coded.view(np.float16)
    >>> @wire_format(decode=decode, encoded_bytes=lambda count: 2 * count)
    ... def halves(x, out): out.view(np.float16)[:] = x
    >>> halves.arriving(np.float32([1.0, 0.1])).tolist(), wrong(halves)
    ([1.0, 0.0999755859375], None)
    """
    for what, given in {"decode": decode, "encoded_bytes": encoded_bytes, "residual": residual or decode}.items():
        if not callable(given):
            raise UsageError(f"@wire_format takes functions, and {what} is {given!r}; write def {what}(…) above")
    if not isinstance(rounding, float | int) or not 0 <= rounding < 1:
        raise UsageError(f"@wire_format takes a rounding from 0 to 1, found {rounding!r}; 1e-6 is that of float32")
    return lambda encode: Format(encode.__name__, encode, decode, encoded_bytes, residual, rounding)


def as_wire(name: str, found: Any) -> Format:
    """The format that a scenario names, after its laws. Raises `UsageError` with the fault."""
    if not isinstance(found, Format):
        raise UsageError(f"{name} is a {type(found).__name__}; write @wire_format(decode=…, encoded_bytes=…) above its "
                         "encode(x, out)")
    problem = wrong(found)
    if problem is not None:
        raise UsageError(f"{name}: {problem}")
    return replace(found, name=name)


@np.errstate(all="ignore")
def wrong(wire: Format) -> str | None:
    """The first law that a format breaks, in a sentence; None if it keeps all."""
    for each, x in trials(wire):
        length = None
        try:
            length = each.length(len(x), **each.settings)
            fault = next(faults(each, x, length), None)
        except Exception as error:
            declared = "" if length is None else f"; encoded_bytes declares a message of {length} bytes"
            fault = error_line(error, wire.function) + declared
        if fault:
            return f"with count = {len(x)}{f', block = {each.block}' * bool(each.settings)}: {fault}"
    return None


def trials(wire: Format) -> Iterator[tuple[Format, Array]]:
    """The format in blocks, if it has blocks, and float32 to encode: of a gradient's scale, and zeros."""
    for count in COUNTS:
        for block in (4, 0) if wire.settings else (0,):
            yield replace(wire, block=block), np.random.default_rng(count).standard_normal(count, np.float32) / 32
            yield replace(wire, block=block), np.zeros(count, np.float32)


def faults(wire: Format, x: Array, length: object) -> Iterator[str]:
    """The laws that a format breaks on `x`, of which a message has a declared length."""
    given = x.copy()
    if not isinstance(length, int) or length < 0:
        yield f"encoded_bytes is {length!r}: return the whole number of bytes that encode writes"
    coded, again, other = (encoded(wire, given, fill) for fill in (0, 0, 255))
    if given.tobytes() != x.tobytes():
        yield "encode changes its argument x, from which error feedback computes what was lost: work on a copy"
    for index in np.flatnonzero(coded != again)[:1]:
        yield (f"encode writes byte {index} differently the second time, so no reference can replay it: draw from a "
               "declared seed, as np.random.default_rng([seed, zlib.crc32(x)]) does")
    for index in np.flatnonzero(coded != other)[:1]:
        yield (f"encode leaves byte {index} of {length} unwritten: let encoded_bytes return the number of bytes that "
               "it writes")
    y, filled = decoded(wire, coded, x, 0.0), decoded(wire, coded, x, np.nan)
    for index in np.flatnonzero(bits(y) != bits(filled))[:1]:
        yield f"decode leaves element {index} unwritten or different each time: write all of out, as in out[:] = 0"
    for index in np.flatnonzero(~np.isfinite(y))[:1]:
        yield f"element {index} is {x[index]:.6g} and arrives as {y[index]}: send finite values as finite ones"
    twice = decoded(wire, encoded(wire, y, 0), x, 0.0)
    change = float(np.abs(twice - y).max() / (np.abs(y).max() or 1))
    if not change <= wire.rounding:
        yield (f"decoded values change by {change:.2g} of the largest when they are encoded again, and the declared "
               f"rounding is {wire.rounding:g}: encode what was decoded as itself, or declare @wire_format(rounding=…)")
    if wire.lost is not None:
        wire.lost(given, coded, **wire.settings)
        for index in np.flatnonzero(bits(given) != bits(x - y))[:1]:
            yield (f"residual keeps {given[index]:.6g} of element {index}, but {(x - y)[index]:.6g} was lost: keep x "
                   "minus what is decoded")
    for value in (np.inf, np.nan):
        broken = x.copy()
        broken[len(x) // 2] = value
        if np.isfinite(decoded(wire, encoded(wire, broken, 0), x, 0.0)).all():
            yield (f"{value} at element {len(x) // 2} is lost, so a step that overflows would not be skipped: let "
                   "something that is not finite arrive")


def encoded(wire: Format, x: Array, fill: int) -> Array:
    """The message of `x`, written over bytes of `fill`."""
    out = np.full(wire.encoded_bytes(len(x)), fill, np.uint8)
    wire.encode(x, out)
    return out


def decoded(wire: Format, coded: Array, like: Array, fill: float) -> Array:
    """The values of a message, written over numbers of `fill`."""
    out = np.full_like(like, fill)
    wire.decode(coded, out)
    return out


def bits(values: Array) -> Array:
    return values.view(np.uint32)
