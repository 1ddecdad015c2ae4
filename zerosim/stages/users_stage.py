"""A user's stage: a step in the verbs of the replica, and its declarations.

    sharded        the model states of which a rank keeps 1/N
    wire           the dtype in which its gradients are sent and added over ranks: its gradient compression
    accumulation   `micro_batch`, if it reduces the gradients of every micro-batch

The sharded states determine the bytes that a stage must send, keep and hold, and the shipped stage whose bits it must
have. A stage that rounds gradients for the wire has the bits of that stage with the same rounding, which the reference
replays.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zerosim.core.allocation import MODEL_STATES, Kind
from zerosim.core.errors import UsageError
from zerosim.core.parts import Named
from zerosim.core.precisions import PRECISIONS
from zerosim.stages import STAGES, Stage, StageStep

SHIPPED = {frozenset(stage.sharded): stage for stage in STAGES.values()}
"""The shipped stages by their sharded states."""


def stage(
    *, sharded: tuple[Kind, ...] = (), wire: str = "", accumulation: str = "",
) -> Callable[[StageStep], Stage]:
    """A decorator: the step as a stage that shards these states.

    `sharded` contains any of "optimizer", "gradients", "parameters", in a combination of a shipped stage. `wire` is
    fp16, bf16, fp32 or fp64; the default is the scenario's. `accumulation = "micro_batch"` declares that the gradients
    of every micro-batch are reduced, whatever the scenario says.

    >>> @stage(sharded=("optimizer", "gradients"), wire="bf16")
    ... def compressed(replica, batch): ...
    >>> compressed.publishes, compressed.wire
    (True, 'bf16')
    """
    return lambda step: declared(step.__name__, step, sharded, wire, accumulation)


def declared(
    name: str, step: StageStep, sharded: tuple[Kind, ...], wire: str = "", accumulation: str = ""
) -> Stage:
    """The stage of a step with these declarations. Raises `UsageError` for invalid ones."""
    if frozenset(sharded) not in SHIPPED:
        allowed = "; ".join(", ".join(shipped.sharded) or "nothing" for shipped in STAGES.values())
        raise UsageError(f"{name} shards {', '.join(map(str, sharded))}; a stage shards one of: {allowed} (of "
                         f"{', '.join(MODEL_STATES)})")
    if wire and wire not in PRECISIONS:
        raise UsageError(f"{name} has the wire {wire!r}; use one of {', '.join(PRECISIONS)}")
    if accumulation not in ("", "micro_batch"):
        raise UsageError(f"{name} has the accumulation {accumulation!r}; leave it out, or declare micro_batch")
    try:
        inspect.signature(step).bind(None, None)
    except TypeError:
        raise UsageError(f"{name}{inspect.signature(step)} is no step; write def {name}(replica, batch)") from None
    like = SHIPPED[frozenset(sharded)]
    also = (inspect.getdoc(step) or "a stage of yours").splitlines()[0].rstrip(".")
    return Stage(name, name, also, step, like.sharded, wire=wire, reduces_parts=bool(accumulation))


def as_stage(name: str, named: Any) -> Stage:
    """The stage that a scenario names: one made by `@stage`, or a step with `SHARDED` in its file."""
    if isinstance(named, Stage):
        return replace(named, key=name, title=name)
    if not inspect.isfunction(named):
        raise UsageError(f"{name} is a {type(named).__name__}; give a step, def {name.rpartition(':')[2]}(replica, "
                         "batch), under @stage(sharded=…)")
    if "SHARDED" not in named.__globals__:
        raise UsageError(f"{name} does not say what it shards; write @stage(sharded=(\"optimizer\", \"gradients\")) "
                         f"above def {named.__name__}, or SHARDED = (…) in its file")
    return declared(name, named, tuple(named.__globals__["SHARDED"]))


def like(stage: Stage) -> Named:
    """The shipped stage with the same sharding and wire, whose bits the stage must have."""
    honest = replace(SHIPPED[frozenset(stage.sharded)], wire=stage.wire, reduces_parts=stage.reduces_parts)
    return Named(f"{honest.key} with wire {stage.wire or 'as it is'}, {stage.reduces_parts}", honest, "")
