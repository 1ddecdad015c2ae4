"""PyTorch's trainers over these collectives, compared with one process by raw bytes after every step.

    mpirun -n 4 python -m tests.torch.bits

trains a small model in every way of `tests.torch.ways`; exit code 1 if a bit differs anywhere. With `--planted`, each
planted fault must lead to different bits, and its way without it to none.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist

import zerosim.torch.backend  # noqa: F401 - registers the backend
from tests.torch.alone import Alone
from tests.torch.ways import WAYS, Trainer, way_named
from zerosim.torch.backend import Done as Began
from zerosim.torch.backend import Group, flat
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import broadcast_object, gather_objects

STEPS = 3


def check(way):
    """The first difference of all ranks, on every rank; None if all bytes are equal. All ranks call this."""
    comm = connect()
    found = gather_objects(comm, first_difference(way))
    first = broadcast_object(comm, found and min(filter(None, found), default=None))
    return first and "step {}, rank {}: element {} of {} is {!r}, where one process has {!r}".format(*first)


def first_difference(way):
    """This rank's first difference; it trains to the end in any case."""
    trainer, alone = Trainer(way), Alone(way, dist.get_world_size())
    first = None
    for step in range(1, STEPS + 1):
        trainer.step(step)
        alone.step(step)
        first = first or next(differences(trainer.plain, alone, step), None)
    return first


def differences(model, alone, step):
    """The first differing element of each parameter, or of the piece of it that this rank keeps: where, and both."""
    for (name, parameter), due in zip(model.named_parameters(), alone.parameters, strict=True):
        mine, whole = parameter.detach(), due.detach()
        if hasattr(mine, "to_local"):
            shards, place = mine.device_mesh.size(-1), mine.device_mesh.get_local_rank(mine.device_mesh.ndim - 1)
            rows = -(-len(whole) // shards)
            mine, whole = mine.to_local(), whole[place * rows : (place + 1) * rows]
        one, other = flat(mine.contiguous()), flat(whole.contiguous())
        apart = np.flatnonzero(one.view(np.uint32) != other.view(np.uint32))
        if len(one) != len(other) or len(apart):
            index = int(apart[0])
            yield step, dist.get_rank(), index, name, float(one[index]), float(other[index])


def skipped_bucket(original, calls):
    """One of DDP's buckets is not reduced."""
    def all_reduce(self, tensors, opts=None):
        calls.append(tensors)
        return Began(tensors) if len(calls) == 3 else original(self, tensors, opts)

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


PLANTED = (
    ("DDP, buckets of 512 B", "allreduce", skipped_bucket),
    ("FSDP2", "all_gather_single_coalesced", stale_gather),
    ("FSDP2", "reduce_scatter_single_coalesced", doubled_reduction),
)


def check_planted():
    """Plant each fault in the backend; the checker must see different bits."""
    for name, method, plant in PLANTED:
        original = getattr(Group, method)
        setattr(Group, method, plant(original, []))
        difference = check(way_named(name))
        setattr(Group, method, original)
        assert difference is not None, f"{plant.__name__} was not seen"
        assert check(way_named(name)) is None
        print(f"{plant.__name__}: {difference}")
    return 0


def main():
    """Check the ways that support this number of ranks; 1 if any of them differs, else 0."""
    differing = 0
    for way in WAYS:
        if way.serves(dist.get_world_size()):
            difference = check(way)
            differing += difference is not None
            if dist.get_rank() == 0:
                print(f"{way.name:42} {'same bits as one process' if difference is None else difference}", flush=True)
    return int(differing > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("zerosim")
    code = check_planted() if "--planted" in sys.argv else main()
    dist.destroy_process_group()
    sys.exit(code)
