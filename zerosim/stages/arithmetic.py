"""What decides bits: where sums are rounded, and in which order they are added."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.autograd.tape import Policy
from zerosim.core.orders import Order
from zerosim.core.wires import Format


@dataclass(frozen=True)
class Arithmetic:
    """Where sums are rounded, and the order of operations; stages and the reference follow it alike."""

    compute: np.dtype[Any]
    """Weights are cast to it before use; activations and a micro-batch's gradients have it."""
    products: np.dtype[Any]
    """The dtype of matrix products: another than `compute` with autocast."""
    policy: Policy
    """The dtype of each value of a model's computation."""
    output: np.dtype[Any]
    """The model's outputs are cast to it before the loss."""
    weights_wire: Format | None
    """How each shard is quantised for the all-gather."""
    gradients_wire: Format | None
    """How each chunk that a rank sends is quantised; other ranks receive the quantised values."""
    accumulate: np.dtype[Any]
    wire: np.dtype[Any]
    """The dtypes in which a rank's micro-batches, and then the ranks, are added."""
    accumulates_in_float32: bool
    part_by_part: bool
    """Whether ranks are added before micro-batches."""
    publishes_updates: bool
    """Whether updates are rounded to the precision of the weights, and subtracted from these, instead of from the
    master copy alone."""
    order: Order = field(compare=False)
    """The declared order of addition."""
