"""Training loops with Accelerate as they were published: `longcat` or `scheduler`, and `mended` for the correction."""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from model import Net, batches, say
from torch.nn.functional import cross_entropy

case, mended = sys.argv[1], "mended" in sys.argv
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2 if case == "longcat" else 1,
                          step_scheduler_with_optimizer=not mended)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
model, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
for step in range(1, 5):
    for x, y in batches(1):
        with accelerator.accumulate(model):
            if case == "longcat" and not mended:
                optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            if case == "scheduler":
                scheduler.step()
            if case != "longcat" or mended:
                optimizer.zero_grad()
    say(step, loss)
dist.destroy_process_group()
