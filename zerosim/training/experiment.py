"""A scenario ready to run: a config for each row, the data of all rows, and the first weights from a file.

A rank gets its block of a step, in the global order of micro-batches, as one `Batch`. The replica splits it: one
micro-batch after the other, or all together in layered accumulation, which gathers each unit once per pass and keeps
the activations of all micro-batches alive at the same time.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zerosim.autograd.operations.losses import UNCOUNTED, counted, cross_entropy
from zerosim.core.allocation import Array
from zerosim.core.bits import little_endian
from zerosim.core.errors import UsageError
from zerosim.models import MODELS
from zerosim.models.units import Task
from zerosim.scenario import Scenario
from zerosim.scenario.data import Dataset, exact_share, sample_order
from zerosim.scenario.data.weights import WeightsFile, weights_file
from zerosim.scenario.reading import nearest
from zerosim.scenario.values import shown
from zerosim.stages.replica import Batch
from zerosim.training.config import Config, configured, split_task
from zerosim.training.reference import MicroBatches

NOTHING = range(0)


@dataclass(frozen=True, eq=False)
class Experiment:
    """A scenario, its samples, its rows in the order of training, and what a run keeps of them."""

    scenario: Scenario
    dataset: Dataset
    rows: tuple[Config, ...]
    keep_weights: bool = False
    """Whether measurements contain the final weights."""
    traced: range = NOTHING
    """The steps to trace, counted from 1."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """The folder in which each row is saved, by the row's name; empty without checkpoints."""
    faulty: bool = True
    """Whether the scenario's faults strike; a run that resumes has none."""

    @cached_property
    def data_sha256(self) -> str:
        """The digest of the samples with dtypes and shapes, and of the file of the first weights, if there is one."""
        file = self.rows[0].initial
        sha256 = hashlib.sha256(file.sha256.encode() if file else b"")
        data = self.dataset
        for array in (array for array in (data.x, data.y, data.x_test, data.y_test) if array is not None):
            sha256.update(f"{array.dtype}{array.shape}".encode())
            sha256.update(little_endian(array.ravel()))
        return sha256.hexdigest()

    def micro_batches(self, config: Config, step: int, block: slice = slice(None)) -> MicroBatches:
        """Inputs and targets of the micro-batches of step `step` of a row, or of a block of them."""
        train, samples = config.train, samples_of(config, self.dataset, step)
        chosen = samples.reshape(train.micro_batches, train.micro_batch)[block]
        return [(typed(x, config.arithmetic.compute), y) for x, y in map(self.dataset.batch, chosen)]

    def of_rank(self, config: Config, rank: int) -> Iterator[Batch]:
        """The contiguous block of micro-batches of data rank `rank` in every step of this run."""
        block = slice(rank * config.block, (rank + 1) * config.block)
        for step in range(config.done + 1, config.train.steps + 1):
            chosen, count = self.micro_batches(config, step, block), counted_in(config, self.dataset, step)
            yield Batch(step, [x for x, _ in chosen], [y for _, y in chosen], count, block.start)

    def test(self, config: Config, outputs: Array) -> float:
        """The measure of `outputs` on the test split.

        It is the accuracy for labels, the share of sequences without an error for a task, the mean loss per token in
        nats for a text, and the mean squared error otherwise.
        """
        expected = self.dataset.y_test
        assert expected is not None
        outputs = outputs.astype(config.arithmetic.output).astype(config.precision.losses)
        match self.dataset.measure:
            case "exact sequences":
                return exact_share(outputs.argmax(axis=-1), expected)
            case "loss":
                loss, _ = cross_entropy(outputs, expected, counted(expected), empty=np.empty)
                return float(loss[0])
            case "accuracy":
                return float(np.mean(outputs.argmax(axis=1) == expected))
        return float(np.mean(np.square(outputs - expected)))


