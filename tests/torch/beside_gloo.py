"""Programs on top of torch.distributed, each over zerosim and over gloo in the same processes, with equal results.

What is in `tests.torch.ways` is not here: its bits are compared.

Run as `mpirun -n 4 python -m tests.torch.beside_gloo [NAME …]`; a line says what came of each program. A program
returns what it has computed.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817 - as everybody writes it
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import zerosim.torch.backend  # noqa: F401 - registers the backend
from tests.torch.ways import perceptron, sharded
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import broadcast_object, gather_objects

COMM = connect()
RANK, SIZE = COMM.rank, COMM.size
CPU = torch.device("cpu")
FOLDER = broadcast_object(COMM, tempfile.mkdtemp() if RANK == 0 else None)
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def mlp():
    return perceptron(16, 64, 8)


def train(model, optimizer=None, steps=3):
    """The losses of some steps, summed over the ranks."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(RANK), []
    for _ in range(steps):
        loss = model(torch.randn(4, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
        dist.all_reduce(losses[-1])
    return losses


def hooked(hook):
    model = DDP(mlp())
    model.register_comm_hook(None, hook)
    return train(model, steps=4)


for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
    PROGRAMS[hook.__name__] = lambda hook=hook: hooked(hook)
PROGRAMS["ddp_static_graph"] = lambda: train(DDP(mlp(), static_graph=True))


@program
def ddp_join():
    model = DDP(mlp())
    with model.join():
        return [model(torch.ones(2, 16)).sum().backward() for _ in range(2 + RANK)] and [
            each.grad.sum() for each in model.parameters()]


@program
def zero_redundancy():
    """Its states in one place; `tests.torch.bits` compares the training."""
    model = DDP(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    return len(optimizer.state_dict()["state"]) if RANK == 0 else 0


@program
def an_epoch():
    """As in Hugging Face: a sampler, a process that loads, accumulation, clipping and warm-up."""
    data, model = TensorDataset(torch.arange(640.0).reshape(40, 16) / 640), DDP(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 3))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, SIZE, RANK, seed=1), num_workers=1)
    for number, (x,) in enumerate(loader):
        model.require_backward_grad_sync = number % 2 == 1
        model(x).square().mean().backward()
        if number % 2 == 1:
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return [each.detach() for each in model.parameters()]


@program
def unused_on_some_ranks():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x):
            return self.a(x) if RANK % 2 == 0 else self.b(x)

    torch.manual_seed(0)
    return train(DDP(Either(), find_unused_parameters=True))


@program
def fsdp1():
    return [train(FullyShardedDataParallel(mlp(), device_id=CPU, use_orig_params=kept)) for kept in (True, False)]


@program
def fsdp2_with_tensor_parallelism():
    mesh = init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(mlp(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(sharded(model, mesh=mesh["dp"]))


@program
def distributed_tensors():
    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(37.0 * 6).reshape(37, 6)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = distribute_tensor(whole.T.contiguous(), mesh, [Shard(1)])
    partial = DTensor.from_local(torch.full((3,), float(RANK)), mesh, [dist.tensor.Partial()])
    return [(rows @ columns).full_tensor(), rows.redistribute(placements=[Shard(1)]).to_local(),
            rows.sum().full_tensor(), partial.redistribute(placements=[Replicate()]).to_local()]


def piped(schedule, numbers, whole):
    """A step of a pipeline; this rank has the layers `numbers` of `whole`."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(whole)]
    stages = [PipelineStage(layers[number], number, whole, CPU) for number in numbers]
    made = schedule(stages if len(stages) > 1 else stages[0], 2 * SIZE, loss_fn=nn.functional.mse_loss)
    x, y = torch.arange(128.0).reshape(16, 8) / 128, torch.ones(16, 8)
    losses = []
    last = {"target": y, "losses": losses} if whole - 1 in numbers else {}
    for _ in range(2):
        made.step(*([x] if 0 in numbers else []), **last)
    return [losses, *(layers[number].weight.grad for number in numbers)]


for name, (schedule, numbers, whole) in {
    "gpipe": (ScheduleGPipe, [RANK], SIZE), "one_f_one_b": (Schedule1F1B, [RANK], SIZE),
    "interleaved": (ScheduleInterleaved1F1B, [RANK, RANK + SIZE], 2 * SIZE),
    "zero_bubble": (ScheduleZBVZeroBubble, [RANK, 2 * SIZE - 1 - RANK], 2 * SIZE),
}.items():
    PROGRAMS[f"pipeline_{name}"] = lambda made=(schedule, numbers, whole): piped(*made)


@program
def checkpoint():
    model = sharded(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer)
    states = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=f"{FOLDER}/saved")
    later = dcp.async_save({"m": states["m"]}, checkpoint_id=f"{FOLDER}/async",
                           process_group=dist.new_group(backend=dist.get_backend()))
    train(model, optimizer, 2)
    later.result()
    dcp.load(states, checkpoint_id=f"{FOLDER}/saved")
    set_state_dict(model, optimizer, model_state_dict=states["m"], optim_state_dict=states["o"])
    return train(model, optimizer, 2)


@program
def functions():
    x = torch.full((3,), float(RANK + 1), requires_grad=True)
    (torch.cat(differentiable.all_gather(x)).square().sum() + differentiable.all_reduce(x).sum()).backward()
    y = torch.arange(float(SIZE * 2)).reshape(SIZE, 2).requires_grad_()
    z = functional.all_to_all_single_autograd(y, [1] * SIZE, [1] * SIZE, dist.group.WORLD)
    z.square().sum().backward()
    return [x.grad, y.grad, z.detach() + 0, functional.all_gather_tensor(x.detach(), 0, dist.group.WORLD) + 0,
            functional.reduce_scatter_tensor(torch.arange(2.0 * SIZE), "sum", 0, dist.group.WORLD) + 0]


@program
def compiled():
    return [train(model) for model in (torch.compile(DDP(mlp()), backend="eager"),
                                       DDP(torch.compile(mlp(), backend="eager")))]


def result_of(name, run, backend):
    """What a program gives over this backend, its exception as text."""
    broadcast_object(COMM, gather_objects(COMM, name))  # gloo does not connect to ranks that leave another group
    dist.init_process_group(backend, store=dist.PrefixStore(f"{name}/{backend}", STORE), rank=RANK, world_size=SIZE,
                            timeout=timedelta(seconds=40))
    try:
        torch.manual_seed(0)
        return run()
    except Exception as error:  # the others go on
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group()


def alike(one, other):
    """Whether two results are equal; for floats within the rounding of sums in different orders."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        whole = one.dtype == other.dtype and one.shape == other.shape
        return whole and torch.allclose(one.double(), other.double(), 1e-5, 1e-6, equal_nan=True)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other and not isinstance(one, str)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
    for name in sys.argv[1:] or PROGRAMS:
        found, due = (result_of(name, PROGRAMS[name], backend) for backend in ("zerosim", "gloo"))
        every = gather_objects(COMM, "" if alike(found, due) else f"zerosim {found}, gloo {due}")
        if RANK == 0:
            said = "; ".join(f"rank {rank}: {each[:300]}" for rank, each in enumerate(every) if each)
            print(f"{name}: {said or 'equal'}", flush=True)
