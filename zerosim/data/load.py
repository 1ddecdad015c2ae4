"""Loading of a scenario's data set."""

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
    """The data set of `data.source`: rows of features, or sequences of tokens for a transformer.

    The source is "digits", a user's file, folder or function, or for tokens "text", a task, a user's text file or
    function. Samples of any shape are flattened. Integer y are labels, and the largest label determines the number of
    classes; float y of shape (samples,) or (samples, outputs) are for regression. Raises `ScenarioError` at
    `data.source`, with the array and the index of the first error.

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
