"""An unchanged PyTorch script with all its groups on the CPU over this package, and what its collectives have sent."""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from zerosim.core.errors import UsageError
from zerosim.torch.backend import CALLS
from zerosim.worlds.mpi import connect

ON_THE_CPU = ("", "undefined", "gloo", "mpi", "zerosim", "cpu:gloo", "cpu:gloo,cuda:nccl")


def take_groups() -> None:
    """Have every group that is made from now on run over this backend."""
    for module in (dist, distributed_c10d, device_mesh):
        for name, position in (("init_process_group", 0), ("new_group", 2)):
            setattr(module, name, over_zerosim(getattr(module, name), position))


def over_zerosim(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """A function that makes groups, with this backend instead of another of the CPU's."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        asked = str(given[position] if len(given) > position else kwargs.pop("backend", "")).lower()
        if asked not in (*ON_THE_CPU, "none"):
            raise UsageError(f"{function.__name__} asks for {asked!r}, which does not run on the CPU; use gloo")
        if len(given) > position:
            given[position] = "zerosim"
        else:
            kwargs["backend"] = "zerosim"
        return function(*given, **kwargs)

    return call


def calls() -> str:
    """A line for each collective and the line that called it: how often, and the bytes that this rank has sent."""
    count, sent = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for call in CALLS:
        count[call[:2]] += 1
        sent[call[:2]] += call.sent_bytes
    return "\n".join(f"rank {connect().rank}: {number:5} × {name:15}{sent[name, by]:>13,} B  {by}"
                     for (name, by), number in count.items())
