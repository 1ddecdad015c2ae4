"""What failures cost a long training: how often to save, and which share of the time is training.

    δ    seconds to save a checkpoint        R    seconds to restart
    τ    seconds of training between two checkpoints
    M    mean seconds between failures of the job

Young, "A first order approximation to the optimum checkpoint interval" (1974): τ = √(2δM). Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps" (2006), equations 20 and 37. Failures are independent and
exponentially distributed, and strike while saving and restarting too.
"""

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt


@dataclass(frozen=True)
class Failures:
    """How often one device fails, and what a checkpoint and a restart take; `device_hours` of 0: it never does.

    >>> one = Failures(device_hours=50_000, checkpoint_seconds=30, restart_seconds=600)
    >>> round(one.seconds_between(16_384)), round(one.interval(16_384)), round(one.goodput(16_384), 3)
    (10986, 792, 0.879)
    """

    device_hours: float = 0.0
    checkpoint_seconds: float = 0.0
    restart_seconds: float = 0.0

    def seconds_between(self, devices: int) -> float:
        """Mean seconds between failures of a job on so many devices, any of which ends it."""
        return self.device_hours * 3600 / devices if self.device_hours else inf

    def interval(self, devices: int) -> float:
        """Daly's seconds of training between checkpoints; infinite where nothing fails, 0 where saving is free."""
        saving, between = self.checkpoint_seconds, self.seconds_between(devices)
        if between == inf:
            return inf
        if saving >= 2 * between:
            return between
        share = sqrt(saving / (2 * between))
        return sqrt(2 * saving * between) * (1 + share / 3 + share * share / 9) - saving

    def young(self, devices: int) -> float:
        """Young's interval, which Daly's refines."""
        return sqrt(2 * self.checkpoint_seconds * self.seconds_between(devices))

    def goodput(self, devices: int) -> float:
        """The share of the time that is training which no failure undoes, at Daly's interval."""
        between = self.seconds_between(devices)
        if between == inf:
            return 1.0
        every = max(self.interval(devices), 1e-9 * between)
        segment = (every + self.checkpoint_seconds) / between
        if segment > MOST_EXPONENT:
            return 0.0
        return every / between / (exp(self.restart_seconds / between) * expm1(segment))


MOST_EXPONENT = 700.0
"""Beyond this e to its power is no float, and a segment is never finished."""
