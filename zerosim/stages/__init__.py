"""The stages, in one visible table."""

from collections.abc import Callable
from dataclasses import dataclass

from zerosim.autograd.tape import Total
from zerosim.stages import ddp, zero1, zero2, zero3
from zerosim.stages.replica import Batch, Initial, Replica


@dataclass(frozen=True)
class Stage:
    """What a rank keeps, what it does in a step, and the bytes this sends in units of P (N − 1)/N.

    P is the bytes of all weights, padded (ZeRO paper, section 7).
    """

    title: str
    keep: Callable[[Replica, Initial], None]
    step: Callable[[Replica, Batch], Total]
    volume: int


STAGES: dict[str, Stage] = {
    "ddp": Stage("DDP", ddp.keep, ddp.step, volume=2),
    "zero1": Stage("Stage I", zero1.keep, zero1.step, volume=2),
    "zero2": Stage("Stage II", zero2.keep, zero2.step, volume=2),
    "zero3": Stage("Stage III", zero3.keep, zero3.step, volume=3),
}
