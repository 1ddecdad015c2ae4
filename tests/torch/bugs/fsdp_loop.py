"""FSDP as it was used where a bug was published: the name of the case, and `mended` for the corrected use."""

import sys

import torch
import torch.distributed as dist
from model import Net, batches, say
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

case, mended = sys.argv[1], "mended" in sys.argv
dist.init_process_group("gloo")
net, clip = Net(seed=dist.get_rank() if case == "seeds" and not mended else 0), None
if case == "hybrid_of_one":
    # verl: a shard dimension of one rank; FSDP1 then reduces over it alone.
    mesh = init_device_mesh("cpu", (1, 2) if mended else (2, 1), mesh_dim_names=("replicate", "shard"))
    model = FullyShardedDataParallel(net, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD,
                                     use_orig_params=True, device_id=torch.device("cpu"))
elif case == "local_norm_fsdp1":
    # OpenDiloco: FSDP1's shards were clipped by PyTorch's function for whole gradients.
    model = FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))
    clip = model.clip_grad_norm_ if mended else lambda most: nn.utils.clip_grad_norm_(model.parameters(), most)
else:
    model = fully_shard(net)
if case == "local_norm_fsdp2":
    # AReaL: the norm was that of the local shards.
    def clip(most):
        shards = [p.grad if mended else p.grad.to_local() for p in model.parameters()]
        norm = nn.utils.get_total_norm(shards)
        norm = norm.full_tensor() if mended else norm
        for p in model.parameters():
            p.grad.mul_((most / norm).clamp(max=1.0))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if case == "early_forward":
    # pytorch #149205: a forward before the optimizer leaves gathered parameters, which the optimizer then keeps.
    with torch.no_grad():
        model(next(batches(1))[0])
    optimizer = optimizer if mended else torch.optim.SGD(model.parameters(), 0.1)
for step in range(1, 4):
    for x, y in batches(1):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    if clip:
        clip(0.01)
    optimizer.step()
    optimizer.zero_grad()
    say(step, loss)
dist.destroy_process_group()
