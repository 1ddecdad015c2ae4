"""The model and the batches of the scripts in this folder."""

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    """A perceptron of three layers; `twice` uses the one in the middle twice."""

    def __init__(self, twice=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.twice, self.inp, self.mid, self.out = twice, nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        h = torch.tanh(self.mid(torch.tanh(self.inp(x))))
        return self.out(torch.tanh(self.mid(h)) if self.twice else h)


GENERATORS = {}


def batches(count, dtype=torch.float32, seed=None):
    """`count` micro-batches of this rank, other ones at each call; of all ranks, if there is a `seed`."""
    number = dist.get_rank() if seed is None else seed
    generator = GENERATORS.setdefault(number, torch.Generator().manual_seed(number))
    for _ in range(count):
        yield torch.randn(8, 16, generator=generator).to(dtype), torch.randint(0, 4, (8,), generator=generator)


def say(step, loss):
    """Print the loss of rank 0."""
    if dist.get_rank() == 0:
        print(f"> step {step}: loss {float(loss.detach()):.4f}", flush=True)
