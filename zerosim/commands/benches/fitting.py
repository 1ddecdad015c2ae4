"""The rates of products by software, fitted to published throughputs without those of the source that is judged.

`zerosim/plan/machines.toml` has one such number for some devices and software: the rate of products over that of the
device's runs of MPT. A figure is planned at that number and near it; between and beyond, its logarithm follows a line.
The best number has the least mean error over sources, whatever the number of their figures.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean

from zerosim.commands.benches.published import PublishedFigure, compare
from zerosim.plan.cluster import machines
from zerosim.scenario.schema import Scenario

NEARBY = 1.15
"""The factor between the two rates at which a figure is planned."""
TRIED = [number / 100 for number in range(50, 201)]
"""The factors on a rate that a fit tries."""


@dataclass(frozen=True)
class Course:
    """A figure's planned over its measured value at the present rate, and the exponent with which it follows the rate.
    """

    source: str
    ratio: float
    exponent: float

    def error(self, factor: float) -> float:
        """The size of the error at another rate."""
        return abs(self.ratio * float(factor**self.exponent) - 1)


def best_factor(courses: Collection[Course]) -> float:
    """The factor on the rate with the least mean error over sources.

    >>> best_factor([Course("a", 2.0, -1.0), Course("a", 2.0, -1.0), Course("b", 2.0, -1.0)])
    2.0
    """
    sources = {each.source for each in courses}
    return min(TRIED, key=lambda factor: fmean(
        fmean(each.error(factor) for each in courses if each.source == source) for source in sources))


def courses_of(figures: Sequence[PublishedFigure]) -> list[Course]:
    """The courses of figures."""
    now = compare([replace(each, left_out=at_rate(each.scenario, NEARBY)) for each in figures])
    return [Course(each.figure.source, each.planned / each.figure.measured,
                   log(each.left_out / each.planned) / log(NEARBY)) for each in now]


def at_rate(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with products `factor` times as fast."""
    share = machines()["device"][scenario.cluster.device]["product_share"]
    figures = replace(scenario.cluster.figures, product_share=share * factor)
    return replace(scenario, cluster=replace(scenario.cluster, figures=figures))


def without_sources(figures: Sequence[PublishedFigure]) -> list[PublishedFigure]:
    """The figures, with the scenario at the rate that is fitted without their source, where rates are fitted.

    Without figures of other sources, the rate is that of the device's runs of MPT.
    """
    fitted = [each for each in figures if rate_of(each.scenario) and not each.memory]
    courses = courses_of(fitted)

    def left_out(figure: PublishedFigure) -> PublishedFigure:
        others = [course for each, course in zip(fitted, courses, strict=True)
                  if each.source != figure.source and kind_of(each.scenario) == kind_of(figure.scenario)]
        factor = best_factor(others) if others else 1 / rate_of(figure.scenario)
        return replace(figure, left_out=at_rate(figure.scenario, factor))

    return [left_out(each) if rate_of(each.scenario) else each for each in figures]


def kind_of(scenario: Scenario) -> tuple[str, str]:
    """The device and the software of a scenario with a named device; software with the kernels of another has its rate.
    """
    name = scenario.cluster.software
    return str(scenario.cluster.device), machines()["software"].get(name, {}).get("kernels", name)


def rate_of(scenario: Scenario) -> float:
    """The fitted rate of products of a scenario's device and software; 0 if there is none."""
    device, software = kind_of(scenario)
    found: float = machines()["device"][device].get("products", {}).get(software, 0.0)
    return found
