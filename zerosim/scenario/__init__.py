"""A TOML file -> a frozen dataclass, or an error with line and column."""

from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.load import Source, load
from zerosim.scenario.origin import Origin
from zerosim.scenario.schema import Scenario, resolved
from zerosim.scenario.sections import Check, Data, ModelKeys, Parallel, Train, WorldKeys

__all__ = [
    "load", "resolved", "Scenario", "Source", "CollectiveScenario", "WorldKeys", "Data", "ModelKeys", "Train",
    "Parallel", "Check", "Origin",
]
