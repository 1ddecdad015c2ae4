"""Training loops with DDP as they were published: the loop's name, and `mended` for the loop after its correction."""

import contextlib
import sys

import torch
import torch.distributed as dist
from model import Net, batches, say
from torch.nn.functional import cross_entropy

name, mended = sys.argv[1], "mended" in sys.argv
dist.init_process_group("gloo")
net = Net()
if name == "unused":
    net.idle = torch.nn.Linear(2, 2)
model = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=name == "unused" and mended)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=name == "mingpt")
micro = 1 if name in ("mingpt", "llama2c", "unused") else 4


def build_nanogpt(number):
    """The switch was set between forward and backward."""
    if mended:
        model.require_backward_grad_sync = number == micro
    yield model
    model.require_backward_grad_sync = number == micro


def funasr(number):
    """batch_idx % accum_grad synchronized the first micro-batch, and not the last."""
    with model.no_sync() if (number if mended else number - 1) % micro else contextlib.nullcontext():
        yield model


def sd_scripts(number):
    """The module within DDP was called."""
    yield model if mended else model.module


mingpt = llama2c = unused = lambda number: iter([model])

# With an unused parameter the second forward ends with an error; the first update is wrong without one.
for step in range(1, 2 if name == "unused" else 4):
    for number, (x, y) in enumerate(batches(micro, seed=0 if name == "llama2c" and not mended else None), 1):
        context = globals()[name](number)
        loss = cross_entropy(next(context)(x), y) / micro
        if name == "build_nanogpt":
            next(context, None)
        scaler.scale(loss).backward()
        next(context, None)
    if mended:
        scaler.unscale_(optimizer)
    if name == "mingpt":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    say(step, micro * loss)
dist.destroy_process_group()
