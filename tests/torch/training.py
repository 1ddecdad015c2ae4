"""A training loop that asks for gloo, by DDP or FSDP2; rank 0 prints the loss of each step."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
if sys.argv[1] == "ddp":
    model = DistributedDataParallel(model)
else:
    for layer in model[::2]:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(1 + rank)
for step in range(5):
    x, y = torch.randn(16, 64, generator=generator), torch.randint(0, 10, (16,), generator=generator)
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"step {step}: {loss.item() / ranks:.4f}")
dist.destroy_process_group()
