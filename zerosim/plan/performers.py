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
from zerosim.plan.calls import loud, silent
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
            found = self._sending(step, function, *arrays, **named)
            del held
            return found
        self._compute(step, function)
        return self._sending(step, function, *arrays, **named)

    def charge(self, step: Step, function: Callable[..., Any]) -> None:
        """Charge an operation, and the collectives that it calls, to the clock."""
        self._compute(step, function)
        self.calls.charge(step, function)

    def _compute(self, step: Step, function: Callable[..., Any]) -> None:
        """Charge an operation alone; recomputation stops, as PyTorch's does, once backward has what it needs."""
        if self.costs.cluster.fused and self.clock.doing == "recompute" and not step.for_backward:
            return
        if function is step.instruction.operation.forward:
            self.clock.compute("forward", *self.costs.forward(step))
        else:
            self.clock.compute("backward", *self.costs.backward(step))

    def _sending(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """Run an operation, and charge the collectives that it calls."""
        found = self.carry_out(step, function, *arrays, **named)
        self.calls.charge(step, function)
        return found

    def carry_out(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """Run an operation without charging it."""
        return self.calls.carry_out(step, function, *arrays, **named)


class CallByCall(Performer):
    """A performer for devices with rates for calls: each call in an operation's code is charged."""

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """Charge the calls, then run the operation; the calls of a loss charge themselves."""
        if step is None:
            return self._sending(step, function, *arrays, **named)
        quiet, named = tuple(map(silent, arrays)), {name: silent(each) for name, each in named.items()}
        self._charge_calls(step, function, quiet, named)
        empty = named.pop("empty")
        found = self._sending(step, function, *quiet, **named, empty=lambda *shape: silent(empty(*shape)))
        for into, silenced in zip(arrays, quiet, strict=True):
            if isinstance(into, Into):
                for name in silenced.passed:
                    into[name] = silenced[name]
        return tuple(map(loud, found)) if isinstance(found, tuple) else loud(found)

    def _charge_calls(
        self, step: Step, function: Callable[..., Any], arrays: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        """Charge the calls in the function's code."""
        given = {name: each for name, each in named.items() if name not in ("empty", "draws")}
        what = "forward" if function is step.instruction.operation.forward else "backward"
        key = (function, *(described(each) for each in (*arrays, *given.values())))
        self.clock.compute(what, *self.costs.of_calls(key, function, arrays, undrawn(named)))


def described(value: Any) -> Any:
    """The part of an argument that determines shapes."""
    if isinstance(value, Into):
        return tuple(value.shapes.items())
    if hasattr(value, "shape"):
        return value.shape, value.dtype
    return value if value.__hash__ else repr(value)


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
