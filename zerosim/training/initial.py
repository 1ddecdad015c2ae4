"""The first weights from a file, which must contain exactly the model's parameters."""

from collections.abc import Iterator

from zerosim.data.weights import WeightsFile, weights_file
from zerosim.errors import ScenarioError
from zerosim.numerics.precisions import Precision
from zerosim.scenario import Scenario
from zerosim.scenario.rules import nearest, shown
from zerosim.training.config import Config

KEY = ("model", "weights")
DOUBLE = "F64"
SINGLE_AND_LESS = ("F32", "F16", "BF16")


def first_weights(scenario: Scenario, config: Config) -> WeightsFile | None:
    """The file of `model.weights`; None if there is none.

    Raises `ScenarioError` with the first name, shape or dtype that differs from the model's.
    """
    source = scenario.model.weights

    def fault(message: str) -> ScenarioError:
        return scenario.origin.error(f"model.weights {shown(source)}: {message}", KEY)

    if not source:
        return None
    file = weights_file(source, fault, scenario.origin.folder(KEY))
    for problem in problems(file, config):
        raise fault(problem)
    return file


def problems(file: WeightsFile, config: Config) -> Iterator[str]:
    """The differences between a file and the model, in words."""
    due = {place.name: place.shape for place in config.model.places}
    for name in due:
        if name not in file.shapes:
            near = nearest(name, file.shapes)
            yield f"there is no array {shown(name)}{f', there is {shown(near)}' if near else ''}; but the model has one"
    for name in file.shapes:
        if name not in due:
            near = nearest(name, due)
            yield f"the model has no parameter {shown(name)}{f', it has {shown(near)}' if near else ''}; leave it out"
    for name, shape in due.items():
        if file.shapes[name] != shape:
            yield f"{name} has shape {list(file.shapes[name])}, and in the model {list(shape)}"
        if file.dtypes[name] not in allowed(config.precision):
            yield (f"{name} is {file.dtypes[name]}; train.precision {config.precision.name} begins with "
                   f"{', '.join(allowed(config.precision))}, which it holds exactly")


def allowed(precision: Precision) -> tuple[str, ...]:
    """The dtypes that the precision of updates represents exactly."""
    return (DOUBLE, *SINGLE_AND_LESS) if precision.state.itemsize == 8 else SINGLE_AND_LESS
