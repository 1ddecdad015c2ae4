"""One function, before a plan: a row with the pieces of its split model, small enough to be computed at once.

Whether a model sums what it must does not depend on its sizes: at most 2 ranks in each direction, two blocks and a few
heads show it. A user's model keeps its own sizes, and a large one is not computed.
"""

import dataclasses
from functools import lru_cache
from typing import Any

from zerosim.core.parts import is_python
from zerosim.core.sharding import Directions
from zerosim.models.units import Task
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import Config, configured
from zerosim.training.one_function import split_fault

MOST_PARAMETERS = 10**6
"""The largest user's model that is computed before a plan."""
KEPT = ("sequence_parallel", "vocabulary_parallel", "context_by", "schedule")
"""The keys of [parallel] on which a split model depends beside numbers of ranks."""


def plan_fault(config: Config) -> str:
    """The differences between a row's split model and the model in one piece, in words; empty if none were found."""
    if config.directions.places == 1:
        return ""
    parallel, model, task = config.parallel, config.keys, config.in_one_piece.task
    few: dict[str, Any] = {
        f"{name}_ranks": min(getattr(config.directions, name), 2) for name in (*Directions().sizes, "pipeline")}
    few |= {name: getattr(parallel, name) for name in KEPT} | {"model_chunks": min(parallel.model_chunks, 2)}
    if not is_python(model.kind):
        return small_fault(smaller(model), Parallel(stages=("ddp",), **few), Task(
            8 if task.tokens else 4, 16 if task.tokens else 4, task.loss, task.tokens))
    return "" if config.model.count > MOST_PARAMETERS else small_fault(model, Parallel(("ddp",), **few), task)


def smaller(model: ModelKeys) -> ModelKeys:
    """A model of the same kind with sizes that every direction of two ranks divides."""
    keys = ModelKeys(
        kind=model.kind, hidden=(4, 4, 4), activation=model.activation, architecture=model.architecture, width=32,
        heads=8, key_value_heads=4 if 0 < model.key_value_heads < model.heads else 0, inner=16, vocabulary=16,
        sequence=8, tied_embeddings=model.tied_embeddings, experts=8, queue_tokens=2,
        head_size=6 * (model.head_size > 0), latent=8 * (model.latent > 0), query_latent=8 * (model.query_latent > 0),
        rotary_size=4 * (model.rotary_size > 0), shared_inner=16 * (model.shared_inner > 0),
        dense_layers=min(model.dense_layers, 1), dense_inner=16)
    default = ModelKeys()
    return dataclasses.replace(keys, **{key: getattr(default, key) for key in keys.others_keys})


@lru_cache(maxsize=256)
def small_fault(model: ModelKeys, parallel: Parallel, task: Task) -> str:
    """The differences of a small model, computed once.

    >>> small_fault(ModelKeys(hidden=(4,)), Parallel(("ddp",), tensor_ranks=2), Task(4, 4, "cross_entropy"))
    ''
    """
    places = parallel.directions.places
    row, *_ = Scenario(
        world=WorldKeys(places), model=model, parallel=parallel, train=Train(micro_batches=2 * places)).rows
    return split_fault(configured(row, task))
