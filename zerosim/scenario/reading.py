"""The files that a scenario names, by purpose; the scenario's own file comes first."""

from pathlib import Path

from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.parts import parts_in
from zerosim.scenario.schema import Scenario


def files_of_training(scenario: Scenario) -> dict[str, Path]:
    """The files that a training may read, including the name of shipped data as if it were a file.

    >>> sorted(files_of_training(Scenario()))
    ['the data', 'the scenario']
    """
    origin = scenario.origin
    found = {"the scenario": Path(origin.file), "the data": origin.folder(("data", "source")) / scenario.data.source}
    for where, part in parts_in(scenario):
        file = part.rpartition(":")[0]
        if file.endswith(".py"):
            found[f"the code of {where}"] = origin.folder(tuple(where.split("."))) / file
    if scenario.model.weights:
        found["what training begins with"] = origin.folder(("model", "weights")) / scenario.model.weights
    return found


def files_of_collectives(scenario: CollectiveScenario) -> dict[str, Path]:
    """The files whose functions a scenario of collectives calls."""
    origin = scenario.origin
    found = {"the scenario": Path(origin.file)}
    for p, program in enumerate(scenario.program):
        for c, call in enumerate(program.calls):
            file = call.rpartition(":")[0]
            if file:
                found[file] = origin.folder(("program", p, "calls", c)) / file
    return found
