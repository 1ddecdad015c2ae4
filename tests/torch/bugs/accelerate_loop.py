"""A training loop with Accelerate as LongCat-Image published it, and `mended` for the loop after its correction."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from model import Net, batches, say

mended = "mended" in sys.argv
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = Net()
model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 1e-2))
for step in range(1, 5):
    for x, y in batches(1):
        with accelerator.accumulate(model):
            if not mended:
                optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            if mended:
                optimizer.zero_grad()
    say(step, loss)
dist.destroy_process_group()
