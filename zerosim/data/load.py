"""Loads the data set that a scenario names."""

from zerosim.data.arrays import rows_of_features
from zerosim.data.dataset import Dataset
from zerosim.data.own import given
from zerosim.data.sequences import sequences, tokens_given
from zerosim.data.tasks import TASKS
from zerosim.errors import ScenarioError
from zerosim.models import MODELS
from zerosim.parts import Named
from zerosim.scenario.rules import shown
from zerosim.scenario.schema import Scenario

SOURCE = ("data", "source")
SEQUENCE_OF_A_TEXT = 64
SEQUENCE_OF_A_TASK = 15


def load_dataset(scenario: Scenario) -> Dataset:
    """What `data.source` names: "digits", or an .npz with x, y and perhaps x_test, y_test; sequences of tokens for a
    transformer.

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

    model = scenario.model
    if MODELS[model.kind].reads_tokens:
        if model.vocabulary == 1:
            raise scenario.origin.error("model.vocabulary must be 0, the data's, or at least 2, found 1",
                                        ("model", "vocabulary"))
        if isinstance(source, Named):
            return tokens_given(given(source, dict(scenario.data.own), fault), model.vocabulary or None, fault)
        length = model.sequence or (SEQUENCE_OF_A_TASK if source in TASKS else SEQUENCE_OF_A_TEXT)
        return sequences(source, length, model.vocabulary or None, fault, folder)
    if source in (*TASKS, "text"):
        raise fault('an mlp trains on rows of features; set model.kind to "transformer", or data.source to "digits"')
    return rows_of_features(scenario.data, fault, folder)
