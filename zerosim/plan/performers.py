"""Performers: what runs the operations of a tape on shapes, and charges their time to a clock."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from zerosim.autograd.graph import Step
from zerosim.autograd.operation import Into
from zerosim.core.allocation import Allocator
from zerosim.core.extents import extent, owner
from zerosim.plan.clock import VirtualClock
from zerosim.plan.cluster import Cluster
from zerosim.plan.costs import Costs, scores_of
from zerosim.verdict.shapes import TapeCalls, undrawn


@dataclass(frozen=True, eq=False)
class Performer:
    """Run the operations of a tape on shapes: they take time, and fused ones allocate only what they keep."""

    clock: VirtualClock
    costs: Costs
    allocate: Allocator
    calls: TapeCalls

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """Charge and run one operation's forward or backward, or a loss, which has no step."""
        if step is None:
            self.clock.compute("loss", self.costs.loss_ns(arrays[0].shape))
            software = self.costs.cluster.software
            beside = round(arrays[0].size * software.score_bytes)
            if software.loss == "compiled":
                named["empty"] = in_registers
            held = self.allocate(beside, np.uint8, kind="buffers", owner="loss") if beside else None
            found = self.calls.perform(step, function, *arrays, **named)
            del held
            return found
        self._compute(step, function)
        return self.calls.perform(step, function, *arrays, **named)

    def _compute(self, step: Step, function: Callable[..., Any]) -> None:
        """Charge an operation alone; recomputation stops, as PyTorch's does, once backward has what it needs."""
        if self.costs.cluster.fused and self.clock.doing == "recompute" and not step.for_backward:
            return
        if function is step.instruction.operation.forward:
            self.clock.compute("forward", *self.costs.forward(step))
        else:
            self.clock.compute("backward", *self.costs.backward(step))


def kept_by_fused(
    cluster: Cluster, step: Step | None, function: Callable[..., Any], *arrays: Any, empty: Any, **named: Any
) -> Any:
    """Allocate what a fused kernel keeps: y, and of what forward saves one number per row; the rest stays in registers.

    An operation whose software `keeps` numbers per output keeps these instead, in 16 bits. A loss keeps all.
    """
    if step is None:
        return function(*arrays, empty=empty, **named)
    operation = step.instruction.operation
    if function is operation.backward:
        if operation.sends or not operation.saves:
            function(*arrays, empty=in_registers, **undrawn(named))
            take_gradients(arrays[0], arrays[1], empty)
        return None
    found = function(*arrays, empty=in_registers, **undrawn(named))
    y, saved = found if operation.saves else (found, None)
    y = empty(y.shape, y.dtype)
    if cluster.software.score_keeps and scores_of(step):
        return y, empty(round(scores_of(step) * cluster.software.score_keeps / 2), ml_dtypes.bfloat16)
    if kept := cluster.software.keeps.get(operation.name):
        return y, empty(round(prod(step.shape) * kept), ml_dtypes.bfloat16)
    if saved is None:
        return y
    return y, empty(saved.shape if saved.shape[-1] == 1 else saved.shape[:-1], np.float32)


def take_gradients(upstream: Any, into: Into, empty: Any) -> None:
    """Allocate the gradients that backward set, except views of upstream."""
    for name in [name for name in into.passed if owner(into[name]) is not owner(upstream)]:
        into[name] = empty(into[name].shape, into[name].dtype)


def in_registers(shape: Any, dtype: Any) -> Any:
    """An array on shapes without memory."""
    return extent(shape, dtype, kind="buffers", owner="registers")
