"""The stages, in one visible table: what is true of each stands here, and everyone who needs to know asks it.

Which states a stage shards is a fact, stated once as `SHARDED` in its file. Config, formulas, tables and `zerosim
memory` read it from this table, so a stage is an object and never a string that many modules look up.

DDP writes its all-reduce as its two halves. Beside Stage I one then sees the all-gather move from gradients to
weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

from zerosim.allocation import Kind
from zerosim.autograd.tape import Total
from zerosim.parts import Table
from zerosim.parts.loading import Declared
from zerosim.stages import ddp, zero1, zero2, zero3
from zerosim.stages.replica import Batch, Replica

StageStep = Callable[[Replica, Batch], Total]
"""One step: it leaves the weights of the next, and returns this rank's part of the loss."""


@dataclass(frozen=True)
class Stage(Declared):
    """One way to share the work and the memory of a model's states among ranks."""

    key: str
    """The name that scenarios use."""
    title: str
    also: str
    """The name that others use."""
    step: StageStep
    sharded: tuple[Kind, ...]
    """The model states of which a rank keeps 1/N; it keeps all of the others."""
    may_reduce_parts: bool
    """Whether each micro-batch can be reduced by itself."""
    wire: str = ""
    """The precision in which its gradients travel and are added over ranks; empty: as the scenario says."""
    reduces_each: bool = False
    """Whether it reduces each micro-batch by itself, whatever the scenario says."""

    @property
    def gathers(self) -> bool:
        """Whether weights are gathered before use."""
        return "parameters" in self.sharded

    @property
    def publishes(self) -> bool:
        """Whether a rank updates 1/N of weights that all keep."""
        return "optimizer" in self.sharded and not self.gathers

    @property
    def shares_updates(self) -> bool:
        """Whether a rank updates only its own 1/N, and so needs to hear of the others' gradients for the norm."""
        return "optimizer" in self.sharded


STAGES: Table[Stage] = Table({
    stage.key: stage
    for stage in (
        Stage("ddp", "DDP", "ZeRO-0", ddp.step, ddp.SHARDED, may_reduce_parts=False),
        Stage("zero1", "Stage I", "ZeRO-1", zero1.step, zero1.SHARDED, may_reduce_parts=False),
        Stage("zero2", "Stage II", "ZeRO-2", zero2.step, zero2.SHARDED, may_reduce_parts=True),
        Stage("zero3", "Stage III", "ZeRO-3, FSDP FULL_SHARD", zero3.step, zero3.SHARDED, may_reduce_parts=True),
    )
})
