"""The memory that every rank must keep between steps, by formula, for every stage and variant, padding included.

The ZeRO paper's table, sections 3 and 5, unit by unit as `sharding` cuts them: 2Ψ or 4Ψ for weights and for gradients,
K Ψ for the optimizer, divided by N if the stage shards them. Float32 accumulation adds 4Ψ to the gradients.
"""

from dataclasses import replace

from zerosim.core.allocation import MODEL_STATES, Kind, Tier
from zerosim.core.sharding import Mesh
from zerosim.models.units import Model, Unit
from zerosim.training.config import Config
from zerosim.verdict.model_states import of_parameter


def resting_bytes(config: Config, tier: Tier = "device") -> dict[Kind, int]:
    """The bytes of each kind of model state that each rank keeps in a memory after a step."""
    units = [unit_bytes(config, unit, tier) for unit in config.model.units]
    return {kind: sum(unit[kind][0] for unit in units if kind in unit) for kind in MODEL_STATES}


def padding_bytes(config: Config) -> int:
    """The bytes on the device that are padding."""
    units = [unit_bytes(config, unit) for unit in config.model.units]
    return round(sum(kept - exact for unit in units for kept, exact in unit.values()))


def needed_at_beginning(config: Config) -> dict[str, dict[Kind, int]]:
    """The most bytes of each kind that a step still needs when the reduction, or the update, of a unit begins.

    When gradients are reduced, full weights have been freed; when weights are updated, so have all arrays of backward,
    except the last unit's outputs. A shard that the host keeps may be on the device. There are no figures with prefetch
    or overlap, where another thread frees arrays.
    """
    parallel, placement, resting, task = config.parallel, config.placement, resting_bytes(config), config.model.task
    if parallel.prefetch or parallel.overlap:
        return {}
    near = max((shard(unit.count, placement.mesh) for unit in config.model.units), default=0)
    weights = resting["parameters"] + ("parameters" in placement.on_host) * near * config.precision.weights.itemsize
    outputs = config.at_once * config.train.micro_batch * (task.inputs if task.tokens else 1) * task.outputs
    updating: dict[Kind, int] = {
        "parameters": weights, "gradients": resting["gradients"],
        "activations": outputs * config.arithmetic.compute.itemsize}
    reducing: dict[Kind, int] = {"parameters": weights}
    return {"update": updating} | ({"reduce_scatter": reducing} if parallel.reshard_after_forward else {})


def unit_bytes(config: Config, unit: Unit, tier: Tier = "device") -> dict[str, tuple[int, float]]:
    """The bytes that each rank keeps of one unit in a memory, by kind: with padding, and by the formula without it."""
    placement = config.placement
    state = config.precision.state.itemsize * len(config.rule.slots)
    per_element = of_parameter(config.precision, state, wide=config.arithmetic.accumulates_in_float32)
    resting: dict[str, tuple[int, float]] = {}
    for kind, size in per_element.items():
        if unit.frozen and kind != "parameters":
            continue
        kept, exact = lengths(unit.count, placement.mesh, sharded=kind in placement.sharded)
        here = ("host" if kind in placement.on_host else "device") == tier
        resting[kind] = (kept * size, exact * size) if here else (0, 0.0)
    second, once = resting["parameters"], placement.secondary
    if once and later_uses(config.model, unit) and tier == "device":
        copied = config.arithmetic.compute.itemsize
        resting["parameters"] = (second[0] + shard(unit.count, once) * copied,
                                 second[1] + unit.count / once.group * copied)
    return resting


def later_uses(model: Model, unit: Unit) -> int:
    """The number of times a micro-batch uses a unit's weights after the first; a second copy serves them."""
    return (*model.forward_units, *model.backward_units).count(unit) - 1


def shard(count: int, mesh: Mesh) -> int:
    """The elements of a rank's shard of `count`, padding included: so many chunks of ceil(count / N) as there are
    copies. It is stated here because the code that cuts a unit (`core/sharding.py`) must not say what it must cut.

    >>> shard(10, Mesh(0, 4, 4)), shard(10, Mesh(0, 4, 2)), shard(10, Mesh(0, 4, 1))
    (3, 6, 12)
    """
    return -(-count // mesh.size) * mesh.size // mesh.group


def lengths(count: int, mesh: Mesh, *, sharded: bool) -> tuple[int, float]:
    """The number of elements that a rank keeps of `count`: with padding, and by the formula without it."""
    group = mesh.group if sharded else 1
    return shard(count, replace(mesh, group=group)), count / group
