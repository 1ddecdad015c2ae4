"""The keys of [parallel] for ranks that share a micro-batch, and what does not go with them."""

from zerosim.scenario.groups import ON_HOSTS
from zerosim.scenario.origin import Origin
from zerosim.scenario.sections import Check, Checkpoint, Parallel, Train, WorldKeys

KEYS = ("tensor_ranks", "context_ranks", "expert_ranks")


def check_directions(
    parallel: Parallel, world: WorldKeys, train: Train, check: Check, checkpoint: Checkpoint, origin: Origin
) -> None:
    """Raises `ScenarioError` if ranks that share a micro-batch do not divide all ranks, or need what they cannot have.
    """
    places = parallel.directions.places
    asked = [("parallel", key) for key in KEYS if getattr(parallel, key) > 1]
    if world.ranks % places:
        product = " times ".join(f"{key} = {getattr(parallel, key)}" for _, key in asked)
        raise origin.error(
            f"parallel.{product} does not divide world.ranks = {world.ranks}; set world.ranks to a multiple of "
            f"{places}", *asked, ("world", "ranks"))
    if parallel.sequence_parallel and parallel.tensor_ranks == 1:
        raise origin.error(
            "parallel.sequence_parallel gives each tensor rank a piece of the sequence, and tensor_ranks is 1; set "
            "tensor_ranks, or leave it out", ("parallel", "sequence_parallel"), ("parallel", "tensor_ranks"))
    if places == 1:
        return
    for wrong, path, why in (
        (train.clip_norm, ("train", "clip_norm"), "the norm of the gradients is that of one place only"),
        (train.precision == "fp16" and train.loss_scale == "dynamic", ("train", "loss_scale"),
         "an overflow is seen on one place only; give loss_scale a number"),
        (checkpoint.folder, ("checkpoint", "folder"), "a checkpoint has the state of one place only"),
        (check.same_bits_on, ("check", "same_bits_on"), "it counts ranks of one direction"),
        (parallel.order in ON_HOSTS, ("parallel", "order"), "hosts have ranks of several directions"),
    ):
        if wrong:
            raise origin.error(
                f"{'.'.join(path)} does not go with parallel.{asked[0][1]}: {why}; remove one of them", path, asked[0])
