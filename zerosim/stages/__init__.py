"""The stages, in one visible table."""

from collections.abc import Callable
from dataclasses import dataclass

from zerosim.autograd.tape import Total
from zerosim.stages import ddp, zero1, zero2, zero3
from zerosim.stages.replica import Batch, Initial, Replica


@dataclass(frozen=True)
class Stage:
    """What a rank keeps, what it does in a step, and how far the variants apply to it."""

    title: str
    keep: Callable[[Replica, Initial], None]
    step: Callable[[Replica, Batch], Total]
    publishes: bool
    """Whether a rank updates 1/N of weights that all keep."""
    gathers: bool
    """Whether weights are gathered before use."""
    may_reduce_parts: bool
    """Whether each micro-batch can be reduced by itself."""


STAGES: dict[str, Stage] = {
    "ddp": Stage("DDP", ddp.keep, ddp.step, publishes=False, gathers=False, may_reduce_parts=False),
    "zero1": Stage("Stage I", zero1.keep, zero1.step, publishes=True, gathers=False, may_reduce_parts=False),
    "zero2": Stage("Stage II", zero2.keep, zero2.step, publishes=True, gathers=False, may_reduce_parts=True),
    "zero3": Stage("Stage III", zero3.keep, zero3.step, publishes=False, gathers=True, may_reduce_parts=True),
}
