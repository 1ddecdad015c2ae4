"""The conditions that the keys of directions must satisfy together: ranks that train one copy of the model."""

from collections.abc import Iterator

from zerosim.errors import UsageError
from zerosim.models.units import runs_of
from zerosim.parts import is_python
from zerosim.scenario.origin import Conflict
from zerosim.scenario.sections import Parallel, Sections
from zerosim.stages.pipeline import pieces

NUMBERS_OF_RANKS = ("tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks")
KEYS_OF_DIRECTIONS = (
    *NUMBERS_OF_RANKS, "sequence_parallel", "vocabulary_parallel", "partition_activations", "context_by",
    "model_chunks", "pipeline_layers")
ON_HOSTS = ("two_level", "two_hop")
"""The orders that add within hosts first."""


def of_directions(parallel: Parallel, scenario: Sections) -> Iterator[Conflict]:
    """Ranks that train one copy of the model and do not divide all ranks, or need what they cannot have."""
    ranks, places = scenario.world.ranks, parallel.directions.places
    asked = [key for key in NUMBERS_OF_RANKS if getattr(parallel, key) > 1]
    if ranks % places:
        product = " times ".join(f"{key} = {getattr(parallel, key)}" for key in asked)
        yield Conflict(
            f"parallel.{product} does not divide world.ranks = {ranks}; set world.ranks to a multiple of {places}",
            *(f"parallel.{key}" for key in asked), "world.ranks")
    for key, set_, needs, does in (
        ("sequence_parallel", parallel.sequence_parallel, "tensor_ranks",
         "gives each tensor rank a piece of the sequence"),
        ("vocabulary_parallel", parallel.vocabulary_parallel, "tensor_ranks",
         "gives each tensor rank a piece of the vocabulary"),
        ("partition_activations", parallel.partition_activations, "tensor_ranks", "divides inputs by tensor ranks"),
        ("context_by", parallel.context_by != "ring", "context_ranks", "is how context ranks compute attention"),
    ):
        if set_ and getattr(parallel, needs) == 1:
            yield Conflict(f"parallel.{key} {does}, and {needs} is 1; set {needs}, or leave it out",
                           f"parallel.{key}", f"parallel.{needs}")
    for refused, key, why in (
        (scenario.check.same_bits_on, "check.same_bits_on", "it counts ranks of one direction"),
        (parallel.order in ON_HOSTS, "parallel.order", "hosts have ranks of several directions"),
        *((getattr(parallel, f"quantized_{what}") != "none", f"parallel.quantized_{what}",
           "places would round copies apart") for what in ("weights", "gradients") if asked != ["pipeline_ranks"]),
    ):
        for other in asked[:1] if refused else ():
            yield Conflict(f"{key} does not go with parallel.{other}: {why}; remove one", key, f"parallel.{other}")
    yield from of_pipeline(parallel, scenario)


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
        (parallel.quantized_gradients != "none" and any(runs_of(each)[1:] for each in model.units_of(parallel.units)),
         "parallel.quantized_gradients", "embeddings that both ends share would lose two parts; untie them"),
        (model.frozen, "model.frozen", "no gradient would reach the ranks of frozen layers; train all layers"),
        (parallel.model_chunks > 1 and not interleaved, "parallel.model_chunks",
         "other schedules have one chunk a rank; set parallel.schedule to interleaved_1f1b"),
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
        key = "parallel.pipeline_layers" if parallel.pipeline_layers else "parallel.pipeline_ranks"
        yield Conflict(f"{key}: {error}", key)
