"""PyTorch's trainers of the models that `zerosim bench` times: DDP, ZeroRedundancyOptimizer, FSDP2, one step per call.

The models are those of `zerosim.bench.timings`, with AdamW; each of 2 ranks takes half of the batch.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from zerosim.bench.timings import RANKS, Workload

OneStep = Callable[[], object]


class Transformer(nn.Module):
    """Tokens to scores of the next token, in GPT-2's shape."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        width, tokens, vocabulary = workload.model.width, workload.inputs, workload.outputs
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, workload.model.heads, 4 * width, 0.0, "gelu", batch_first=True,
                                       norm_first=True)
            for _ in range(workload.model.layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden.flatten(0, 1))


class Perceptron(nn.Module):
    """Samples to scores, with ReLU between the layers."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        widths = (workload.inputs, *workload.model.hidden, workload.outputs)
        self.blocks = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))

    def forward(self, x: Any) -> Any:
        *hidden, last = self.blocks
        for layer in hidden:
            x = nn.functional.relu(layer(x))
        return last(x)


def fresh(workload: Workload) -> Any:
    torch.manual_seed(0)
    return Transformer(workload) if workload.model.kind == "transformer" else Perceptron(workload)


def ddp(workload: Workload, group: Any) -> OneStep:
    model = DistributedDataParallel(fresh(workload), process_group=group)
    return training(model, torch.optim.AdamW(model.parameters()), workload)


def zero_redundancy(workload: Workload, group: Any) -> OneStep:
    """DDP, with the optimizer state of each parameter on one rank."""
    model = DistributedDataParallel(fresh(workload), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group)
    return training(model, optimizer, workload)


def fsdp2(workload: Workload, group: Any) -> OneStep:
    """FSDP2, which adds gradients and divides afterwards, as gloo has no average."""
    model, mesh = fresh(workload), DeviceMesh.from_group(group, "cpu")
    apply: Callable[..., Any] = fully_shard
    for block in [*model.blocks, model]:
        apply(block, mesh=mesh).set_force_sum_reduction_for_comms(True)
    return training(model, torch.optim.AdamW(model.parameters()), workload)


def training(model: Any, optimizer: Any, workload: Workload) -> OneStep:
    """A function that trains one step, on this rank's half of the batch."""
    data = workload.dataset()
    mine = slice(dist.get_rank(), None, RANKS)
    x, labels = torch.as_tensor(data.x[mine]), torch.as_tensor(data.y[mine]).flatten()

    def step() -> None:
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