def prepare(
    scenario: Scenario, dataset: Dataset, *, keep_weights: bool = False, traced: range = NOTHING, faulty: bool = True
) -> Experiment:
    """The rows of a scenario, with models that fit the data.

    Raises `ScenarioError` for claims that the data cannot support, and for a model that does not fit the data.
    """
    task = Task(dataset.inputs, dataset.outputs, dataset.loss, tokens=dataset.kind == "tokens")
    check_data(scenario, task, None if dataset.x_test is None else dataset.measure)
    with scenario.origin.blaming(("model", "kind")):
        configs = [configured(row, task) for row in scenario.rows]
    for config in configs:
        check_counted(scenario, dataset, config)
    initial = first_weights(scenario, configs[0])
    rows = tuple(replace(config, initial=initial) for config in configs)
    return Experiment(scenario, dataset, rows, keep_weights, traced, faulty=faulty)


def samples_of(config: Config, dataset: Dataset, step: int) -> npt.NDArray[np.int64]:
    """The samples of step `step` of a row, over all ranks."""
    return sample_order(len(dataset.x), step - 1, config.samples, config.train.seed)


def counted_in(config: Config, dataset: Dataset, step: int) -> int:
    """The targets that count in step `step` of a row, over all ranks: every rank knows the samples of all."""
    return counted(dataset.y[samples_of(config, dataset, step)])


def check_counted(scenario: Scenario, dataset: Dataset, config: Config) -> None:
    """Refuse a step without a target that counts: its loss is a mean of nothing."""
    if dataset.kind != "tokens" or (dataset.y != UNCOUNTED).any(axis=1).all():
        return
    for step in range(1, config.train.steps + 1):
        if not counted_in(config, dataset, step):
            raise scenario.origin.error(
                f"data.source {shown(scenario.data.source)}: none of the {config.samples} samples of step {step} has a "
                "target that counts, since all are -1; leave such samples out, or take more of them in a step",
                ("data", "source"))


def check_data(scenario: Scenario, task: Task, measure: str | None) -> None:
    """Refuse claims about a missing test split or another measure of it, and a model that does not fit the data."""
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
    check_model(scenario, task)


def check_model(scenario: Scenario, task: Task) -> None:
    """Refuse a model whose sizes do not fit the data, or the ranks that share it."""
    model = scenario.model
    for row in scenario.rows:
        problem = MODELS[model.kind].problem(model, split_task(row, task))
        if problem is not None:
            key, words = problem
            raise scenario.origin.error(f"model.{key}: {words}", ("model", key), ("model", "width"))


def first_weights(scenario: Scenario, config: Config) -> WeightsFile | None:
    """The file of `model.weights`; None if there is none.

    Raises `ScenarioError` with the first name, shape or dtype that differs from the model's.
    """
    source, key = scenario.model.weights, ("model", "weights")
    if not source:
        return None
    with scenario.origin.blaming(key, value=source):
        file = weights_file(source, scenario.origin.folder(key))
        for problem in problems(file, config):
            raise UsageError(problem)
    return file


def problems(file: WeightsFile, config: Config) -> Iterator[str]:
    """The differences between a file and the model, in words."""
    model_shapes = {place.name: place.shape for place in config.in_one_piece.places}
    exact = ("F64", "F32", "F16", "BF16")[config.precision.losses.itemsize < 8 :]
    for name in model_shapes:
        if name not in file.shapes:
            near = nearest(name, file.shapes)
            yield f"there is no array {shown(name)}{f', there is {shown(near)}' if near else ''}; but the model has one"
    for name in file.shapes:
        if name not in model_shapes and not name.startswith("optimizer."):    # the file may be a checkpoint
            near = nearest(name, model_shapes)
            yield f"the model has no parameter {shown(name)}{f', it has {shown(near)}' if near else ''}; leave it out"
    for name, shape in model_shapes.items():
        if file.shapes[name] != shape:
            yield f"{name} has shape {list(file.shapes[name])}, and in the model {list(shape)}"
        if file.dtypes[name] not in exact:
            yield (f"{name} is {file.dtypes[name]}; train.precision {config.precision.name} begins with "
                   f"{', '.join(exact)}, which it holds exactly")


def typed(x: Array, dtype: npt.DTypeLike) -> Array:
    """Numbers as `dtype`; tokens, which are integers, unchanged."""
    return x if x.dtype.kind == "i" else x.astype(dtype, copy=False)
