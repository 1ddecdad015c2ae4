"""The cost of failures in a long training: the best interval between checkpoints, and the goodput.

    δ    seconds to save a checkpoint        R    seconds to restart
    τ    seconds of training between two checkpoints
    M    mean seconds between failures of the job

Young, "A first order approximation to the optimum checkpoint interval" (1974): τ = √(2δM). Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps" (2006), equations 20 and 37. Failures are independent
and exponentially distributed; they also occur while saving and restarting.
"""

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt


@dataclass(frozen=True)
class Failures:
    """The failure rate of a device and the time of a checkpoint and a restart; `device_hours` 0 means no failures.

    >>> one = Failures(device_hours=50_000, checkpoint_seconds=30, restart_seconds=600)
    >>> round(one.seconds_between(16_384)), round(one.interval(16_384)), round(one.goodput(16_384), 3)
    (10986, 792, 0.879)
    """

    device_hours: float = 0.0
    checkpoint_seconds: float = 0.0
    restart_seconds: float = 0.0

    def seconds_between(self, devices: int) -> float:
        """Mean seconds between failures of a job on `devices` devices; a failure of any device ends the job."""
        return self.device_hours * 3600 / devices if self.device_hours else inf

    def interval(self, devices: int) -> float:
        """Daly's seconds of training between checkpoints; infinite without failures, 0 if saving is free."""
        saving, between = self.checkpoint_seconds, self.seconds_between(devices)
        if between == inf:
            return inf
        if saving >= 2 * between:
            return between
        share = sqrt(saving / (2 * between))
        return sqrt(2 * saving * between) * (1 + share / 3 + share * share / 9) - saving

    def goodput(self, devices: int) -> float:
        """The goodput: the share of the time spent on training that no failure undoes, at Daly's interval."""
        between = self.seconds_between(devices)
        if between == inf:
            return 1.0
        every = max(self.interval(devices), 1e-9 * between)
        segment = (every + self.checkpoint_seconds) / between
        if segment > MOST_EXPONENT:
            return 0.0
        return every / between / (exp(self.restart_seconds / between) * expm1(segment))


MOST_EXPONENT = 700.0
"""The exponential of a larger number is no float, and such a segment never finishes."""
