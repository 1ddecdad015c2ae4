"""The samples of all benches: what was measured, its figures round by round, and the ratio of two of them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SampleRow = dict[str, Any]
"""A sample's document, a row of a table and of `zerosim.bench/1`."""


@dataclass(frozen=True)
class Sample:
    """One measured task: its names, its figures round by round, and figures of all rounds.

    Two figures by rounds are compared: they were measured by turns, so their ratio is taken within each round. Names of
    figures end with their unit, such as `step_seconds`.

    >>> Sample({"what": "traced"}, {"with_seconds": [3.0, 8.0, 1.0], "without_seconds": [2.0, 8.0, 2.0]}).document()
    {'what': 'traced', 'with_seconds': 3.0, 'without_seconds': 2.0, 'ratio': 1.0, 'ratio_range': [0.5, 1.5]}
    """

    names: Mapping[str, Any]
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    shared_by: int = 1
    """The ranks among which the second figure is divided before the comparison."""

    @property
    def ratios(self) -> list[float]:
        """The first figure over the second, in every round; empty unless there are two."""
        if len(self.rounds) != 2:
            return []
        return [one / (other / self.shared_by) for one, other in zip(*self.rounds.values(), strict=True)]

    def document(self) -> SampleRow:
        """The sample as JSON types: medians of all rounds; of ratios also the least and the greatest."""
        medians = {name: statistics.median(values) for name, values in self.rounds.items()}
        ratios = self.ratios
        compared = {"ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]} if ratios else {}
        return {**self.names, **medians, **self.figures, **compared}
