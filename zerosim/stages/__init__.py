"""The table of stages; all facts about a stage are read from its row.

The states that a stage shards are stated once, as `SHARDED` in its file. Config, formulas, tables and `zerosim memory`
read them from this table, so a stage is an object and not a string that many modules look up.

DDP writes its all-reduce as reduce-scatter and all-gather. Compared with Stage I, this shows that the all-gather moves
from gradients to weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from zerosim.autograd.tape import Total
from zerosim.core.allocation import Kind
from zerosim.core.parts import Table
from zerosim.core.parts.loading import Declared
from zerosim.stages import ddp, zero1, zero2, zero3
from zerosim.stages.replica import Batch, Replica

StageStep = Callable[[Replica, Batch], Total]
"""One step: updates the weights and returns this rank's part of the loss."""


@dataclass(frozen=True)
class Stage(Declared):
    """One way to divide the work and the memory of model states among ranks."""

    WRITTEN: ClassVar[str] = "step"

    key: str
    """The name that scenarios use."""
    title: str
    also: str
    """The name of the stage in other projects."""
    step: StageStep
    sharded: tuple[Kind, ...]
    """The model states of which a rank keeps 1/N; all others are kept in full."""
    wire: str = ""
    """The precision in which gradients are sent and added over ranks; empty: the scenario's."""
    reduces_parts: bool = False
    """Whether the stage reduces each micro-batch separately, whatever the scenario says."""

    @property
    def gathers(self) -> bool:
        """Whether weights are gathered before use."""
        return "parameters" in self.sharded

    @property
    def may_reduce_parts(self) -> bool:
        """Whether each micro-batch can be reduced separately."""
        return "gradients" in self.sharded or self.reduces_parts

    @property
    def publishes(self) -> bool:
        """Whether a rank updates 1/N of weights that all ranks keep."""
        return "optimizer" in self.sharded and not self.gathers

    @property
    def shares_updates(self) -> bool:
        """Whether a rank updates only its own 1/N, and so needs the other ranks' part of the norm."""
        return "optimizer" in self.sharded

    def on_host(self, optimizer: str, parameters: str) -> tuple[Kind, ...]:
        """The model states on the host, if `optimizer` and `parameters` are `host` or `none`.

        Reduced gradients are on the host with an offloaded optimizer, if ranks keep shards of them. Weights are
        offloaded only if they are gathered.

        >>> STAGES["zero2"].on_host("host", "host"), STAGES["zero3"].on_host("none", "host")
        (('optimizer', 'gradients'), ('parameters',))
        """
        gradients: tuple[Kind, ...] = ("gradients",) if "gradients" in self.sharded else ()
        updated: tuple[Kind, ...] = ("optimizer", *gradients) if optimizer == "host" else ()
        return updated + (("parameters",) if parameters == "host" and self.gathers else ())


STAGES: Table[Stage] = Table({
    stage.key: stage
    for stage in (
        Stage("ddp", "DDP", "ZeRO-0", ddp.step, ddp.SHARDED),
        Stage("zero1", "Stage I", "ZeRO-1", zero1.step, zero1.SHARDED),
        Stage("zero2", "Stage II", "ZeRO-2", zero2.step, zero2.SHARDED),
        Stage("zero3", "Stage III", "ZeRO-3, FSDP FULL_SHARD", zero3.step, zero3.SHARDED),
    )
})
