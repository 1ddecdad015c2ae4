"""What a scenario trains on."""

from zerosim.data.arrays import rows_of_features
from zerosim.data.dataset import Dataset
from zerosim.errors import ScenarioError
from zerosim.scenario.rules import shown
from zerosim.scenario.schema import Scenario

SOURCE = ("data", "source")


def load_dataset(scenario: Scenario) -> Dataset:
    """What `data.source` names: "digits", or an .npz with x, y and perhaps x_test, y_test.

    Samples of any shape are flattened. Integer y are labels, and the largest says how many classes
    there are; float y of shape (samples,) or (samples, outputs) are for regression. Raises
    `ScenarioError`, which blames `data.source` and names the array and the first index at fault.

    >>> digits = load_dataset(Scenario())
    >>> digits.x.shape, digits.outputs, digits.loss
    ((1438, 64), 10, 'cross_entropy')
    """
    source, folder = scenario.data.source, scenario.origin.folder(SOURCE)

    def fault(message: str) -> ScenarioError:
        return scenario.origin.error(f"data.source {shown(source)}: {message}", SOURCE)

    return rows_of_features(source, fault, folder)
