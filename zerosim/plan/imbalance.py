"""Uneven experts: the rank whose experts serve the most tokens, for which the others wait, and the tokens dropped.

    share      an expert's tokens over their mean; all shares have the mean 1
    served     the smaller of an expert's share and `model.capacity_factor`; further tokens are dropped
    busiest    the rank with the largest mean of `served` over its experts, which are neighbours

A step is planned as that of the busiest rank: its queues are as long as its experts serve on average, so its products,
the all-to-alls that wait for it and the memory of its queues follow from the model's code. With all experts on a rank
the mean is at most 1. Without shares queues are padded to `model.capacity_factor`, as in zerosim's own runs.

Zipf's law: expert i has a share in proportion to 1/iˢ. Sequences are assumed alike, as are blocks.
"""

from dataclasses import dataclass, replace
from statistics import mean
from typing import NamedTuple

from zerosim.models import build
from zerosim.scenario.sections import ModelKeys
from zerosim.training.config import Config


class Busiest(NamedTuple):
    """The load of the busiest rank in even shares, and the part of all tokens' choices that is dropped."""

    load: float
    dropped: float


@dataclass(frozen=True)
class ExpertLoad:
    """The uneven load of experts: a share of each, the first one's load if that is the only one, or Zipf's exponent."""

    given: tuple[float, ...] = ()
    zipf: float = 0.0

    @property
    def any(self) -> bool:
        return bool(self.given or self.zipf)

    def problem(self, model: ModelKeys) -> str:
        """The reason why a model cannot have this load; empty if it can."""
        if not self.any:
            return ""
        if model.kind != "mixture":
            return f"the load of experts is for model.kind mixture, and this is {model.kind}; leave it out"
        if self.given and self.zipf:
            return "expert_load and expert_zipf say the same; leave one out"
        if len(self.given) not in (0, 1, model.experts):
            return f"found {len(self.given)} shares for {model.experts} experts; give one for each, or the largest"
        if len(self.given) == 1 and not 1 <= self.given[0] <= model.experts:
            return f"the busiest expert has 1 even share at least and {model.experts} at most; found {self.given[0]:g}"
        return "" if not self.given or max(self.given) > 0 else "all shares are 0; give one above 0"

    def shares(self, experts: int) -> list[float]:
        """The share of each expert.

        >>> ExpertLoad((2.5,)).shares(4), ExpertLoad((2, 1, 1, 0)).shares(4), ExpertLoad(zipf=1.0).shares(2)
        ([2.5, 0.5, 0.5, 0.5], [2.0, 1.0, 1.0, 0.0], [1.3333333333333333, 0.6666666666666666])
        """
        if len(self.given) == 1 < experts:
            (first,) = self.given
            return [first, *[(experts - first) / (experts - 1)] * (experts - 1)]
        wanted = self.given or [1 / number**self.zipf for number in range(1, experts + 1)]
        return [each * experts / sum(wanted) for each in wanted]

    def busiest(self, experts: int, ranks: int, capacity: float) -> Busiest:
        """The busiest of `ranks` ranks with neighbouring experts.

        >>> ExpertLoad((2.5,)).busiest(4, ranks=2, capacity=2.0)
        Busiest(load=1.25, dropped=0.125)
        """
        served = [min(each, capacity) for each in self.shares(experts)]
        mine = experts // ranks
        load = max(mean(served[first : first + mine]) for first in range(0, experts, mine))
        return Busiest(load, 1 - mean(served))


def busiest_of(config: Config, load: ExpertLoad) -> Busiest:
    """The busiest rank of a mixture."""
    model = config.keys
    mine = next(place.shape[0] for place in config.model.places if place.name.endswith(".outer"))
    return load.busiest(model.experts, model.experts // mine, model.capacity_factor)


def on_the_busiest(config: Config, load: ExpertLoad) -> Config:
    """The config of the busiest rank; of even experts, the same."""
    if not load.any:
        return config
    keys = replace(config.keys, capacity_factor=busiest_of(config, load).load)
    return replace(config, keys=keys, model=build(keys, config.model.task, config.layers))
