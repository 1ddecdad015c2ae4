"""Runs a PyTorch script as `__main__`, with all its groups on the CPU over this package."""

import runpy
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.core.errors import UsageError
from zerosim.torch.backend import CALLS
from zerosim.worlds.mpi import connect

ON_THE_CPU = ("", "undefined", "gloo", "mpi", "zerosim", "cpu:gloo", "cpu:gloo,cuda:nccl")


def run_script(script: str, arguments: list[str]) -> int:
    """Run `script` over zerosim; the exit code of its `sys.exit`, else 0."""
    for module in (dist, distributed_c10d, device_mesh):
        for name, position in (("init_process_group", 0), ("new_group", 2)):
            setattr(module, name, over_zerosim(getattr(module, name), position))
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


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
    count = Counter[tuple[str, str]]()
    sent = Counter[tuple[str, str]]()
    for call in CALLS:
        count[call[:2]] += 1
        sent[call[:2]] += call.sent_bytes
    rank = connect().rank
    return "\n".join(f"rank {rank}: {number:5} × {name:15}{sent[name, by]:>13,} B  {by}"
                     for (name, by), number in count.items())
