"""Allocation: one small protocol that allocates every array of a training run, and that a memory ledger can wrap."""

import mmap
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers"]
"""The purpose of an array."""

Tier = Literal["device", "host"]
"""The memory that holds an array."""

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


def allocate_on_host(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Array:
    """Anonymous shared pages, freed with the array, which no limit on a process's own memory counts (`RssShmem`).

    >>> allocate_on_host(3, np.float32, kind="optimizer", owner="layers.0").nbytes
    12
    """
    wanted = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not wanted:
        return np.empty(shape, dtype)
    try:
        pages = mmap.mmap(-1, wanted)
    except OSError as error:
        raise MemoryError(str(error)) from None
    return np.frombuffer(pages, dtype).reshape(shape)
