"""Fits the achieved rates of a device to published throughputs: `python -m tests.accuracy --fit DEVICE`.

A device has three numbers, `product_share`, `attention_share` and `memory_share`, which are fitted to its runs without
named software; software has a rate of products over that. A figure is planned at the present numbers, and with each of
them raised; around that its logarithm follows a line. The best numbers have the least mean error over sources, whatever
the number of their figures. The error of a source is *held out* if the numbers are fitted to the other sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, prod
from statistics import fmean

from tests.accuracy.figures import Figure, compare
from zerosim.plan.cluster import machines
from zerosim.scenario.schema import Scenario

SHARES = ("product_share", "attention_share", "memory_share")
NEARBY = 1.15
"""The factor between the two values of a number at which a figure is planned."""
STEPS = (1.3, 1.1, 1.03, 1.01)
"""The factors by which a fit changes a number, up and down, one after the other until none is better."""


@dataclass(frozen=True)
class Sensitivity:
    """A figure's planned over its measured value, and the exponents with which it follows each number."""

    source: str
    ratio: float
    exponents: Mapping[str, float]

    def error(self, factors: Mapping[str, float]) -> float:
        """The size of the error with changed numbers.

        >>> Sensitivity("a", 2.0, {"product_share": -1.0}).error({"product_share": 2.0})
        0.0
        """
        return abs(self.ratio * prod(factors[name] ** each for name, each in self.exponents.items()) - 1)


def sensitivities_of(figures: Sequence[Figure], names: Sequence[str] = SHARES) -> list[Sensitivity]:
    """The sensitivities of figures; five plans each at most."""
    now, _ = compare(figures)
    near = {name: compare([replace(each.figure, scenario=changed(each.figure.scenario, name, NEARBY))
                           for each in now])[0] for name in names}

    def exponents(at: int, planned: float) -> dict[str, float]:
        return {name: log(near[name][at].planned / planned) / log(NEARBY) for name in names}

    return [Sensitivity(each.figure.source, each.planned / each.figure.measured, exponents(at, each.planned))
            for at, each in enumerate(now)]


def changed(scenario: Scenario, name: str, factor: float) -> Scenario:
    """The scenario with a number of its device `factor` times as large."""
    present = getattr(scenario.cluster.figures, name) or machines()["device"][scenario.cluster.device][name]
    figures = replace(scenario.cluster.figures, **{name: present * factor})
    return replace(scenario, cluster=replace(scenario.cluster, figures=figures))


def mean_error(sensitivities: Sequence[Sensitivity], factors: Mapping[str, float]) -> float:
    """The mean over sources of their mean errors."""
    sources = {each.source for each in sensitivities}
    return fmean(fmean(each.error(factors) for each in sensitivities if each.source == source) for source in sources)


def best_factors(sensitivities: Sequence[Sensitivity]) -> dict[str, float]:
    """The factors on the numbers with the least mean error over sources.

    >>> slow = Sensitivity("a", 2.0, {"product_share": -1.0})
    >>> round(best_factors([slow, slow, Sensitivity("b", 2.0, {"product_share": -1.0})])["product_share"], 2)
    2.0
    """
    factors = dict.fromkeys(sensitivities[0].exponents, 1.0)
    for step in STEPS:
        better = True
        while better:
            tried = [factors, *(factors | {name: factors[name] * by} for name in factors for by in (step, 1 / step))]
            best = min(tried, key=lambda each: mean_error(sensitivities, each))
            better, factors = best is not factors, best
    return factors


def held_out(sensitivities: Sequence[Sensitivity]) -> dict[str, list[float]]:
    """The errors of each source with numbers that are fitted to the others."""
    found = {}
    for source in {each.source for each in sensitivities}:
        others = [each for each in sensitivities if each.source != source]
        factors = best_factors(others) if others else dict.fromkeys(sensitivities[0].exponents, 1.0)
        found[source] = [each.error(factors) for each in sensitivities if each.source == source]
    return found
