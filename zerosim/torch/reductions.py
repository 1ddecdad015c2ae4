"""PyTorch's reductions as NumPy's: the function that adds, and the factor before or the divisor after it.

    avg           the sum in the order of the ring, then divided by the number of ranks
    premul_sum    every rank multiplies by its factor, then the sum

Ranks that reduce in different ways, or tensors of different shapes, would add numbers that do not belong together.
Their messages are therefore sent as elements of a dtype that names the reduction and the shape, and each world refuses
a message of another dtype.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from torch.distributed import ReduceOp

from zerosim.allocation import Array
from zerosim.comm import Communicator, ElementByElement, Reduction
from zerosim.errors import CollectiveError, LengthError
from zerosim.worlds.delivery import deliver
from zerosim.worlds.here import HERE, spaced

FUNCTIONS: dict[str, Reduction] = {
    "SUM": np.add, "AVG": np.add, "PREMUL_SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}
NAMES = {getattr(ReduceOp, name): name for name in FUNCTIONS}
WHOLE = "?bhilqBHILQ"
"""NumPy's letters for booleans and integers."""


class Reducing(NamedTuple):
    """A reduction of PyTorch, for a given number of ranks."""

    function: Reduction
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
    name = named(op)
    if name not in FUNCTIONS:
        raise CollectiveError(f"{what} by {name.lower()} is not supported; use {', '.join(FUNCTIONS).lower()}")
    letter = array.dtype.char
    if name == "AVG" and letter in WHOLE:
        raise CollectiveError(f"{what} by avg of {array.dtype} is not supported; use sum, and divide")
    if name in ("BAND", "BOR", "BXOR") and letter not in WHOLE:
        raise CollectiveError(f"{what} by {name.lower()} of {array.dtype} is not supported: only whole numbers and "
                              "booleans have bits")
    if name == "PREMUL_SUM":
        factor = op.factor
        return Reducing(np.add, factor.item() if hasattr(factor, "item") else factor)
    return Reducing(FUNCTIONS[name], divisor=size if name == "AVG" else None)


def named(op: Any) -> str:
    """
    >>> named(ReduceOp.SUM), named(ReduceOp(ReduceOp.MAX))
    ('SUM', 'MAX')
    """
    kind = getattr(op, "op", op)
    return NAMES.get(kind) or str(kind.name)


@cache
def signed_dtype(dtype: np.dtype[Any], words: str) -> np.dtype[Any]:
    """The dtype of one field of `dtype` that has `words` as its name."""
    return np.dtype([(words, dtype)])


class Unsigned(ElementByElement):
    """`function` for arrays of the dtype of one field."""

    def __init__(self, function: Reduction, dtype: np.dtype[Any]) -> None:
        self._function, self._dtype = function, dtype

    def reduce_into(self, arrived: Any, into: Any) -> None:
        deliver(arrived.view(self._dtype), into.view(self._dtype), self._function)


class Signed:
    """A communicator of the messages of one reduction; refuses those of another reduction or of other shapes."""

    def __init__(self, comm: Communicator, op: Any, shape: Sequence[int]) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._words = comm, f"{named(op).lower()} of {list(shape)}"

    def exchange(
        self, outgoing: Array, *, to: int, into: Array, source: int, reduce: Reduction | None = None
    ) -> None:
        signed = signed_dtype(into.dtype, self._words)
        self._receive(self._comm.exchange, into, source, reduce, outgoing=outgoing.view(signed), to=to)

    def send(self, outgoing: Array, *, to: int) -> None:
        self._comm.send(outgoing.view(signed_dtype(outgoing.dtype, self._words)), to=to)

    def recv(self, *, into: Array, source: int, reduce: Reduction | None = None) -> None:
        self._receive(self._comm.recv, into, source, reduce)

    def _receive(self, call: Any, into: Array, source: int, reduce: Reduction | None, **sending: Any) -> None:
        how, signed = None if reduce is None else Unsigned(reduce, into.dtype), signed_dtype(into.dtype, self._words)
        try:
            call(into=into.view(signed), source=source, reduce=how, **sending)
        except LengthError as error:
            if error.arrived.nbytes != into.nbytes:
                said = str(error).replace(" of another dtype", "").replace(str(signed), f"{into.dtype}, {self._words}")
                raise LengthError(said, error.arrived) from error
            raise CollectiveError(
                f"ranks {self.rank} and {source} of the group differ{spaced(HERE.location)}: rank {self.rank} asks for "
                f"the {self._words}, {into.dtype}, and rank {source} for another reduction, shape or dtype; give all "
                "ranks the same") from error
