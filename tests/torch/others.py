"""Scripts as people write them, which ask for gloo: tensor parallelism, pipelines, HSDP, loops as in Hugging Face.

Each is compared with the same model in one process; run by `mpirun -n 4 zerosim torch`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


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


def hugging_face_like(rank, ranks):
    """An epoch with a sampler, accumulation under no_sync, clipping, warm-up, and metrics gathered from all ranks."""
    data = TensorDataset(torch.arange(640.0).reshape(80, 8) / 640, torch.ones(80, 8))
    plain, alone = fresh(), fresh()
    model = DistributedDataParallel(plain)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (plain, alone)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: min(1, (step + 1) / 3)) for each in optimizers]
    samplers = [DistributedSampler(data, ranks, each, shuffle=True, seed=1) for each in range(ranks)]
    loaders = [list(DataLoader(data, batch_size=2, sampler=sampler)) for sampler in samplers]
    accumulate = 2
    for number, (x, y) in enumerate(loaders[rank]):
        updates = (number + 1) % accumulate == 0
        model.require_backward_grad_sync = updates
        loss = nn.functional.mse_loss(model(x), y) / accumulate
        loss.backward()
        for loader in loaders:
            (nn.functional.mse_loss(alone(loader[number][0]), loader[number][1]) / accumulate / ranks).backward()
        if updates:
            norms = [nn.utils.clip_grad_norm_(each.parameters(), 0.5) for each in (plain, alone)]
            near(norms[0], norms[1])
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    metrics = [None] * ranks
    dist.all_gather_object(metrics, {"rank": rank, "loss": loss.item()})
    assert [each["rank"] for each in metrics] == list(range(ranks))
    for mine, due in zip(plain.parameters(), alone.parameters(), strict=True):
        near(mine.detach(), due.detach())


def hsdp(rank, ranks):
    """Two rows that shard, whose ranks of equal number replicate."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    model, alone = fresh(), fresh()
    for layer in model[::2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, alone)]
    for step in range(3):
        batches = torch.randn(ranks, 3, 8, generator=torch.Generator().manual_seed(step))
        model(batches[rank]).square().mean().backward()
        for each in range(ranks):
            (alone(batches[each]).square().mean() / ranks).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for sharded, due in zip(model.parameters(), alone.parameters(), strict=True):
        near(sharded.full_tensor().detach(), due.detach())


def pipeline_by_hand(rank, ranks):
    """Each rank has a layer; activations go right and their gradients left, micro-batches by their tags."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(ranks)]
    batches = torch.arange(96.0).reshape(3, 4, 8) / 96
    inputs, outputs = [], []
    for tag, batch in enumerate(batches):
        x = batch.clone()
        if rank > 0:
            dist.recv(x, rank - 1, tag=tag)
        inputs.append(x.requires_grad_(rank > 0))
        outputs.append(torch.tanh(layers[rank](x)))
        if rank < ranks - 1:
            dist.isend(outputs[-1].detach(), rank + 1, tag=tag)
    gradients = [torch.ones_like(each) for each in outputs]
    if rank < ranks - 1:
        for request in [dist.irecv(gradients[tag], rank + 1, tag=tag) for tag in (2, 1, 0)]:
            request.wait()
    for tag in (2, 1, 0):
        outputs[tag].backward(gradients[tag])
        if rank > 0:
            dist.isend(inputs[tag].grad, rank - 1, tag=tag)
    mine = layers[rank].weight.grad.clone()
    layers[rank].zero_grad()
    x = batches.flatten(0, 1)
    for layer in layers:
        x = torch.tanh(layer(x))
    x.sum().backward()
    near(mine, layers[rank].weight.grad)


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
SCRIPTS = (tensor_parallel, pipeline, accumulating_and_clipping, hugging_face_like, hsdp, pipeline_by_hand, functional)
for script in SCRIPTS:
    script(dist.get_rank(), dist.get_world_size())
    dist.barrier()
if dist.get_rank() == 0:
    print("all seven ran")
dist.destroy_process_group()
