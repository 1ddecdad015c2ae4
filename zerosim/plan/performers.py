"""Performers: what runs the operations of a tape on shapes, and charges their time to a clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from zerosim.autograd.graph import Graph, GraphPlan, Instruction, Step
from zerosim.autograd.operations.elementwise import multiply
from zerosim.autograd.selection import is_product
from zerosim.autograd.tape import Policy
from zerosim.core.allocation import Allocator
from zerosim.core.extents import Extent, extent, owner
from zerosim.plan.clock import VirtualClock
from zerosim.plan.costs import Costs, scores_of
from zerosim.plan.software import WHOLE_SCORES, Software
from zerosim.verdict.shapes import TapeCalls, undrawn


@dataclass(frozen=True, eq=False)
class Performer:
    """Run the operations of a tape on shapes: they take time, and fused ones allocate only what they keep."""

    clock: VirtualClock
    costs: Costs
    allocate: Allocator
    calls: TapeCalls

    def perform(self, step: Step | None, function: Callable[..., Any], *arrays: Any, **named: Any) -> Any:
        """Charge and run one operation's forward or backward, or a loss, which has no step.

        Recomputation takes time only, as PyTorch's does, until backward has what it needs.
        """
        if step is None:
            self.clock.compute("loss", self.costs.loss_ns(arrays[0].shape))
            software = self.costs.cluster.software
            widened = round(arrays[0].size * WHOLE_SCORES)
            if software.loss == "compiled":
                named["empty"] = in_registers
            held = software.loss == "whole" and self.allocate(widened, np.uint8, kind="buffers", owner="loss")
            result = self.calls.perform(step, function, *arrays, **named)
            del held
            return result
        if not (self.costs.cluster.fused and self.clock.doing == "recompute" and not step.for_backward):
            way = "forward" if function is step.instruction.operation.forward else "backward"
            self.clock.compute(way, *self.costs.of_operation(step, way))
        return self.calls.perform(step, function, *arrays, **named)


@dataclass(frozen=True, eq=False)
class FusedKernels:
    """A performer that runs operations as fused kernels of a software, in the precision `dtype`.

    They keep y, and of what forward saves one number per row; the rest stays in registers. An operation of which the
    software `keeps` numbers per output keeps these too, in 16 bits. A loss keeps all. Outputs that it `fuses` are not
    in memory: an activated gate, which is one kernel with the product that reads it, and the gathered input of
    products, of which the piece stays and is gathered again. Equal operations of equal layers are run once forward, for
    the shapes of what they keep.
    """

    software: Software
    dtype: np.dtype[Any]
    _kept: dict[tuple[Any, ...], list[tuple[Any, Any]]] = field(default_factory=dict)
    _fused: set[Instruction] = field(default_factory=set)
    """Activations of a gate and their products, and gathers of what products alone read."""
    _seen: set[Graph] = field(default_factory=set)

    def plan_of(self, inner: Policy, plan: GraphPlan, dtype: np.dtype[Any]) -> GraphPlan:
        """The plan by the tape's policy `inner`, of whose graph it is noted what the software fuses."""
        plan = inner(plan, dtype)
        if self.software.fuses and plan.graph not in self._seen:
            self._seen.add(plan.graph)
            for instruction in plan.graph.instructions:
                output = instruction.output
                readers = [other for other in plan.graph.instructions if output in other.inputs.values()]
                if instruction.operation.name not in self.software.fuses or output == plan.graph.output.slot:
                    continue
                if [other.operation for other in readers] == [multiply]:
                    self._fused.update([instruction, *readers])
                elif all("weight" in other.inputs and is_product(other) for other in readers):
                    self._fused.add(instruction)
        return plan

    def __call__(self, step: Step | None, function: Callable[..., Any], *arrays: Any, empty: Any, **named: Any) -> Any:
        if step is None:
            return function(*arrays, empty=empty, **named)
        operation = step.instruction.operation
        if function is operation.backward:
            return self._backward(step, function, arrays, empty, named)
        key = step, *(array.dtype for array in arrays)
        if operation.sends or key not in self._kept:
            result = function(*arrays, empty=in_registers, **undrawn(named))
            self._kept[key] = self._kept_of(step, *(result if operation.saves else (result,)))
        if step.instruction in self._fused and operation is not multiply:
            (shape, dtype), *_ = self._kept[key]
            return Extent(shape, dtype, empty(arrays[0].shape, dtype) if operation.sends else None)
        kept = [empty(shape, dtype) for shape, dtype in self._kept[key]]
        return tuple(kept) if len(kept) > 1 else kept[0]

    def _backward(
        self, step: Step, function: Callable[..., Any], arrays: Sequence[Any], empty: Any, named: dict[str, Any]
    ) -> None:
        """Take memory for gradients, unless they are written where others were."""
        upstream, into = arrays[0], arrays[1]
        if step.instruction in self._fused and step.instruction.operation is multiply:
            into["x"], into["other"] = in_registers(step.shape, self.dtype), upstream
        elif step.instruction.operation.sends or {*step.wanted} & {*step.instruction.operation.passes}:
            function(*arrays, empty=in_registers, **undrawn(named))
            for name in [name for name in into.passed if owner(into[name]) is not owner(upstream)]:
                into[name] = empty(into[name].shape, into[name].dtype)
        elif not step.instruction.operation.saves:
            for name in into:       # all at once, as the operation would take them
                into.get(name)

    def _kept_of(self, step: Step, y: Any, saved: Any = None) -> list[tuple[Any, Any]]:
        """The shapes and dtypes of what is kept."""
        software = self.software
        results = [(y.shape, y.dtype if y.dtype.kind == "i" else step.dtype or self.dtype)]
        if software.score_keeps and scores_of(step):
            return [*results, (round(scores_of(step) * software.score_keeps / 2), self.dtype)]
        if kept := software.keeps.get(step.instruction.operation.name):
            return [*results, (round(prod(step.shape) * kept), self.dtype)]
        rows = saved is not None and (saved.shape if saved.shape[-1] == 1 else saved.shape[:-1])
        return [*results, (rows, np.float32)] if saved is not None else results


in_registers = partial(extent, kind="buffers", owner="registers")
"""An array on shapes without memory."""
