"""Gloo's own collectives on NumPy arrays, for comparison."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import zerosim.torch  # noqa: F401 - registers the backend, over which gloo's processes find each other
from zerosim.allocation import Array


def gloo_collectives() -> dict[str, Callable[[Array, Array], object]]:
    """Gloo's collectives between all ranks, from one array of numbers into another; maxima."""
    torch.set_num_threads(1)
    dist.init_process_group("zerosim")
    group: Any = dist.new_group(backend="gloo")

    def all_reduce(x: Array, out: Array) -> None:
        out[...] = x
        dist.all_reduce(torch.from_numpy(out), dist.ReduceOp.MAX, group)

    reduce_scatter, all_gather = under_newest_name("reduce_scatter"), under_newest_name("all_gather")
    return {
        "all_reduce": all_reduce,
        "reduce_scatter": lambda x, out: reduce_scatter(
            torch.from_numpy(out), torch.from_numpy(x), dist.ReduceOp.MAX, group),
        "all_gather": lambda x, out: all_gather(torch.from_numpy(out), torch.from_numpy(x), group),
        "broadcast": lambda x, out: dist.broadcast(torch.from_numpy(out), 0, group),
    }


def under_newest_name(collective: str) -> Callable[..., object]:
    """The collective on single tensors, which PyTorch 2.13 has renamed."""
    older = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}[collective]
    found: Callable[..., object] = getattr(dist, f"{collective}_single", None) or getattr(dist, older)
    return found
