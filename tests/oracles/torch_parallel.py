"""PyTorch's answers to the other `splits`: its pipeline schedules, sequences in pieces, and a mixture of experts."""

from dataclasses import replace
from itertools import pairwise
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as across
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional

from tests.oracles import functions, splits, torch_functions, torch_modules

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved_1f1b": ScheduleInterleaved1F1B}


def of_pipeline(split, second=None):
    """The loss and the gradients, by PyTorch's schedules; `second` is called before a step in which no shapes are sent.
    """
    case, rank = split.model, dist.get_rank()
    chunks = 2 if split.how == "interleaved_1f1b" else 1
    built = torch_functions.module(case, case.parameter).double()
    pieces = stages_of(built, splits.RANKS * chunks)
    mine = [PipelineStage(pieces[number], number, len(pieces), torch.device("cpu"))
            for number in range(rank, len(pieces), splits.RANKS)]
    x, targets = map(torch.from_numpy, case.batch())
    schedule = SCHEDULES[split.how](mine if chunks > 1 else mine[0], splits.MICRO_BATCHES, loss_fn=lambda y, due:
                                    torch_functions.loss_of(case.loss, y, due))
    losses = []
    if second is not None:
        schedule.step(*[x.double()] * (rank == 0), target=targets)
        built.zero_grad()
        second()
    schedule.step(*[x.double()] * (rank == 0), target=targets, losses=losses)
    return all_of(built, losses)


def all_of(built, losses):
    """The mean loss and the gradients, each of the rank that has it."""
    loss = torch.stack(losses).mean() if losses else torch.zeros((), dtype=torch.float64)
    return {"loss": added(loss)} | {
        name: added(torch.zeros_like(each) if each.grad is None else each.grad)
        for name, each in built.named_parameters()}


def stages_of(built, count):
    """The modules of so many pieces, which share the parameters of a perceptron; an activation follows all but one."""
    layers = [*built.layers]
    runs = [round(number * len(layers) / count) for number in range(count + 1)]
    parts = [*(nn.Sequential(layer, nn.GELU(approximate="tanh")) for layer in layers[:-1]), layers[-1]]
    return [nn.Sequential(*parts[first:last]) for first, last in pairwise(runs)]


def of_context(split):
    """The loss and the gradients where each rank has a piece of every sequence, and gathers all keys and values."""
    case, rank, mine = split.model, dist.get_rank(), split.model.sequence // splits.RANKS
    built = torch_functions.module(case, case.parameter).double()
    x, targets = (torch.from_numpy(each)[:, rank * mine:(rank + 1) * mine] for each in case.batch())

    def attend(q, k, v, heads, key_value_heads):
        k, v = (torch.cat(across.all_gather(each.contiguous()), dim=1) for each in (k, v))
        q, k, v = (each.unflatten(-1, (count, -1)).transpose(1, 2)
                   for each, count in ((q, heads), (k, key_value_heads), (v, key_value_heads)))
        seen = torch.ones(mine, case.sequence, dtype=torch.bool).tril(rank * mine)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)

    def rotated(x, size, base, whole=torch_modules.rotated):
        before = torch.zeros_like(x[:, :1]).expand(-1, rank * mine, -1)
        return whole(torch.cat([before, x], dim=1), size, base)[:, rank * mine:]

    with mock.patch.multiple(torch_modules, attend=attend, rotated=rotated):
        y = built(x)
        counted = case.samples * (case.sequence - case.uncounted)
        loss = functional.cross_entropy(
            y.flatten(0, -2), targets.flatten(), ignore_index=functions.UNCOUNTED, reduction="sum") / counted
        loss.backward()
    return {"loss": added(loss), **{name: added(each.grad) for name, each in built.named_parameters()}}


def added(tensor):
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


