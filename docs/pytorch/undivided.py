"""The fault of picotron's pipelines, reduced to its loop: the loss is never divided by the number of micro-batches.

    torchrun --nproc-per-node 1 -m zerosim.torch --record one --double docs/pytorch/undivided.py
    torchrun --nproc-per-node 2 -m zerosim.torch --record two --double docs/pytorch/undivided.py
    zerosim torch --same one two

On one rank the loop divides. On two each rank holds a half of the layers, and every gradient is 4 times too large. Adam
hides it: the losses agree to six digits.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4)]
stage = torch.nn.Sequential(*layers[rank * 4 // stages : (rank + 1) * 4 // stages])
optimizer = torch.optim.AdamW(stage.parameters(), 1e-2)
micro_batches = 4

for step in range(1, 5):
    samples, total = torch.Generator().manual_seed(step), 0.0
    for _ in range(micro_batches):
        x = torch.randn(16, 8, generator=samples)
        y = x.argmax(1)
        if rank > 0:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        out = stage(x)
        if rank < stages - 1:
            dist.send(out.detach(), rank + 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, rank + 1)
            out.backward(gradient)
        else:
            loss = cross_entropy(out, y)
            loss = loss / micro_batches if stages == 1 else loss    # a pipeline must divide, too
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
    if rank == stages - 1:
        print(f"step {step}: {total if stages == 1 else total / micro_batches:.6f}", flush=True)
dist.destroy_process_group()
