"""The error of values that were quantised for messages, relative to the exact ones.

    relative     ‖arrived − due‖ / ‖due‖, Euclidean, in float64, over all elements
    ulps         the median distance in float32, in representable numbers
    bits         −log₂ of the relative error: the number of correct bits
    residual     ‖residuals of all ranks‖ / ‖due‖, with error feedback: what is still to be sent
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerosim.allocation import Array


@dataclass(frozen=True)
class WireError:
    """The error of arrays after messages; None if it is undefined, as for zeros only."""

    relative: float | None
    ulps: int
    bits: float | None
    residual: float | None


def wire_error(arrived: Sequence[Array], due: Sequence[Array], residuals: Sequence[Array] = ()) -> WireError:
    """The error of all of `arrived` relative to `due`.

    >>> wire_error([np.float32([3.0, 4.5])], [np.float32([3.0, 4.0])])
    WireError(relative=0.1, ulps=524288, bits=3.321928094887362, residual=None)
    """
    found, wanted = (np.concatenate(arrays).astype(np.float64) for arrays in (arrived, due))
    signal = float(np.sqrt(np.square(wanted).sum()))
    relative, kept = (norm / signal if signal else math.nan for norm in (
        float(np.linalg.norm(found - wanted)), float(np.linalg.norm(np.concatenate([*residuals, np.zeros(1)])))))
    apart = np.abs(places(found) - places(wanted))
    return WireError(
        relative if math.isfinite(relative) else None,
        int(np.median(apart)) if len(apart) else 0,
        -math.log2(relative) if relative and math.isfinite(relative) else None,
        kept if len(residuals) and math.isfinite(kept) else None,
    )


def places(values: Array) -> Array:
    """The position of each value among all float32, from the lowest up; both zeros have the same."""
    bits = values.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
