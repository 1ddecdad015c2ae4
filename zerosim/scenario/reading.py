"""Which files a scenario names to be read."""

from pathlib import Path

from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.schema import Scenario


def files_read(scenario: Scenario | CollectiveScenario) -> dict[str, Path]:
    """What a scenario may read by what it is, the scenario's own file first; names of what is shipped are no file's.

    >>> sorted(files_read(Scenario()))
    ['the data', 'the scenario']
    """
    origin = scenario.origin
    found = {"the scenario": Path(origin.file)}
    if isinstance(scenario, CollectiveScenario):
        for p, program in enumerate(scenario.program):
            for c, call in enumerate(program.calls):
                file = call.rpartition(":")[0]
                if file:
                    found[file] = origin.folder(("program", p, "calls", c)) / file
        return found
    found["the data"] = origin.folder(("data", "source")) / scenario.data.source
    if scenario.model.weights:
        found["what training begins with"] = origin.folder(("model", "weights")) / scenario.model.weights
    return found
