"""Allocation: one small protocol that allocates every array of a training run, and that a memory ledger can wrap."""

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers"]
"""The purpose of an array."""

Tier = Literal["device", "host", "disk"]
"""The memory that holds an array: the device's, the host's, or a file."""

MODEL_STATES: tuple[Kind, ...] = ("parameters", "gradients", "optimizer")
"""The kinds that a stage may shard; activations and buffers are no model states."""


class Allocator(Protocol):
    """Allocates arrays; `kind` and `owner` tell a ledger the purpose of each array and the unit that owns it."""

    def __call__(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str
    ) -> Array:
        """A C-contiguous array with undefined contents. It is freed with its last reference."""


def allocate(
    shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str
) -> Array:
    """Plain memory from NumPy, without a ledger.

    >>> allocate(3, np.float32, kind="buffers", owner="layers.0").nbytes
    12
    """
    return np.empty(shape, dtype)
