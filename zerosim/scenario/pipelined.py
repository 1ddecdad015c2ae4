"""The conditions that the keys of a pipeline must satisfy together."""

from collections.abc import Iterator

from zerosim.errors import UsageError
from zerosim.parts import is_python
from zerosim.scenario.origin import Conflict
from zerosim.scenario.sections import Parallel, Sections
from zerosim.stages.pipeline import pieces

KEYS_OF_DIRECTIONS = ("tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks")


def of_pipeline(parallel: Parallel, scenario: Sections) -> Iterator[Conflict]:
    """A pipeline with a stage, a key or a number of micro-batches that its schedule does not have."""
    train, model = scenario.train, scenario.model
    interleaved = parallel.schedule == "interleaved_1f1b"
    if parallel.pipeline_ranks == 1:
        for key, otherwise in (("model_chunks", 1), ("pipeline_layers", ())):
            if getattr(parallel, key) != otherwise:
                yield Conflict(
                    f"parallel.{key} is for the ranks of a pipeline, and pipeline_ranks is 1; set pipeline_ranks, or "
                    "leave it out", f"parallel.{key}", "parallel.pipeline_ranks")
        return
    for refused, key, why in (
        ("zero3" in parallel.stages, "parallel.stages",
         "Stage III would gather a rank's weights twice for every micro-batch; leave zero3 out"),
        (any(is_python(str(each)) for each in parallel.stages), "parallel.stages",
         "a schedule has the loops that a stage of yours writes; name shipped stages"),
        (parallel.accumulation == "layered", "parallel.accumulation",
         "its ranks run one micro-batch after another; choose boundary or micro_batch"),
        (parallel.offload_activations, "parallel.offload_activations",
         "inputs of several micro-batches are in use at once; leave it out"),
        (parallel.partition_activations, "parallel.partition_activations",
         "inputs of several micro-batches are in use at once; leave it out"),
        (scenario.checkpoint.folder, "checkpoint.folder", "a checkpoint has the layers of one rank only; leave it out"),
        (model.frozen, "model.frozen", "no gradient would reach the ranks of frozen layers; train all layers"),
        (parallel.model_chunks > 1 and not interleaved, "parallel.model_chunks",
         "gpipe and 1f1b have one chunk a rank; set parallel.schedule to interleaved_1f1b"),
        (parallel.model_chunks == 1 and interleaved, "parallel.schedule",
         "interleaved_1f1b needs several chunks a rank; set parallel.model_chunks"),
    ):
        if refused:
            yield Conflict(f"{key} does not go with parallel.pipeline_ranks: {why}", key, "parallel.pipeline_ranks")
    each = train.micro_batches * parallel.directions.places // scenario.world.ranks
    if interleaved and each % parallel.pipeline_ranks:
        yield Conflict(
            f"parallel.schedule interleaved_1f1b needs a multiple of pipeline_ranks = {parallel.pipeline_ranks} "
            f"micro-batches on each rank, found {each}; change train.micro_batches", "train.micro_batches",
            "parallel.schedule")
    try:
        pieces(model.units_of(parallel.units), parallel.pieces, parallel.pipeline_layers)
    except UsageError as error:
        yield Conflict(f"parallel.pipeline_layers: {error}", "parallel.pipeline_layers", "parallel.pipeline_ranks")
