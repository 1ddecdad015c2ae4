"""Loading of a scenario's data set, and sequences of tokens: texts and generated tasks."""

from pathlib import Path

import numpy as np

from zerosim.allocation import Array
from zerosim.data.arrays import given, rows_of_features
from zerosim.data.dataset import DataFault, Dataset
from zerosim.data.tasks import TASKS, task
from zerosim.data.text import read_text, shakespeare, windows_of
from zerosim.errors import ScenarioError
from zerosim.models import MODELS
from zerosim.parts import Named
from zerosim.scenario.origin import shown
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


ALLOWED = ", ".join(f'"{name}"' for name in ("text", *TASKS)) + " or the path of a text file"


def sequences(source: str, sequence: int, vocabulary: int | None, fault: DataFault, folder: Path) -> Dataset:
    """Samples of `sequence` tokens: "text" (Shakespeare), "sort", "reverse", or a user's UTF-8 file.

    A relative path starts in `folder`. `sequence` is at least 1. `vocabulary`, at least 2, is the number of classes;
    None uses the number in the data. `windows_of` documents the windows of a text, `task` the tasks "sort" and
    "reverse". Raises `fault`'s error.

    >>> here = Path()
    >>> text = sequences("text", 64, None, ValueError, here)
    >>> text.kind, text.classes, text.x.shape, text.x_test.shape
    ('tokens', 65, (15685, 64), (256, 64))
    >>> sequences("reverse", 15, 12, ValueError, here).x.shape
    (20000, 15)
    """
    if source in TASKS:
        return task(source, sequence, vocabulary, fault)
    if source == "digits" or source.endswith(".npz"):
        raise fault(f"these are rows of features, not tokens; it must be {ALLOWED}")
    text = shakespeare() if source == "text" else read_text(folder, source, ALLOWED, fault)
    return windows_of(text, sequence, vocabulary, fault)


def tokens_given(arrays: dict[str, Array], vocabulary: int | None, fault: DataFault) -> Dataset:
    """Tokens from a user's function: integers (samples, sequence); y is the target after each token, −1 for none.

    >>> x = np.array([[0, 1, 2], [2, 1, 0]])
    >>> tokens_given({"x": x, "y": (x + 1) % 3}, None, ValueError).classes
    3
    """
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
            raise fault(f"{name} must be integers of shape (samples, sequence), found {array.dtype} of {array.shape}")
    largest = max(int(array.max()) for array in arrays.values())
    classes = vocabulary or largest + 1
    for name, array in arrays.items():
        least = -1 if name.startswith("y") else 0
        if array.shape[1:] != arrays["x"].shape[1:] or len(array) != len(arrays[name.replace("y", "x", 1)]):
            raise fault(f"{name} has shape {array.shape}, and x {arrays['x'].shape}; they must agree")
        if array.min() < least or array.max() >= classes:
            raise fault(f"{name} has the token {int(array.max() if array.max() >= classes else array.min())}; with "
                        f"{classes} tokens they go from {least} to {classes - 1}")
    x_test, y_test = (None if each is None else each.astype(np.int64) for each in map(arrays.get, ("x_test", "y_test")))
    return Dataset(arrays["x"].astype(np.int64), arrays["y"].astype(np.int64), x_test, y_test, classes)
