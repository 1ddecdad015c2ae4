"""PyTorch's tensors and reductions as NumPy's.

Arrays share the memory of their tensors; bfloat16 and the 8-bit floats become dtypes of ml_dtypes. A reduction is the
function that adds, and the factor before or the divisor after it.

    avg           the sum in the order of the ring, then divided by the number of ranks
    premul_sum    every rank multiplies by its factor, then the sum

Ranks that reduce in different ways, or tensors of different shapes, would add numbers that do not belong together.
Their messages are therefore sent as elements of a dtype that names the reduction and the shape, and each world refuses
a message of a different dtype.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch.distributed import ReduceOp

from zerosim.allocation import Array
from zerosim.comm import Communicator, ElementByElement, Reduction, SendsFirst
from zerosim.errors import CollectiveError, LengthError
from zerosim.worlds.here import HERE, spaced

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


FUNCTIONS: dict[str, np.ufunc] = {
    "SUM": np.add, "AVG": np.add, "PREMUL_SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}
NAMES = {int(getattr(ReduceOp, name)): name for name in FUNCTIONS}
WHOLE = "?bhilqBHILQ"
"""NumPy's letters for booleans and integers."""


class Reducing(NamedTuple):
    """A reduction of PyTorch, for a given number of ranks."""

    name: str
    function: np.ufunc
    factor: Any = None
    divisor: int | None = None

    def before(self, array: Array) -> None:
        """Scale a rank's contribution, in place."""
        if self.factor is not None:
            np.multiply(array, array.dtype.type(self.factor), out=array)

    def after(self, array: Array) -> None:
        """Divide the sum, in place."""
        if self.divisor is not None:
            np.divide(array, array.dtype.type(self.divisor), out=array)


def reducing(what: str, op: Any, array: Array, size: int) -> Reducing:
    """The reduction of `op` for elements like those of `array`; `what` is the collective.

    Raises `CollectiveError` for a reduction that these elements do not support.

    >>> reducing("reduce", ReduceOp.AVG, np.ones(2), 4).divisor
    4
    >>> reducing("reduce", ReduceOp.AVG, np.ones(2, int), 4)
    Traceback (most recent call last):
    zerosim.errors.CollectiveError: reduce by avg of int64 is not supported; use sum, and divide
    """
    found = of_kind(what, int(getattr(op, "op", op)), array.dtype, size)
    if found.name != "PREMUL_SUM":
        return found
    return found._replace(factor=op.factor.item() if hasattr(op.factor, "item") else op.factor)


@cache
def of_kind(what: str, kind: int, dtype: np.dtype[Any], size: int) -> Reducing:
    """The reduction of this kind, without the factor of a `PREMUL_SUM`."""
    name = NAMES.get(kind, "UNUSED")
    if name not in FUNCTIONS:
        raise CollectiveError(f"{what} by {name.lower()} is not supported; use {', '.join(FUNCTIONS).lower()}")
    if name == "AVG" and dtype.char in WHOLE:
        raise CollectiveError(f"{what} by avg of {dtype} is not supported; use sum, and divide")
    if name in ("BAND", "BOR", "BXOR") and dtype.char not in WHOLE:
        raise CollectiveError(f"{what} by {name.lower()} of {dtype} is not supported: only whole numbers and "
                              "booleans have bits")
    return Reducing(name, FUNCTIONS[name], divisor=size if name == "AVG" else None)


class Unsigned(ElementByElement):
    """`function` for arrays of `dtype`, which has one field: elements of `plain`, under a name that is a signature."""

    def __init__(self, function: np.ufunc, plain: np.dtype[Any], name: str, shape: tuple[int, ...]) -> None:
        self._function, self.plain = function, plain
        self.words = f"{name.lower()} of {list(shape)}"
        self.dtype = np.dtype([(self.words, plain)])

    def reduce_into(self, arrived: Any, into: Any) -> None:
        plain = into[self.words]
        self._function(arrived[self.words], plain, out=plain)


unsigned = cache(Unsigned)
"""Reductions by their arguments, because making one takes longer than a small message."""


class Signed(SendsFirst):
    """A communicator of the messages of one reduction; refuses those of another reduction or of other shapes.

    Its messages are views of arrays as `dtype`, which `function` reduces.
    """

    def __init__(self, comm: Communicator, how: Reducing, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.function = unsigned(how.function, dtype, how.name, shape)
        self.dtype = self.function.dtype
        self._comm = comm

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        if reduce is None:  # ranks that differ do not come here: an all-reduce begins with exchanges that reduce
            outgoing, into = outgoing[self.function.words], into[self.function.words]
        try:
            self._comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)
        except LengthError as error:
            raise self._refusal(error, into, source) from error

    def send(self, outgoing: Array, *, to: int) -> None:
        self._comm.send(outgoing, to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        try:
            self._comm.recv(into=into, source=source, reduce=reduce)
        except LengthError as error:
            raise self._refusal(error, into, source) from error

    def _refusal(self, error: LengthError, into: Array, source: int) -> CollectiveError:
        words, plain = self.function.words, self.function.plain
        if error.arrived.nbytes != into.nbytes:
            said = str(error).replace(" of a different dtype", "").replace(str(self.dtype), f"{plain}, {words}")
            return LengthError(said, error.arrived)
        return CollectiveError(
            f"ranks {self.rank} and {source} of the group differ{spaced(HERE.location)}: rank {self.rank} asks for "
            f"the {words}, {plain}, and rank {source} for another reduction, shape or dtype; give all ranks the same")
