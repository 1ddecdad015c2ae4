"""Faults planted in the backend: with each of them the checker must see other bits, and without it none."""

import torch.distributed as dist

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.torch import check
from zerosim.torch.group import Group
from zerosim.torch.ways import WAYS
from zerosim.torch.works import Began


def skipped_bucket(original, calls):
    """One of DDP's buckets is not reduced."""
    def all_reduce(self, tensors, op, is_async):
        calls.append(tensors)
        return Began(tensors) if len(calls) == 3 else original(self, tensors, op, is_async)

    return all_reduce


def stale_gather(original, calls):
    """FSDP2 is given the weights of a step before."""
    def all_gather(self, outputs, tensors, opts=None):
        work = original(self, outputs, tensors, opts)
        work.wait()
        calls.append([each.clone() for each in outputs])
        same = [each for each in calls[:-1] if each[0].shape == outputs[0].shape]
        if len(calls) > 6 and len(same) >= 2:
            outputs[0].copy_(same[0][0])
        return work

    return all_gather


def doubled_reduction(original, calls):
    """Rank 1 brings twice its gradient, once."""
    def reduce_scatter(self, outputs, tensors, opts=None):
        calls.append(outputs)
        twice = dist.get_rank() == 1 and len(calls) == 2
        return original(self, outputs, [2 * each for each in tensors] if twice else tensors, opts)

    return reduce_scatter


PLANTED = [
    ("DDP, buckets of 512 B", "_all_reduce", skipped_bucket),
    ("FSDP2", "all_gather_single_coalesced", stale_gather),
    ("FSDP2", "reduce_scatter_single_coalesced", doubled_reduction),
]

dist.init_process_group("zerosim")
for name, method, plant in PLANTED:
    (way,) = [way for way in WAYS if way.name == name]
    original = getattr(Group, method)
    setattr(Group, method, plant(original, []))
    difference = check.check(way)
    setattr(Group, method, original)
    assert difference is not None, f"{plant.__name__} was not seen"
    assert check.check(way) is None
    print(f"{plant.__name__}: {difference}")
dist.destroy_process_group()
