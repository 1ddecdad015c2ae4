"""A scenario ready to run: a config for each row, and the data of all rows."""

import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

from zerosim.data import Dataset, bigram_loss
from zerosim.errors import OffloadError
from zerosim.models import MODELS
from zerosim.models.units import Task
from zerosim.numerics.digests import little_endian
from zerosim.scenario import Scenario
from zerosim.scenario.schema import OFFLOAD_FOLDER
from zerosim.stages import STAGES
from zerosim.training.config import Config, configured
from zerosim.training.initial import first_weights
from zerosim.training.offload import OffloadFile
from zerosim.training.tiers import MappedFile


@dataclass(frozen=True, eq=False)
class Experiment:
    """A scenario, its samples, and its rows in the order of training."""

    scenario: Scenario
    dataset: Dataset
    rows: tuple[Config, ...]

    @cached_property
    def data_sha256(self) -> str:
        """The digest of the samples with dtypes and shapes, and of the file of the first weights, if there is one."""
        file = self.rows[0].initial
        found = hashlib.sha256(file.sha256.encode() if file else b"")
        for array in self.dataset.arrays:
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(little_endian(array.ravel()))
        return found.hexdigest()


def prepare(scenario: Scenario, dataset: Dataset) -> Experiment:
    """The rows of a scenario, with models that fit the data.

    Raises `ScenarioError` for claims that the data cannot support, for sizes of a model that do not fit, for a partly
    frozen unit, and for a folder in which no file can be made.
    """
    check_claims(scenario, dataset)
    check_model(scenario, dataset)
    names = scenario.names({key: stage.title for key, stage in STAGES.items()})
    task = Task(dataset.inputs, dataset.outputs, dataset.loss, tokens=dataset.kind == "tokens")
    claimed = scenario.check.test_loss
    bar = bigram_loss(dataset) if isinstance(claimed, str) else claimed
    with scenario.origin.blaming(("model", "kind")):
        configs = [
            configured(replace(row, name=name, claims=replace(row.claims, test_loss=bar)), task)
            for name, row in zip(names, scenario.rows, strict=True)
        ]
    initial = first_weights(scenario, configs[0])
    rows = tuple(replace(config, initial=initial) for config in configs)
    check_folder(scenario, rows)
    return Experiment(scenario, dataset, rows)


def check_folder(scenario: Scenario, rows: Sequence[Config]) -> None:
    """Refuse a folder for offloading in which no file can be made."""
    for config in rows:
        folder, files = config.row.parallel.offload_folder, list[OffloadFile | MappedFile]()
        if config.row.parallel.offload_activations:
            files.append(OffloadFile(folder))
        if "disk" in config.tiers.values():
            files.append(MappedFile(folder))
        for file in files:
            try:
                with closing(file):
                    file.open()
            except OffloadError as error:
                raise scenario.origin.error(
                    str(error), OFFLOAD_FOLDER, ("parallel", "offload_activations"), ("parallel", "offload_optimizer"),
                    ("parallel", "offload_parameters")) from None


def check_claims(scenario: Scenario, dataset: Dataset) -> None:
    """Refuse claims about a test split that is missing or has another measure."""
    measure = None if dataset.x_test is None else dataset.measure
    if scenario.check.test_accuracy and measure not in ("accuracy", "exact sequences"):
        raise scenario.origin.error(
            "check.test_accuracy needs integer labels and a test split, x_test and y_test, in data.source" +
            ("; of this data use check.test_loss" if measure == "loss" else ""),
            ("check", "test_accuracy"),
        )
    if scenario.check.test_loss and measure != "loss":
        raise scenario.origin.error(
            "check.test_loss is for a text, whose next token a transformer predicts; leave it out, or set data.source "
            "to \"text\"", ("check", "test_loss"),
        )


def check_model(scenario: Scenario, dataset: Dataset) -> None:
    """Refuse a model with sizes that do not fit together, or with fewer tokens than its data."""
    model = scenario.model
    problem = MODELS[model.kind].problem(model, dataset.inputs, dataset.outputs)
    if problem is not None:
        key, words = problem
        raise scenario.origin.error(f"model.{key}: {words}", ("model", key), ("model", "width"))
