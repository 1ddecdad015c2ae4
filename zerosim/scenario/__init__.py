"""A TOML file -> a frozen dataclass, or an error with line and column."""

from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.load import load
from zerosim.scenario.origin import Origin
from zerosim.scenario.schema import (
    Check,
    Data,
    Model,
    Parallel,
    Scenario,
    Train,
    World,
    resolved,
)

__all__ = [
    "load",
    "resolved",
    "Scenario",
    "CollectiveScenario",
    "World",
    "Data",
    "Model",
    "Train",
    "Parallel",
    "Check",
    "Origin",
]
