"""Allocation: one small protocol that hands out every array of a training run, and that a memory ledger can wrap."""

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers"]
"""What an array is for."""

Tier = Literal["device", "host", "disk"]
"""Where an array is: in the memory that a device computes with, in that of its host, or in a file."""

MODEL_STATES: tuple[Kind, ...] = ("parameters", "gradients", "optimizer")
"""The kinds that a stage may shard; activations and buffers are no model states."""


class Allocator(Protocol):
    """Hands out arrays; `kind` and `owner` say what for and for whom, to whoever keeps the ledger."""

    def __call__(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str
    ) -> Array:
        """A C-contiguous array whose contents are not defined. It is freed when nobody holds it."""


def allocate(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str
) -> Array:
    """Plain memory from NumPy, without a ledger.

    >>> allocate(3, np.float32, kind="buffers", owner="layers.0").nbytes
    12
    """
    return np.empty(shape, dtype)
