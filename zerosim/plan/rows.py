"""The rows of a scenario, before any is rehearsed: the model, the machine, and what the ranks cannot share."""

import dataclasses
from functools import lru_cache

from zerosim.core.errors import ZerosimError
from zerosim.models import MODELS, build
from zerosim.models.units import Model, Task
from zerosim.plan.cluster import cluster_of
from zerosim.plan.planned_row import PlannedRow
from zerosim.scenario.data import load_dataset
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys
from zerosim.training.config import configured
from zerosim.training.experiment import check_model


def rows_of(scenario: Scenario, swept: tuple[str, ...] = ()) -> list[PlannedRow]:
    """The rows of one scenario, not yet rehearsed. Raises `ScenarioError` for numbers that do not go together."""
    cluster = cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)
    if scenario.parallel.order == "exact":
        raise scenario.origin.error(
            "parallel.order exact adds integers whose number depends on values, and cannot be planned; use ring, rank "
            "or tree", ("parallel", "order"))
    task = task_of(scenario)
    check_model(scenario, task)
    rows = []
    for row in scenario.rows:
        with scenario.origin.blaming(("model", "kind")):
            config = configured(row, task, model_of)
        if fault := sharing_fault(config.model, config.train.micro_batch):
            raise scenario.origin.error(
                f"{config.name}: {fault}; change train.micro_batch, model.sequence or the ranks that share them",
                ("train", "micro_batch"), ("model", "sequence"))
        rows.append(PlannedRow(config, cluster, scenario, swept))
    return rows


def task_of(scenario: Scenario) -> Task:
    """The task of the data, which are read only for a model without a vocabulary and a sequence."""
    model = scenario.model
    if MODELS[model.kind].reads_tokens and model.vocabulary and model.sequence:
        return Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)
    dataset = load_dataset(scenario)
    return Task(dataset.inputs, dataset.outputs, dataset.loss, tokens=dataset.kind == "tokens")


@lru_cache(maxsize=64)
def model_of(model: ModelKeys, task: Task, layers: tuple[tuple[int, ...], ...]) -> Model:
    """The model of a row, which rows with the same piece of it share."""
    return build(model, task, layers)


@lru_cache(maxsize=4096)
def sharing_fault(model: Model, samples: int) -> str:
    """The reason for which the model cannot cut a micro-batch into a piece for each rank; empty if it can."""
    shape: tuple[int, ...] = (samples, model.task.inputs)
    try:
        for _, segment in model.segments:
            shape = segment.graph(shape).output.shape
    except ZerosimError as error:
        return str(error)
    return ""


def on_ranks(scenario: Scenario, ranks: int) -> Scenario:
    """The scenario on `ranks` ranks, with the same number of micro-batches per rank."""
    if ranks == scenario.world.ranks:
        return scenario
    micro_batches = scenario.train.micro_batches * ranks // scenario.world.ranks
    return dataclasses.replace(
        scenario,
        world=dataclasses.replace(scenario.world, ranks=ranks),
        train=dataclasses.replace(scenario.train, micro_batches=micro_batches),
        check=dataclasses.replace(scenario.check, same_bits_on=()),
    )