class Experts(nn.Module):
    """Experts with queues for neighbouring tokens, in one process: first choices first, tokens in order, by loops."""

    def __init__(self, split, chosen=1, shared=None):
        super().__init__()
        case, (self.experts, self.together, self.capacity) = split.model, splits.EXPERTS[split.by]
        self.chosen, self.shared = chosen, shared
        self.router = nn.Linear(case.width, self.experts, bias=False)
        for name in ("inner",) if shared is None else ("gate", "inner"):
            self.register_parameter(name, nn.Parameter(torch.empty(self.experts, case.width, case.inner)))
        self.outer = nn.Parameter(torch.empty(self.experts, case.inner, case.width))

    def served(self, token, expert):
        h = token @ self.inner[expert]
        h = functional.gelu(h, approximate="tanh") if self.shared is None else (
            functional.silu(token @ self.gate[expert]) * h)
        return h @ self.outer[expert]

    def forward(self, x):
        chances, found = torch.softmax(self.router(x), dim=-1), []
        for run, each in zip(*(every.flatten(0, 1).split(self.together) for every in (x, chances)), strict=True):
            served, y = [0] * self.experts, [torch.zeros_like(token) for token in run]
            for choice in range(self.chosen):
                for place, token in enumerate(run):
                    expert = int(each[place].argsort(descending=True)[choice])
                    served[expert] += 1
                    if served[expert] <= self.capacity:
                        y[place] = y[place] + each[place, expert] * self.served(token, expert)
            found.append(torch.stack(y))
        routed = torch.cat(found).view_as(x)
        return routed if self.shared is None else routed + self.shared(x)


class LatentAttention(nn.Module):
    """Keys and values of a latent, queries of another, and turned numbers beside both."""

    def __init__(self, case):
        super().__init__()
        self.heads, self.size, d = case.heads, splits.LATENTS["rotary_size"], case.width
        latent, of_queries, turned = splits.LATENTS["latent"], splits.LATENTS["query_latent"], case.heads * self.size
        self.q_norm, self.kv_norm = (nn.RMSNorm(each, eps=1e-5) for each in (of_queries, latent))
        for name, inputs, outputs in (
                ("q_down", d, of_queries), ("q_up", of_queries, d), ("q_rotary", of_queries, turned),
                ("kv_down", d, latent), ("k_rotary", d, self.size), ("k_up", latent, d), ("v_up", latent, d),
                ("o", d, d)):
            self.add_module(f"{name}_proj", nn.Linear(inputs, outputs, bias=False))

    def forward(self, x):
        def by_head(y):
            return y.unflatten(-1, (self.heads, -1))

        def turned(y):
            return torch_modules.rotated(y, self.size, 10000.0)

        of_queries, latent = self.q_norm(self.q_down_proj(x)), self.kv_norm(self.kv_down_proj(x))
        q = by_head(self.q_up_proj(of_queries)), by_head(turned(self.q_rotary_proj(of_queries)))
        k = by_head(self.k_up_proj(latent)), turned(self.k_rotary_proj(x))[:, :, None].expand(-1, -1, self.heads, -1)
        q, k = (torch.cat(each, dim=-1).flatten(2) for each in (q, k))
        return self.o_proj(torch_modules.attend(q, k, self.v_up_proj(latent), self.heads, self.heads))


def of_deepseek(split):
    """The loss and the gradients of latent attention, a perceptron in the first block, and experts beside a shared one.
    """
    case = split.model
    built = torch_modules.Llama(case)
    first, second = built.model.layers
    first.mlp, shared = (torch_modules.LlamaPerceptron(replace(case, inner=each))
                         for each in (splits.DENSE, splits.SHARED))
    second.mlp = Experts(split, splits.CHOSEN, shared)
    for block in built.model.layers:
        block.self_attn = LatentAttention(case)
    return answers_of(case, built, lambda name: name.replace("1.mlp.shared.", "1.mlp*").replace(
        "1.mlp.", "1.").replace("1.mlp*", "1.mlp."))


def of_mixture(split):
    """The loss and the gradients of GPT-2 with experts, of which no process has a share."""
    built = torch_modules.GPT2(split.model)
    for block in built.h:
        block.mlp = Experts(split)
    return answers_of(split.model, built, lambda name: name.replace(".mlp.", "."))


def answers_of(case, built, ours):
    """The loss and the gradients of a module, by zerosim's names of its parameters."""
    names = {ours(name): each for name, each in built.double().named_parameters()}
    with torch.no_grad():
        for name, each in names.items():
            each.copy_(torch.from_numpy(case.parameter(name, tuple(each.shape))))
    x, targets = map(torch.from_numpy, case.batch())
    loss = torch_functions.loss_of(case.loss, built(x), targets)
    loss.backward()
    return {"loss": loss, **{name: each.grad for name, each in names.items()}}
