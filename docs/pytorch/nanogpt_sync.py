"""The bug of build-nanogpt, pull request 30, reduced to its loop: the switch of DDP's reduction is set too late.

    torchrun --nproc-per-node 2 -m zerosim.torch --check docs/pytorch/nanogpt_sync.py

DDP reads `require_backward_grad_sync` in forward. Set after forward, it acts on the next micro-batch: every rank
updates with its own gradient of micro-batches 2 to 4. The loss falls all the same.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
samples = torch.Generator().manual_seed(dist.get_rank())
micro_batches = 4

for step in range(1, 9):
    total = 0.0
    for number in range(micro_batches):
        x = torch.randn(16, 8, generator=samples)
        y = x[:, :4].argmax(1)
        loss = cross_entropy(model(x), y) / micro_batches
        model.require_backward_grad_sync = number == micro_batches - 1    # belongs above the line before
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {total:.3f}", flush=True)
dist.destroy_process_group()
