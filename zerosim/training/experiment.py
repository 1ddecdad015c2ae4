"""A scenario made ready to run: a config for each row, and the data they all take."""

from dataclasses import dataclass, replace

from zerosim.data import Dataset
from zerosim.models.units import Task
from zerosim.scenario import Scenario
from zerosim.stages import STAGES
from zerosim.training.config import Config, configured


@dataclass(frozen=True, eq=False)
class Experiment:
    """A scenario, its samples, and its rows in the order in which they are trained."""

    scenario: Scenario
    dataset: Dataset
    rows: tuple[Config, ...]


def prepare(scenario: Scenario, dataset: Dataset) -> Experiment:
    """The rows of a scenario, with models as wide as the data.

    Raises `ScenarioError` when a test accuracy is wanted of data that cannot give one, or a unit is frozen in part.
    """
    if scenario.check.test_accuracy and (dataset.x_test is None or dataset.classes is None):
        raise scenario.origin.error(
            "check.test_accuracy needs integer labels and a test split, x_test and y_test, in data.source",
            ("check", "test_accuracy"),
        )
    names = scenario.names({key: stage.title for key, stage in STAGES.items()})
    task = Task(dataset.inputs, dataset.outputs, dataset.loss)
    rows = tuple(
        configured(replace(row, name=name), task)
        for name, row in zip(names, scenario.rows, strict=True)
    )
    return Experiment(scenario, dataset, rows)
