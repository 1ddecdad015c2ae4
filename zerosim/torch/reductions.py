"""PyTorch's reductions as NumPy's: the function that adds, and the factor before or the divisor after it.

    avg           the sum in the order of the ring, then divided by the number of ranks
    premul_sum    every rank multiplies by its factor, then the sum
"""

from typing import Any, NamedTuple

import numpy as np
from torch.distributed import ReduceOp

from zerosim.allocation import Array
from zerosim.comm import Reduction
from zerosim.errors import CollectiveError

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
