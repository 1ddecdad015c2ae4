"""Keys without effect on a row, because its stage, its share of the batch, or one rank of a pipeline leaves no choice.

A [[variant]] that sets such a key for its own stage is refused. [parallel] applies to all rows, so it may contain such
a key; every report names the rows without its effect, with the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any

from zerosim.core.parts import Name
from zerosim.scenario.sections import Parallel
from zerosim.stages import STAGES, Stage

USUAL = Parallel()
IN_EVERY_STAGE = "layered"
"""The accumulation that every stage has."""


BY_STAGE: Mapping[str, Callable[[Stage], str]] = {
    "accumulation": lambda stage: "" if stage.may_reduce_parts else "it reduces once a step, at the boundary",
    "gradients": lambda stage: "its ranks keep shards of gradients, and need no others" if stage.gathers else "",
    "publish": lambda stage: (
        "weights stay sharded, and are gathered when they are used" if stage.gathers else
        "" if stage.publishes else "every rank updates all weights, and publishes none"),
    **dict.fromkeys(
        ("reshard_after_forward", "prefetch", "secondary_ranks", "quantized_weights", "offload_parameters",
         "param_dtype"),
        lambda stage: "" if stage.gathers else "it gathers no weights during the pass"),
}
"""The keys that may have no effect on a stage, and the reason why; empty if they have one."""


def ignored_by_stage(stage: Name, keys: Mapping[str, Any]) -> dict[str, str]:
    """The keys among `keys` without effect on a stage, with the reason.

    >>> ignored_by_stage("ddp", {"prefetch": True, "overlap": True})
    {'prefetch': 'it gathers no weights during the pass'}
    """
    reasons = {key: why(STAGES[stage]) for key, why in BY_STAGE.items()
               if keys.get(key) not in (None, getattr(USUAL, key), IN_EVERY_STAGE)}
    return {key: why for key, why in reasons.items() if why}


def ignored(stage: Name, keys: Mapping[str, Any], micro_batches_each: int) -> dict[str, str]:
    """The keys among `keys` that a row ignores, with the reason; accumulation needs several micro-batches on a rank.

    >>> ignored("zero2", {"accumulation": "micro_batch"}, 1)
    {'accumulation': 'a rank has one micro-batch in a step'}
    """
    reasons = {}
    if keys.get("pipeline_ranks", 1) == 1 and keys.get("schedule", USUAL.schedule) != USUAL.schedule:
        reasons["schedule"] = "it has no pipeline"
    if micro_batches_each == 1 and keys.get("accumulation", "boundary") != "boundary":
        reasons["accumulation"] = "a rank has one micro-batch in a step"
    return {**ignored_by_stage(stage, keys), **reasons}
