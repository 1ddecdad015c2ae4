"""An injected fault of a rank, at one point of a training.

Faults strike in a run from the start. A run with `--resume` repeats the step without them, as if the broken machine
had been replaced.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from zerosim.core.sharding import Directions
from zerosim.scenario.values import Counted, Natural, below, one_of

FAULT_KINDS = ("kill", "stop", "delay", "slow", "drop", "duplicate", "flip")
OF_MESSAGES = ("drop", "duplicate")
LASTING = {"delay": 1.0, "slow": 0.01}
"""The faults that sleep, and for how many seconds by default."""
OF_STAGES = ("reduce_scatter", "all_gather", "gather_norms", "broadcast")
OF_MODELS = tuple(f"{direction}_{kind}" for direction in Directions(tensor=2, context=2, expert=2).groups
                  for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "shift"))
COLLECTIVES_IN_WORDS = f"{', '.join(OF_STAGES)}, or a model's, such as tensor_all_reduce or context+expert_all_to_all"


@dataclass(frozen=True)
class Fault:
    """One fault.

    kill         the rank's process ends as by `kill -9`
    stop         the process is frozen, as by `kill -STOP`
    delay        the rank sleeps for `seconds`, once
    slow         from the step on the rank sleeps for `seconds` before each message
    drop         the message is not sent
    duplicate    the message is sent twice
    flip         a bit of the message is flipped; without a collective, a bit of the weights that the rank keeps

    It strikes before the message of that number, counted from 1, among those that the rank sends in the collectives of
    that name in the step. Without a collective it strikes when the step begins, a flip when it ends.
    """

    kind: Annotated[str, one_of(FAULT_KINDS)] = "kill"
    rank: Natural = 0
    step: Counted = 1
    collective: Annotated[
        str, one_of(OF_STAGES + OF_MODELS), Meta(extra={"words": COLLECTIVES_IN_WORDS})] | None = None
    message: Counted = 1
    seconds: Annotated[float, below(0, 3600)] | None = None
    bit: Natural = 0

    def problem(self, steps: int, ranks: int) -> tuple[str, str] | None:
        """The key that does not fit the kind, or a run of so many steps and ranks, and why; None if all fit."""
        for key, value, last in (("rank", self.rank, ranks - 1), ("step", self.step, steps)):
            if value > last:
                return key, f"{key} is {value}, but the last {key} is {last}; give an existing {key}"
        if self.kind in OF_MESSAGES and self.collective is None:
            return "kind", f"kind {self.kind} needs a collective; give one of {', '.join(OF_STAGES)}, or a model's"
        if self.message > 1 and (self.collective is None or self.kind == "slow"):
            return "message", (
                "message counts the messages of a collective; add collective, or remove message; a slow fault takes "
                "neither")
        if self.seconds is not None and self.kind not in LASTING:
            return "seconds", f"seconds is for {' and '.join(LASTING)}; remove it from a {self.kind}"
        if self.bit and self.kind != "flip":
            return "bit", f"bit is for flip; remove it from a {self.kind}"
        return None

    @property
    def lasts_seconds(self) -> float:
        """The seconds of a delay, or of each sleep of a slow rank."""
        return LASTING[self.kind] if self.seconds is None else self.seconds

    def __str__(self) -> str:
        """
        >>> str(Fault("flip", rank=1, step=3, collective="all_gather", bit=5))
        'flip of rank 1, step 3, message 1 of all_gather, bit 5'
        """
        where = [f"{self.kind} of rank {self.rank}", f"{'from ' * (self.kind == 'slow')}step {self.step}"]
        if self.collective is not None:
            where.append(self.collective if self.kind == "slow" else f"message {self.message} of {self.collective}")
        if self.kind == "flip":
            where.append(f"bit {self.bit}")
        return ", ".join(where)
