"""Tensors as NumPy arrays that share their memory; bfloat16 and the 8-bit floats become dtypes of ml_dtypes."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from zerosim.allocation import Array
from zerosim.errors import CollectiveError

NARROW = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}
"""The dtypes of PyTorch that NumPy itself lacks: integers of their width, and the dtypes of ml_dtypes."""


class Exported:
    """A tensor for `numpy.from_dlpack`, without the checks of devices and versions that `Tensor.__dlpack__` makes."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return torch._C._to_dlpack_versioned(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def flat(tensor: Any, what: str) -> Array:
    """The elements of a contiguous tensor on one axis, in the tensor's own memory; `what` names the operation in
    errors.

    `Tensor.numpy()` would mark the storage as not resizable, and FSDP1 resizes storages that it has communicated.

    Raises `CollectiveError` for a tensor of another device, a sparse one, and dtypes that NumPy and ml_dtypes lack.

    >>> tensor = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    >>> flat(tensor, "all_reduce")[:] += 1
    >>> tensor
    tensor([2.5000, 3.0000], dtype=torch.bfloat16)
    """
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.dtype in NARROW:
        whole, narrow = NARROW[plain.dtype]
        found: Array = np.from_dlpack(Exported(plain.view(whole))).view(narrow)
        return found.reshape(-1)
    try:
        found = np.from_dlpack(Exported(plain))
    except (BufferError, TypeError, RuntimeError) as error:
        raise CollectiveError(f"{what} of {tensor.dtype} is not supported: {error}") from error
    return found.reshape(-1)


def dense(tensor: Any, what: str) -> Any:
    """`tensor`, or a contiguous copy of it."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise CollectiveError(
            f"{what} of a tensor on {tensor.device}, {tensor.layout} is not supported; use a dense tensor on the CPU")
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


class Landing:
    """Arrays for the results of `what`, in the memory of `tensors` or, for those that are not contiguous, in copies.

    >>> columns = torch.zeros(2, 3).T
    >>> landing = Landing("all_reduce", [columns])
    >>> landing.arrays[0][:] = range(6)
    >>> landing.finish()
    >>> columns.tolist()
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    """

    def __init__(self, what: str, tensors: Sequence[Any]) -> None:
        self.what, self.tensors = what, list(tensors)
        filled = [dense(tensor, what) for tensor in tensors]
        self._apart = [(tensor, copy) for tensor, copy in zip(tensors, filled, strict=True) if copy is not tensor]
        self.arrays = [flat(tensor, what) for tensor in filled]

    def finish(self) -> None:
        """Fill the tensors that are not contiguous from their copies."""
        for tensor, filled in self._apart:
            tensor.detach().copy_(filled)


def inputs(what: str, tensors: Sequence[Any]) -> list[Array]:
    """The elements of `tensors`, to be read: their own memory if they are contiguous, else copies."""
    return [flat(dense(tensor, what), what) for tensor in tensors]
