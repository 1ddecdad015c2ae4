"""Scripts as people write them, which ask for gloo: tensor parallelism, a pipeline, accumulation and clipping.

Each is compared with the same model in one process; run by `mpirun -n 2 zerosim torch`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def fresh():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))


def near(found, due):
    assert torch.allclose(found, due, atol=1e-5), (found, due)


def tensor_parallel(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    model = parallelize_module(fresh(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.arange(24.0).reshape(3, 8) / 24
    near(model(x), fresh()(x))


def pipeline(rank, ranks):
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(ranks)]
    whole = nn.Sequential(*layers)
    stage = PipelineStage(layers[rank], rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    x, y = torch.arange(64.0).reshape(8, 8) / 64, torch.ones(8, 8)
    if rank == 0:
        schedule.step(x)
    elif rank == ranks - 1:
        near(schedule.step(target=y), whole(x))
    else:
        schedule.step()
    assert layers[rank].weight.grad is not None


def accumulating_and_clipping(rank, ranks):
    model, alone = fresh(), fresh()
    fully_shard(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]
    for _ in range(2):
        batches = torch.randn(ranks, 4, 3, 8, generator=torch.Generator().manual_seed(1))
        for number in range(4):
            model.set_requires_gradient_sync(number == 3)
            (model(batches[rank, number]).square().mean() / 4).backward()
            for each in range(ranks):
                (alone(batches[each, number]).square().mean() / 4 / ranks).backward()
        norms = [nn.utils.clip_grad_norm_(each.parameters(), 0.1) for each in (model, alone)]
        near(norms[0].full_tensor(), norms[1])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for sharded, due in zip(model.parameters(), alone.parameters(), strict=True):
        near(sharded.full_tensor().detach(), due.detach())


def functional(rank, ranks):
    near(all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD),
         torch.arange(float(ranks)).repeat_interleave(2))
    near(reduce_scatter_tensor(torch.arange(2.0 * ranks), "sum", 0, dist.group.WORLD),
         ranks * torch.arange(2.0 * rank, 2.0 * rank + 2))
    if rank == 0:
        dist.send_object_list([{"words": "hello"}], dst=1)
    elif rank == 1:
        said = [None]
        dist.recv_object_list(said, src=0)
        assert said == [{"words": "hello"}]


dist.init_process_group("cpu:gloo")
for script in (tensor_parallel, pipeline, accumulating_and_clipping, functional):
    script(dist.get_rank(), dist.get_world_size())
    dist.barrier()
if dist.get_rank() == 0:
    print("all four ran")
dist.destroy_process_group()
