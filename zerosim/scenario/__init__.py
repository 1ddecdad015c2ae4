"""A TOML file -> a frozen dataclass, or an error with file, line and key.

    values.py      the kinds of values, as annotations, and in words
    sections.py    what training has; machine.py the machine of a plan; fault.py faults; collective.py the other kind
    reading.py     a table -> a section; where a key is written
    conditions.py  what keys must satisfy together
    load.py        a file and overrides -> a scenario; schema.py its rows
"""

from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.load import Source, load
from zerosim.scenario.reading import Origin
from zerosim.scenario.schema import Scenario, resolved
from zerosim.scenario.sections import Check, Data, ModelKeys, Parallel, Train, WorldKeys

__all__ = [
    "load", "resolved", "Scenario", "Source", "CollectiveScenario", "WorldKeys", "Data", "ModelKeys", "Train",
    "Parallel", "Check", "Origin",
]
