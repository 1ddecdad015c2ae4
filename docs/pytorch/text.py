"""A small GPT learns the text that ships with zerosim, by FSDP2; it asks for gloo, and knows no other backend.

    mpirun -n 2 zerosim torch --report page.html --json outcome.json text.py [STEPS]
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from zerosim.scenario.data.load import shakespeare

LAYERS, WIDTH, HEADS, CONTEXT, BATCH = 2, 64, 4, 64, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        normed = self.before(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.perceptron(x)


class Model(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x.flatten(0, 1))


dist.init_process_group("gloo")
rank, ranks, steps = dist.get_rank(), dist.get_world_size(), int(sys.argv[1]) if len(sys.argv) > 1 else 200
torch.manual_seed(0)
characters = sorted(set(text := shakespeare()))
data = torch.tensor([characters.index(each) for each in text[:200_000]])
model = Model(len(characters))
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(rank)
for step in range(1, steps + 1):
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH // ranks,), generator=generator)
    windows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
    scores = model(windows[:, :-1])
    loss = nn.functional.cross_entropy(scores, windows[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % max(steps // 5, 1) == 0:
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: {mean.item() / ranks:.3f} nats a character")
dist.destroy_process_group()
