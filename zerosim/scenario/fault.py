"""What befalls a rank on purpose, at one moment of a training.

The supervisor or Slurm (`SLURM_RESTART_COUNT`) counts runs, and `after_restarts` says in which of them a fault
strikes. A run with `--resume` counts as one restart at least.
"""

from dataclasses import dataclass

from zerosim.scenario.fields import choice, integer, maybe_choice, number

KINDS = ("kill", "stop", "delay", "slow", "drop", "duplicate", "flip")
OF_MESSAGES = ("drop", "duplicate")
LASTING = ("delay", "slow")
COLLECTIVES = ("reduce_scatter", "all_gather", "gather_norms", "broadcast")
DELAY_SECONDS = 1.0
SLOW_SECONDS = 0.01


@dataclass(frozen=True)
class Fault:
    """One fault.

    kill         the rank's process ends as by `kill -9`
    stop         it is frozen, as by `kill -STOP`
    delay        it sleeps so many seconds, once
    slow         from the step on it sleeps so many seconds before each message
    drop         the message is not sent
    duplicate    it is sent twice
    flip         a bit of it is another one; without a collective, a bit of the weights that the rank keeps

    It strikes before the message of that number, from 1, which the rank sends in the collectives of that name in the
    step; without a collective as the step begins, a flip as it ends.
    """

    kind: str = choice("kill", KINDS)
    rank: int = integer(0, at_least=0)
    step: int = integer(1, at_least=1)
    collective: str | None = maybe_choice(COLLECTIVES)
    message: int = integer(1, at_least=1)
    seconds: float | None = number(None, at_least=0, below=3600)
    """The seconds of a delay, 1 if nothing is said; for what is slow, 0.01."""
    bit: int = integer(0, at_least=0)
    """Which bit is flipped, counted from the lowest of the first byte; beyond the end, from the beginning again."""
    after_restarts: int = integer(0, at_least=0)
    """In which run of a training it strikes: 0, in the one that begins it; 1, in the first that goes on."""

    @property
    def problem(self) -> tuple[str, str] | None:
        """The key that does not go with the kind, and why, in words."""
        if self.kind in OF_MESSAGES and self.collective is None:
            return "kind", f"kind {self.kind} needs a collective; give one of {', '.join(COLLECTIVES)}"
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
        """How long a delay is, or each of those of a slow rank."""
        if self.seconds is not None:
            return self.seconds
        return DELAY_SECONDS if self.kind == "delay" else SLOW_SECONDS

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
