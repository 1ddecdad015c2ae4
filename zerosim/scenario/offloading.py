"""The keys of [parallel] for tiers of memory: the conditions that they must satisfy together."""

from zerosim.errors import ScenarioError
from zerosim.scenario.origin import Origin
from zerosim.scenario.sections import Parallel, Train


def check_delayed(parallel: Parallel, train: Train, origin: Origin) -> None:
    """Raises `ScenarioError` if the host cannot update one step late."""
    if not parallel.delayed_update:
        return
    at = ("parallel", "delayed_update")
    if parallel.offload_optimizer != "host":
        raise origin.error(
            "parallel.delayed_update lets the host update while the next step computes, and the optimizer is on the "
            f"{parallel.offload_optimizer if parallel.offload_optimizer != 'none' else 'device'}; set "
            "parallel.offload_optimizer to host, or leave it out", at, ("parallel", "offload_optimizer"))
    if parallel.offload_parameters != "none":
        raise refused("parallel.offload_parameters", "the step reads weights there while they are updated", at, origin)
    if parallel.publish == "updates":
        raise refused('parallel.publish = "updates"', "updates are applied where weights are", at, origin)
    in_float16 = "fp16" in (train.precision, parallel.param_dtype, parallel.autocast)
    if in_float16 and isinstance(train.loss_scale, str):
        raise refused('train.loss_scale = "dynamic"', "a step may be skipped and leave no gradient", at, origin)


def refused(other: str, why: str, at: tuple[str, ...], origin: Origin) -> ScenarioError:
    return origin.error(f"parallel.delayed_update does not go with {other}: {why}; leave one of them out", at)
