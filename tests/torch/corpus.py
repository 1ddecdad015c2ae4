"""Small scripts, wrong and right, and what a check must say of each; all run in one process per rank.

    mpirun -n 3 python -m tests.torch.corpus [NAME …]          over zerosim
    torchrun --nproc-per-node 3 -m tests.torch.corpus [NAME …] over gloo
"""

import contextlib
import copy
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, parallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from zerosim.torch.check import backward, checking, gradients, recorder, updating, window
from zerosim.torch.check.causes import CAUSES

STEPS = 3


class World:
    """One case on this rank: batches, loss, models."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.generator = torch.Generator().manual_seed(self.rank)
        torch.manual_seed(0)
        self.seen = []
        """Losses, and the weights after each update."""

    def batch(self):
        return torch.randn(8, 6, generator=self.generator), torch.randint(0, 4, (8,), generator=self.generator)

    def loss(self, model, batch=None):
        x, y = batch or self.batch()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        self.seen.append(loss.detach().clone())
        return loss

    def net(self, *between):
        return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), *between, nn.Linear(9, 4))

    def ddp(self, module=None, **options):
        return nn.parallel.DistributedDataParallel(module or self.net(), **options)

    def fsdp(self, module=None, root=True, **options):
        module = module or self.net()
        for each in module:
            if list(each.parameters()):
                dist.fsdp.fully_shard(each, **options)
        return dist.fsdp.fully_shard(module, **options) if root else module

    def fsdp1(self, module=None, strategy="FULL_SHARD", original=False, **options):
        return dist.fsdp.FullyShardedDataParallel(
            module or self.net(), use_orig_params=original, device_id=torch.device("cpu"),
            sharding_strategy=dist.fsdp.ShardingStrategy[strategy], **options)

    def adam(self, model, lr=1e-2):
        return torch.optim.AdamW(model.parameters(), lr)

    def steps(self, model, count=2):
        """The model and its optimizer, once for each step."""
        yield from [(model, self.adam(model))] * count

    def updates(self, model, count=2):
        """The model and its optimizer, once for each step; gradients are cleared before, the update comes after."""
        for _, optimizer in self.steps(model, count):
            optimizer.zero_grad()
            yield model, optimizer
            optimizer.step()

    def data(self, count):
        return TensorDataset(torch.randn(count, 6), torch.randint(0, 4, (count,)))

    def train(self, model, optimizer=None, steps=STEPS, micro=1, quiet=lambda model, k: contextlib.nullcontext(),
              between=lambda model, optimizer, step: None, batch=None, divisor=None):
        """An ordinary loop; `quiet` is entered around micro-batch k, `between` is called before `optimizer.step()`."""
        optimizer = optimizer or self.adam(model)
        for step in range(steps):
            optimizer.zero_grad()
            for k in range(micro):
                with quiet(model, k):
                    (self.loss(model, batch and batch()) / (divisor or micro)).backward()
            between(model, optimizer, step)
            optimizer.step()
        return model


def module(forward, **parts):
    """A module of these parts; its forward is `forward(module, *given)`."""
    class Made(nn.Module):
        def forward(self, *given, **named):
            return forward(self, *given, **named)

    made = Made()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


@dataclass
class Case:
    """A script; `cause` is the finding that it must lead to, empty if it is right."""

    run: Callable[[World], object]
    cause: str = ""
    parameter: str = ""
    step: int = 1
    rank: int | None = None
    least: int = 2
    most: int = 4
    reason: str = ""
    """Why its gradient is not judged."""
    ours: bool | None = None
    """Whether it needs zerosim's collectives, or gloo's; None if it runs over both."""
    proved: bool | None = None
    """Whether the cause is found, and not only suspicious; as the table of causes says if None."""


CASES: dict[str, Case] = {}


def case(cause="", **known):
    def keep(run):
        CASES[run.__name__] = Case(run, cause, **known)
        return run

    return keep


def with_each_trainer(cause="", **known):
    """The script `run(w, wrap)` as two cases, in which `wrap` is `w.ddp` and `w.fsdp`."""
    def keep(run):
        for kind in ("ddp", "fsdp"):
            CASES[f"{kind}_{run.__name__}"] = Case(lambda w, kind=kind: run(w, getattr(w, kind)), cause, **known)

    return keep


def quiet_until(last):
    return lambda model, k: contextlib.nullcontext() if k == last else model.no_sync()


def gradients_by(change):
    """What changes each gradient before the update."""
    return lambda model, *_: [change(p.grad) for p in model.parameters() if p.grad is not None]


def clipped(norm):
    return lambda model, *_: nn.utils.clip_grad_norm_(model.parameters(), norm)


def scaled_to_shards(model, norm):
    """Clipping by hand, by the norm of what this rank has."""
    norms = torch.stack([p.grad.to_local().norm() for p in model.parameters()])
    for p in model.parameters():
        p.grad.to_local().mul_(norm / norms.norm())


def searching(model):
    return torch.optim.LBFGS(model.parameters(), 0.1, 4, line_search_fn="strong_wolfe")


def in_modules(model, method, value):
    """Call `method` of each FSDP module with `value`."""
    for each in model.modules():
        if hasattr(each, method):
            getattr(each, method)(value)
    return model


def two_by_two():
    """A mesh of two replicas, each of two shards."""
    return dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def in_step(number, change):
    """What changes the model before the update of one step."""
    return lambda model, optimizer, step: step == number and change(model)


def seeded_by_rank(w):
    torch.manual_seed(w.rank)
    return w


def scaled(w, change=lambda scaler, optimizer, model: None, steps=2, precision=None, **scales):
    """Train with a scaler of losses; `change` is called between backward and the update."""
    scaler = torch.amp.GradScaler("cpu", **scales)
    for model, optimizer in w.steps(w.ddp(), steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", precision, enabled=precision is not None):
            loss = w.loss(model)
        scaler.scale(loss).backward()
        change(scaler, optimizer, model)
        scaler.step(optimizer)
        scaler.update()


def unscaled_by_hand_too(scaler, optimizer, model):
    scaler.unscale_(optimizer)
    gradients_by(lambda g: g.div_(scaler.get_scale()))(model)


def unscaled_and_clipped(scaler, optimizer, model):
    scaler.unscale_(optimizer)
    clipped(1.0)(model)


# -- wrong


@case("own gradient only", parameter="0.weight", rank=0)
def no_sync_forgotten(w):
    with (model := w.ddp()).no_sync():
        w.train(model)


def by_hand(w, divide=True, silent=None):
    """Reduce each gradient before the update; the `silent` rank adds zeros."""
    def between(model, optimizer, step):
        for p in model.parameters():
            if w.rank == silent:
                p.grad.zero_()
            dist.all_reduce(p.grad)
            p.grad /= w.size if divide else 1

    return between


@with_each_trainer("the same samples", rank=1)
def same_batch(w, wrap):
    w.generator.manual_seed(0)
    w.train(wrap())


@with_each_trainer("gradient of the last micro-batch only")
def zero_grad_in_the_loop(w, wrap):
    for model, optimizer in w.steps(wrap()):
        for _ in range(3):
            optimizer.zero_grad()
            (w.loss(model) / 3).backward()
        optimizer.step()


@with_each_trainer("zero_grad is missing", step=2)
def zero_grad_missing(w, wrap):
    for model, optimizer in w.steps(wrap(), 3):
        w.loss(model).backward()
        optimizer.step()


@case("the same samples every epoch", step=4)
def set_epoch_forgotten(w):
    data = w.data(24 * w.size)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data))
    for model, optimizer in w.steps(w.ddp()):
        for batch in loader:
            w.train(model, optimizer, steps=1, batch=lambda: batch)


@case("a rank with fewer micro-batches")
def fewer_micro_batches(w):
    for model, optimizer in w.steps(w.ddp()):
        count = 2 if w.rank else 3
        w.train(model, optimizer, steps=1, micro=count, quiet=quiet_until(count - 1), divisor=3)


@case("a parameter is frozen on one rank", rank=1, parameter="0.bias")
def frozen_on_a_rank(w):
    model = w.net()
    model[0].bias.requires_grad_(w.rank != 1)
    w.train(model, between=lambda model, *_: [dist.all_reduce(p.grad) and p.grad.div_(w.size)
                                              for p in model.parameters() if p is not model[0].bias])


def listed_net():
    return module(lambda m, x: m.last(m.others[0](m.first(x)).tanh()),
                  first=nn.Linear(6, 9), others=[nn.Linear(9, 9)], last=nn.Linear(9, 4))


@case("optimizer built before sharding")
def optimizer_before_sharding(w):
    model = w.net()
    optimizer = w.adam(model)
    w.train(w.fsdp(model), optimizer)


@case("fp16 overflow skipped on one rank", rank=1)
def overflow_on_a_rank(w):
    scaled(w, lambda scaler, optimizer, model: w.rank == 1 and scaler.get_scale() == 65536.0 and (
        model.module[0].bias.grad.fill_(float("inf"))))


def tied_net():
    found = module(lambda m, x: m.head(m.embedding(x).tanh())[:, :4],
                   embedding=nn.Linear(6, 6, bias=False), head=nn.Linear(6, 6, bias=False))
    found.head.weight = found.embedding.weight
    return found


@case("unequal numbers of updates", rank=1)
def update_on_rank_0(w):
    for model, optimizer in w.steps(w.ddp()):
        optimizer.zero_grad()
        w.loss(model).backward()
        if w.rank == 0:
            optimizer.step()


@case("replicas have drifted apart", step=2, rank=1, parameter="0.bias")
def weights_touched_on_a_rank(w):
    model = w.ddp()
    optimizer = w.adam(model)
    w.train(model, optimizer, steps=1)
    if w.rank == 1:
        model.module[0].bias.data[3] += 1e-3
    w.train(model, optimizer)


@case("samplers of other orders", rank=1)
def sampler_seeded_by_rank(w):
    data = w.data(96)
    batches = iter(DataLoader(data, 8, sampler=DistributedSampler(data, seed=w.rank)))
    w.train(w.ddp(), batch=lambda: next(batches))


@case("other initial weights", parameter="scale", rank=1, proved=False)
def another_buffer(w):
    scaled = module(lambda m, x: m.layer(x * m.scale), layer=nn.Linear(6, 4))
    scaled.register_buffer("scale", torch.randn(6, generator=w.generator))
    w.train(dist.fsdp.fully_shard(scaled))


@case("clipping by the local norm", proved=False)
def clipped_before_the_reduction(w):
    def between(model, *rest):
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        by_hand(w)(model, *rest)

    w.train(w.net(), between=between)


@case("N times the mean", proved=False)
def micro_batches_reduced_again(w):
    for model, optimizer in w.steps(w.net()):
        for _ in range(2):
            w.loss(model).backward()
            by_hand(w, divide=False)(model, None, 0)
        for p in model.parameters():
            p.grad /= 2 * w.size
        optimizer.step()
        optimizer.zero_grad()


def closed(w, model, optimizer, loss=lambda found: found):
    """Train two steps by closures, of which each returns `loss` of its loss."""
    for _ in range(2):
        batch = w.batch()

        def closure(batch=batch):
            optimizer.zero_grad()
            found = w.loss(model, batch)
            found.backward()
            return loss(found.detach())

        optimizer.step(closure)


@case("optimizer state is lost", step=2, rank=1)
def state_of_a_shard_is_lost(w):
    model = w.ddp()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    w.train(model, optimizer, between=in_step(1, lambda _: w.rank == 1 and optimizer.optim.state.clear()))


@case("batches overlap", step=4)
def batches_advance_by_one(w):
    w.generator.manual_seed(0)
    batches = [w.batch() for _ in range(9)]
    numbers = iter(range(9))
    w.train(w.ddp(), steps=6, batch=lambda: batches[next(numbers) + w.rank])


@case("a rank counts more than once", proved=False)
def hook_doubles_a_rank(w):
    model = w.ddp()
    model.register_comm_hook(None, lambda state, bucket: dist.all_reduce(
        bucket.buffer() * (2.0 if w.rank == 1 else 1.0) / w.size, async_op=True).get_future().then(
            lambda f: f.value()[0]))
    w.train(model)


@case("a parameter is never changed", parameter="0.bias")
def update_skips_parameters(w):
    class Skipping(torch.optim.SGD):
        def step(self, closure=None):
            with torch.no_grad():
                for p in self.param_groups[0]["params"][::2]:
                    p.sub_(0.1 * p.grad)

    model = w.ddp()
    w.train(model, Skipping(model.parameters(), 0.1))


@case("not unscaled", proved=False)
def half_precision_scaled_by_hand(w):
    for model, _ in w.updates(w.ddp()):
        with torch.autocast("cpu", torch.float16):
            loss = w.loss(model)
        (loss * 1024).backward()


@case("all parameters are frozen")
def everything_frozen(w):
    model = w.net().requires_grad_(False)
    for _, _ in w.updates(model):
        (model(w.batch()[0].requires_grad_()).sum()).backward()


class CopiedTo(torch.autograd.Function):
    """Megatron's f: in backward the sum over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.contiguous().clone())
        return gradient


class ReducedFrom(torch.autograd.Function):
    """Megatron's g: in forward the sum over the ranks."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x := x.clone())
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@case("a micro-batch without a backward", step=2)
def pipeline_loses_a_micro_batch(w):
    layer = nn.Linear(6, 6)
    for _, _ in w.updates(layer, 3):
        made = []
        for _ in range(2):
            x = torch.randn(4, 6, generator=w.generator)
            if w.rank:
                dist.recv(x, w.rank - 1)
            made.append(layer(x))
            if w.rank < w.size - 1:
                dist.send(made[-1].detach(), w.rank + 1)
        made[-1].square().mean().backward()


# -- right


@case()
def adversaries(w):
    maker, critic = w.ddp(nn.Linear(6, 6)), w.ddp(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
    makes, criticises = w.adam(maker), w.adam(critic)
    for _ in range(3):
        real, noise = w.batch()[0], w.batch()[0]
        criticises.zero_grad()
        (critic(maker(noise).detach()).mean() - critic(real).mean()).backward()
        criticises.step()
        makes.zero_grad()
        (-critic(maker(noise)).mean()).backward()
        makes.step()


@case()
def activation_checkpoints(w):
    recomputed = module(lambda m, x: m.b(torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False)),
                        a=nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.3), nn.Tanh()), b=nn.Linear(9, 4))
    w.train(w.ddp(recomputed), micro=2, quiet=quiet_until(1))


@case()
def differentiated_by_hand(w):
    for model, _ in w.updates(w.net()):
        found = torch.autograd.grad(w.loss(model), [*model.parameters()])
        for each, gradient in zip(model.parameters(), found, strict=True):
            dist.all_reduce(gradient)
            each.grad = gradient / w.size


@case(reason="average their weights")
def weights_averaged_every_second_step(w):
    w.train(w.net(), steps=4, between=lambda model, optimizer, step: step % 2 or averaged(model))


@case(reason="may hold parts of one model")
def tensor_parallel_by_hand_with_its_sum(w):
    """A norm on all ranks, then columns and rows of two layers."""
    norm, rest = nn.LayerNorm(6), nn.Linear(6, 6)
    up, down = seeded_by_rank(w) and nn.Linear(6, 5), nn.Linear(5, 6, bias=False)
    w.generator.manual_seed(0)
    w.train(module(lambda m, x: ReducedFrom.apply(m.down(m.up(CopiedTo.apply(m.norm(m.rest(x)))).tanh()))[:, :4],
                   norm=norm, rest=rest, up=up, down=down))


@case()
def experts_exchange_tokens(w):
    def forward(m, x):
        there = dist.nn.functional.all_to_all_single(torch.empty_like(x), x)
        back = m.expert(there).tanh()
        return dist.nn.functional.all_to_all_single(torch.empty_like(back), back)[:, :4] + m.shared(x)

    net = module(forward, shared=nn.Linear(6, 4), expert=nn.Linear(6, 6))
    for model, _ in w.updates(net):
        x = torch.randn(12, 6, generator=w.generator)
        model(x).square().mean().backward()
        by_hand(w)(model.shared, None, 0)


@case(reason="is NaN or infinite in step 2 on rank 0, already in the rank's own backward")
def nan_in_a_batch(w):
    model, steps = w.ddp(), iter(range(9))

    def batch():
        x, y = w.batch()
        return x * (float("nan") if w.rank == 0 and next(steps) == 1 else 1.0), y

    w.train(model, batch=batch)


@case(reason="which the script has reduced")
def sums_normalised_by_all_tokens(w):
    for model, _ in w.updates(w.net()):
        x, y = w.batch()
        dist.all_reduce(tokens := torch.tensor(float(len(y))))
        (nn.functional.cross_entropy(model(x), y, reduction="sum") / tokens).backward()
        by_hand(w, divide=False)(model, None, 0)


@case()
def tails_of_epochs_discarded(w):
    for model, optimizer in w.steps(w.ddp()):
        for k in range(7):
            w.loss(model).backward()
            if k % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.zero_grad()


@case()
def last_layer_held_still_at_first(w):
    def between(model, optimizer, step):
        for p in model.module[2].parameters() if step == 0 else ():
            p.grad = None

    w.train(w.ddp(), between=between)


def shared(loss):
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


@case()
def closures(w):
    for model in (w.ddp(), w.fsdp()):
        closed(w, model, w.adam(model))
    model = w.ddp()
    closed(w, model, searching(model), shared)


@case()
def clipped_by_value(w):
    for model in (w.ddp(), w.fsdp()):
        w.train(model, between=lambda model, *_: nn.utils.clip_grad_value_(model.parameters(), 0.01))


@case()
def projected_gradients(w):
    for model, optimizer in w.updates(w.ddp(), 3):
        w.loss(model).backward()
        first = [p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        w.loss(model).backward()
        for p, other in zip(model.parameters(), first, strict=True):
            p.grad = p.grad - (p.grad * other).sum().clamp(max=0) / other.square().sum() * other


@case()
def updates_skipped_after_clipping(w):
    for model in (w.ddp(), w.fsdp()):
        optimizer = w.adam(model)
        for step in range(4):
            optimizer.zero_grad(set_to_none=step > 2)
            w.loss(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if step not in (1, 2):
                optimizer.step()


@case(reason="the script changes its gradients")
def clipped_in_each_micro_batch(w):
    for model, _ in w.updates(w.ddp()):
        for _ in range(2):
            w.loss(model).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@case(reason="sparse gradients", ours=False)
def a_table_with_sparse_gradients(w):
    table = nn.Embedding(20, 6, sparse=True)
    model = w.ddp(nn.Sequential(table, nn.Linear(6, 4)))
    optimizers = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(model.module[1].parameters())
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randint(20, (8,), generator=w.generator)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


@case()
def joined(w):
    model = w.ddp()
    with Join([model]):
        w.train(model, steps=2 + w.rank)


@case()
def weighed_by_samples(w):
    def between(model, *rest):
        gradients_by(lambda g: g.mul_(2 * (w.rank + 1) / (w.size + 1)))(model)
        by_hand(w)(model, *rest)

    w.train(w.net(), between=between)


@case()
def evaluating(w):
    model = w.ddp(w.net(nn.Dropout(0.5)))

    def between(model, optimizer, step):
        model.eval()
        with torch.no_grad():
            w.loss(model)
        w.loss(model.module)
        model.train()
        total = torch.ones(1)
        dist.all_reduce(total)

    w.train(model, between=between)


@case()
def outputs_in_objects(w):
    @dataclass
    class Output:
        loss: torch.Tensor
        scores: dict

    def forward(m, x, y):
        scores = m.net(x)
        return Output(nn.functional.cross_entropy(scores, y), {"scores": [scores]})

    for model, optimizer in w.steps(w.ddp(module(forward, net=w.net())), 3):
        x, y = w.batch()
        optimizer.zero_grad(set_to_none=False)
        model(x, y=y).loss.backward()
        optimizer.step()


@case()
def unused_parameters(w):
    branches = module(lambda m, x: m.a(x) + (m.b(x) if float(x[0, 0]) > 0 else m.c(x)),
                      a=nn.Linear(6, 4), b=nn.Linear(6, 4), c=nn.Linear(6, 4))
    w.train(w.ddp(branches, find_unused_parameters=True), steps=4)


@case()
def compressing_hook(w):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = w.ddp()
    model.register_comm_hook(None, fp16_compress_hook)
    w.train(model)


@case()
def fsdp_compiled_layers(w):
    layers = [nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)]
    for each in layers:
        each.compile(backend="aot_eager")
    w.train(w.fsdp(nn.Sequential(*layers, nn.Linear(6, 4)),
                   mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)))


@case()
def sampled(w):
    data = w.data(24 * w.size)
    sampler = DistributedSampler(data)
    loader, model = DataLoader(data, 8, sampler=sampler), w.ddp()
    optimizer = w.adam(model)
    next(iter(loader))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            w.train(model, optimizer, steps=1, batch=lambda: batch)


@case()
def fsdp1_of_each_strategy(w):
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        for original in (False, True):
            w.train(w.fsdp1(strategy=strategy, original=original), micro=2, quiet=quiet_until(1))


@case()
def fsdp1_wrapped_by_layers_clipped_in_bfloat16(w):
    wrap, policy = dist.fsdp.wrap.ModuleWrapPolicy({nn.Linear}), dist.fsdp.MixedPrecision(torch.bfloat16, torch.float32)
    for net in (w.net(), tied_net()):
        w.train(w.fsdp1(net, mixed_precision=policy, auto_wrap_policy=wrap),
                between=lambda model, *_: model.clip_grad_norm_(0.01))


class Attending(nn.Module):
    """One block of a transformer; `heads` are those of a rank."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.embedding, self.norm, self.last = nn.Embedding(8, 24), nn.LayerNorm(24), nn.LayerNorm(24)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24, bias=False) for _ in range(4))
        self.up, self.down, self.out = nn.Linear(24, 48), nn.Linear(48, 24), nn.Linear(24, 4)

    def forward(self, x):
        x = self.embedding((x * 2).round().long() % 8)
        h = self.norm(x)
        q, k, v = (each(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(h.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.last(x))))
        return self.out(x).mean(1)


def in_columns_and_rows(*columns, **others):
    """A plan of tensor parallelism: these modules by columns, the others as they say."""
    return {name: parallel.ColwiseParallel() for name in columns} | others


def tensor_parallel(w, plan, net=None, data=1, seed=None):
    """The model on the ranks of each row of a mesh; `data` rows have their own samples."""
    mesh = dist.init_device_mesh("cpu", (data, w.size // data), mesh_dim_names=("data", "tensor"))
    w.generator.manual_seed(mesh.get_local_rank("data") if seed is None else seed)
    net = net or nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
    net = parallel.parallelize_module(net, mesh["tensor"], plan)
    if data > 1:
        for each in [*net.children(), net]:
            dist.fsdp.fully_shard(each, mesh=mesh["data"])
    return net


PAIR = in_columns_and_rows("0", **{"2": parallel.RowwiseParallel()})
ATTENTION = in_columns_and_rows("q", "k", "v", "up", o=parallel.RowwiseParallel(), down=parallel.RowwiseParallel(),
                                embedding=parallel.RowwiseParallel(input_layouts=Replicate()))
IN_SEQUENCE = ATTENTION | {
    "embedding": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": parallel.SequenceParallel(use_local_output=True), "last": parallel.SequenceParallel(use_local_output=True),
    **{name: parallel.ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")},
    **{name: parallel.RowwiseParallel(output_layouts=Shard(1)) for name in ("o", "down")},
    "out": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}


@case(least=4)
def tensor_parallel_and_fsdp(w):
    for plan, net in ((PAIR, None), (ATTENTION, Attending(6)), (IN_SEQUENCE, Attending(6))):
        w.train(tensor_parallel(w, plan, net, data=2), micro=2, between=lambda model, *_: plan is PAIR and (
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)))


@case("different samples in a tensor-parallel group", rank=1)
def tensor_parallel_on_different_samples(w):
    model = tensor_parallel(w, PAIR)
    w.generator.manual_seed(w.rank)
    w.train(model)


@case(reason="ranks communicate within the forward")
def tensor_parallel_by_hand(w):
    def forward(m, x):
        found = m.part(x)
        dist.all_reduce(total := found.detach().clone())
        return found + (total - found).detach()

    w.generator.manual_seed(0)
    seeded_by_rank(w)
    w.train(module(forward, part=nn.Linear(6, 4)))


def pipeline(w, made):
    layer = nn.Linear(6, 6)
    optimizer = w.adam(layer)
    stage = pipelining.PipelineStage(layer, w.rank, w.size, torch.device("cpu"))
    schedule = made(stage, n_microbatches=w.size, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(4 * w.size, 6, generator=w.generator)
        last = {"target": torch.ones(4 * w.size, 6)} if w.rank == w.size - 1 else {}
        schedule.step(*([x] if w.rank == 0 else []), **last)
        optimizer.step()


CASES |= {
    "fsdp_never_reduces": Case(
        lambda w: w.train(in_modules(w.fsdp(), "set_requires_gradient_sync", False)), "no gradient"),
    "other_learning_rate": Case(
        lambda w: w.train(model := w.ddp(), w.adam(model, 1e-2 * (1 + (w.rank == 1)))),
        "another learning rate on a rank", rank=1),
    "head_forgotten": Case(
        lambda w: w.train(model := w.ddp(), w.adam(model.module[0])),
        "a parameter that no optimizer has", parameter="2.weight"),
    "fsdp_other_seeds": Case(
        lambda w: w.train(seeded_by_rank(w).fsdp()), "other initial weights", parameter="0.weight", rank=1),
    "by_hand_other_seeds": Case(lambda w: w.train(seeded_by_rank(w).net(), between=by_hand(w)),
                                "other initial weights", parameter="0.weight", rank=1),
    "ddp_divided_again": Case(
        lambda w: w.train(w.ddp(), between=gradients_by(lambda g: g.div_(w.size))), "divided twice",
        proved=False),
    "multiplied_in_each_step": Case(
        lambda w: w.train(w.ddp(), between=gradients_by(lambda g: g.mul_(7))), "multiplied by a constant"),
    "fsdp1_clipped_as_if_whole": Case(
        lambda w: w.train(w.fsdp1(), between=clipped(0.01)), "clipping by the local norm"),
    "clipped_on_rank_0": Case(
        lambda w: w.train(w.ddp(), between=lambda *_: w.rank or clipped(0.1)(*_)), "clipping on one rank"),
    "clipped_before_unscaling": Case(
        lambda w: scaled(w, lambda scaler, optimizer, model: clipped(1.0)(model)), "clipping before unscaling"),
    "unscaled_by_hand_too": Case(
        lambda w: scaled(w, unscaled_by_hand_too, init_scale=1024.0), "unscaled twice"),
    "fsdp_clipped_by_shard": Case(
        lambda w: w.train(w.fsdp(), between=lambda model, *_: scaled_to_shards(model, 0.01)),
        "clipping by the local norm"),
    "one_element_of_one_gradient": Case(
        lambda w: w.train(w.fsdp(), between=in_step(1, lambda model: w.rank == 1 and (
            model[2].weight.grad.to_local().view(-1)[0].add_(0.1)))),
        "no order of addition explains it", step=2, rank=1, parameter="2.weight", proved=False),
    "line_search_by_own_losses": Case(
        lambda w: closed(w, model := w.ddp(), searching(model)), "replicas have drifted apart"),
    "fsdp_within_rows_of_the_mesh_only": Case(
        lambda w: w.train(w.fsdp(mesh=two_by_two()["shard"])), "the mean of a smaller group", least=4),
    "tensor_parallel_rows_on_the_same_samples": Case(
        lambda w: w.train(tensor_parallel(w, PAIR, data=2, seed=0)), "the same samples", rank=2, least=4),
    "tensor_parallel_without_the_reduction": Case(
        lambda w: w.train(tensor_parallel(w, PAIR | {"2": parallel.RowwiseParallel(output_layouts=Partial())})),
        "another model in parts"),
    "norm_outside_the_plan": Case(
        lambda w: w.train(tensor_parallel(
            w, {name: each for name, each in IN_SEQUENCE.items() if name != "norm"}, Attending(12 // w.size))),
        "own part only", parameter="norm.weight", most=3),
    "by_hand_without_a_rank": Case(
        lambda w: w.train(w.net(), between=by_hand(w, silent=1)), "a rank is missing from the mean", least=3,
        proved=False),
    "fsdp_layers_in_a_list": Case(lambda w: w.train(dist.fsdp.fully_shard(listed_net())), "an unregistered parameter"),
}
CASES |= {
    "fsdp_divide_factor": Case(
        lambda w: w.train(in_modules(w.fsdp(), "set_gradient_divide_factor", 1.0)), ours=True),
    "hsdp": Case(lambda w: w.train(w.fsdp(mesh=two_by_two()), micro=2), least=4),
    "fsdp1_hybrid": Case(lambda w: w.train(
        w.fsdp1(device_mesh=two_by_two(), strategy="HYBRID_SHARD", original=True)), least=4),
    "fsdp_bfloat16_throughout": Case(lambda w: w.train(
        w.fsdp(mp_policy=MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32)), between=clipped(0.1))),
    "ddp_many_buckets_clipped": Case(lambda w: w.train(w.ddp(bucket_cap_mb=0.0002), between=clipped(0.1))),
    "ddp_scaler_autocast_half": Case(lambda w: scaled(
        w, unscaled_and_clipped, steps=5, precision=torch.float16, init_scale=2.0 ** 40, growth_interval=2)),
    "zero_redundancy": Case(lambda w: w.train(
        model := w.ddp(), ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))),
    "noisy_gradients": Case(lambda w: w.train(w.ddp(), between=gradients_by(
        lambda g: g.add_(torch.randn(g.shape, generator=torch.Generator().manual_seed(len(w.seen))))))),
    "scaled_by_hand": Case(lambda w: w.train(w.ddp(), micro=3, divisor=1, between=gradients_by(lambda g: g.div_(3)))),
    "tensor_parallel_clipped": Case(lambda w: w.train(tensor_parallel(w, PAIR), micro=2, between=clipped(0.01))),
    "sequence_parallel": Case(
        lambda w: w.train(tensor_parallel(w, IN_SEQUENCE, Attending(12 // w.size)), micro=2), most=3),
    "ddp": Case(lambda w: w.train(w.ddp())),
    "ddp_accumulating": Case(lambda w: w.train(w.ddp(), micro=3, quiet=quiet_until(2))),
    "fsdp": Case(
        lambda w: w.train(w.fsdp(), between=clipped(0.1))),
    "fsdp_bfloat16_reduced_in_float32": Case(
        lambda w: w.train(w.fsdp(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)), micro=2)),
    "batch_norm": Case(lambda w: w.train(w.ddp(w.net(nn.BatchNorm1d(9))), micro=2)),
    "compiled": Case(lambda w: w.train(w.ddp(torch.compile(w.net(), backend="aot_eager"))), most=2),
    "mean_by_hand": Case(lambda w: w.train(w.net(), between=by_hand(w), micro=2)),
    **{f"pipeline_{each.__name__}": Case(lambda w, each=each: pipeline(w, each), reason="a pipeline: its ranks")
       for each in (pipelining.ScheduleGPipe, pipelining.Schedule1F1B)},
    "static_graph": Case(lambda w: w.train(w.ddp(static_graph=True), micro=2)),
}


# -- right programs that look wrong, and their wrong relatives


@case()
def prompts_on_all_ranks(w):
    images, words = w.ddp(nn.Linear(6, 5)), w.ddp(nn.Sequential(nn.Embedding(9, 7), nn.Linear(7, 5)))
    optimizer = torch.optim.AdamW([*images.parameters(), *words.parameters()], 1e-2)
    prompts = torch.arange(4)
    for _ in range(STEPS):
        x, y = w.batch()
        optimizer.zero_grad()
        nn.functional.cross_entropy(images(x) @ words(prompts).T, y).backward()
        optimizer.step()


@case()
def evaluation_within_an_epoch(w):
    data, held = w.data(16 * w.size), w.data(8 * w.size)
    sampler = DistributedSampler(data)
    batches, others = DataLoader(data, 4, sampler=sampler), DataLoader(held, 4, sampler=DistributedSampler(held))
    model = w.ddp()
    optimizer = w.adam(model)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in batches:
            w.train(model, optimizer, steps=1, batch=lambda: batch)
            with torch.no_grad():
                for x, _ in others:
                    model(x)


@case(reason="the script changes its gradients")
def per_sample_clipping(w):
    for model, optimizer in w.steps(w.net(), STEPS):
        x, y = w.batch()
        total = [torch.zeros_like(p) for p in model.parameters()]
        for k in range(len(x)):
            optimizer.zero_grad()
            w.loss(model, (x[k : k + 1], y[k : k + 1])).backward()
            factor = 0.1 / torch.cat([p.grad.flatten() for p in model.parameters()]).norm().clamp(min=0.1)
            for each, p in zip(total, model.parameters(), strict=True):
                each.add_(factor * p.grad)
        for each, p in zip(total, model.parameters(), strict=True):
            dist.all_reduce(each)
            p.grad = each / (len(x) * w.size)
        optimizer.step()


@case()
def tasks_of_which_one_is_projected(w):
    for model, optimizer in w.steps(w.net(), STEPS):
        x, y = w.batch()
        output, gradients_of = model(x), []
        for loss in (nn.functional.cross_entropy(output, y), output.square().mean()):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            by_hand(w)(model, optimizer, 0)
            gradients_of.append([p.grad.clone() for p in model.parameters()])
        for p, one, other in zip(model.parameters(), *gradients_of, strict=True):
            p.grad = one + other - 0.3 * (one * other).sum().clamp(max=0) / other.square().sum() * other
        optimizer.step()


@case(most=3)
def summed_over_the_tensor_ranks(w):
    plan = {name: each for name, each in IN_SEQUENCE.items() if name != "norm"}
    w.train(tensor_parallel(w, plan, Attending(12 // w.size)), between=lambda model, *_: [
        dist.all_reduce(p.grad) for p in model.norm.parameters()])


@case()
def losses_divided_by_the_whole_batch(w):
    w.train(w.net(), divisor=w.size, between=by_hand(w, divide=False))


@case()
def two_optimizers_share_a_head(w):
    model = w.ddp()
    head, every = w.adam(model.module[2]), w.adam(model)
    for _ in range(STEPS):
        every.zero_grad()
        w.loss(model).backward()
        head.step()
        every.step()


@case()
def written_through_data(w):
    def between(model, *_):
        for p in model.parameters():
            p.grad.data.mul_((0.01 / (p.grad.data.norm() + 1e-6)).clamp(max=1))

    w.train(w.ddp(), between=between)


@case()
def norm_printed_on_rank_0(w):
    w.train(w.ddp(), between=lambda *_: w.rank or clipped(float("inf"))(*_))


@case()
def clipped_at_the_scale(w):
    scaled(w, lambda scaler, optimizer, model: clipped(0.1 * scaler.get_scale())(model))


@case()
def clipped_over_two_optimizers(w):
    for rest in (True, False):
        model = w.ddp()
        optimizers = [w.adam(model.module[0]), torch.optim.SGD(model.module[2].parameters(), 0.1)][: 1 + rest]
        for _ in range(STEPS):
            model.zero_grad()
            w.loss(model).backward()
            clipped(0.05)(model)
            for optimizer in optimizers:
                optimizer.step()


@case()
def a_gain_of_zero(w):
    net = module(lambda m, x: m.head(x + m.gain * m.norm(x).tanh() * 1e-5), norm=nn.LayerNorm(6), head=nn.Linear(6, 4))
    net.gain = nn.Parameter(torch.zeros(1))
    model = w.ddp(net)
    w.train(model, torch.optim.SGD(model.parameters(), 0.01), steps=4)


def scheduled(w, times):
    optimizer = w.adam(model := w.ddp())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40)
    for _ in range(5):
        w.train(model, optimizer, steps=1)
        for _ in range(times):
            scheduler.step()


@case()
def buffer_of_the_rank(w):
    net = module(lambda m, x: m.layer(x), layer=nn.Linear(6, 4))
    net.register_buffer("first_sample", torch.tensor([w.rank * 1000, 1]))
    w.train(dist.fsdp.fully_shard(net))


def averaged(model):
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


@case()
def averaged_after_the_checked_steps(w):
    with (model := w.ddp()).no_sync():
        w.train(model)
    averaged(model)


def averaging(w, model, ranks, average=None):
    """Train, and average weights in a copy on these ranks."""
    average = average or copy.deepcopy(model)
    optimizer = w.adam(model)
    for _ in range(4):
        w.train(model, optimizer, steps=1)
        for mean, p in zip(average.parameters(), model.parameters(), strict=True) if w.rank in ranks else ():
            mean.data.mul_(0.9).add_(p.detach(), alpha=0.1)


@case("batches of unequal size", rank=1)
def a_smaller_batch_on_a_rank(w):
    def batch():
        x, y = w.batch()
        return (x[:3], y[:3]) if w.rank == 1 else (x, y)

    w.train(w.ddp(), batch=batch)


@case("gradient of the first micro-batch only")
def first_micro_batch_only(w):
    model = w.ddp()
    for optimizer in [w.adam(model)] * 2:
        optimizer.zero_grad()
        (w.loss(model) / 2).backward()
        handles = [p.register_hook(torch.zeros_like) for p in model.parameters()]
        (w.loss(model) / 2).backward()
        for handle in handles:
            handle.remove()
        optimizer.step()


@case("not unscaled")
def scaler_without_its_step(w):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for model, _ in w.updates(w.ddp()):
        scaler.scale(w.loss(model)).backward()


@case("no order of addition explains it", rank=1)
def a_collective_is_off(w):
    true = dist.reduce_scatter_single

    def off(*args, **kwargs):
        work = true(*args, **kwargs)
        if work is not None:
            work.wait()
        if w.rank == 1:
            (args[0] if args else kwargs["output"]).view(-1)[0] += 0.1
        return work

    dist.reduce_scatter_single = off
    try:
        w.train(w.fsdp())
    finally:
        dist.reduce_scatter_single = true


@case("another norm", proved=False)
def clipped_by_half_the_norm(w):
    def between(model, *_):
        half = torch.cat([p.grad.flatten() for p in model.parameters()]).norm() / 2
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, half)

    w.train(w.ddp(), between=between)


@case("updates are rounded away")
def bfloat16_without_a_master(w):
    model = w.ddp(w.net())
    model = w.ddp(model.module.bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, weight_decay=0.0)
    for _ in range(3):
        x, y = w.batch()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()


@case("a parameter never gets a gradient", parameter="a.bias")
def adapters_below_a_checkpoint(w):
    net = module(lambda m, x: m.b(torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=True)),
                 a=nn.Linear(6, 9), b=nn.Linear(9, 4))
    w.train(w.ddp(net, find_unused_parameters=True))


CASES |= {
    "averages_on_all_ranks": Case(lambda w: averaging(w, w.ddp(), range(w.size))),
    "averages_of_shards_on_rank_0": Case(
        lambda w: averaging(w, w.fsdp(), [0], w.fsdp()), "a model without an optimizer differs", step=2),
    "averages_on_rank_0": Case(
        lambda w: averaging(w, w.ddp(), [0]), "a model without an optimizer differs", proved=False, step=2),
    "scheduled": Case(lambda w: scheduled(w, 1)),
    "scheduler_steps_too_often": Case(lambda w: scheduled(w, w.size), "the scheduler steps once per rank"),
    "rate_of_zero": Case(lambda w: w.train(model := w.ddp(), w.adam(model, 0.0)), "the learning rate is 0"),
}


# -- right programs of other kinds


@case()
def momentum_encoder_with_a_queue(w):
    encoder = w.ddp()
    slow, queue = copy.deepcopy(encoder.module).requires_grad_(False), torch.randn(16 * w.size, 4)
    for _ in w.updates(encoder, 3):
        x, _ = w.batch()
        with torch.no_grad():
            for mean, p in zip(slow.parameters(), encoder.parameters(), strict=True):
                mean.mul_(0.9).add_(p, alpha=0.1)
            keys = slow(x + 0.1)
        nn.functional.cross_entropy(encoder(x) @ torch.cat([keys, queue]).T, torch.arange(8)).backward()
        dist.all_gather(parts := [torch.empty_like(keys) for _ in range(w.size)], keys)
        queue = torch.cat([*parts, queue])[: len(queue)]


@case()
def policy_and_values(w):
    policy, values = w.ddp(), w.ddp(nn.Linear(6, 1))
    optimizers = w.adam(policy), w.adam(values)
    for _ in range(2):
        x, actions = w.batch()
        with torch.no_grad():
            old = policy(x).log_softmax(-1)[range(8), actions]
        for half in (slice(0, 4), slice(4, 8)):
            advantage = torch.randn(4, generator=w.generator) - values(x[half])[:, 0]
            ratio = (policy(x[half]).log_softmax(-1)[range(4), actions[half]] - old[half]).exp()
            (-(ratio * advantage.detach()).mean() + advantage.square().mean()).backward()
            clipped(0.1)(policy)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


@case()
def contrasted_with_all_ranks(w):
    for model, _ in w.updates(w.ddp()):
        here = model(w.batch()[0])
        dist.all_gather(parts := [torch.empty_like(here) for _ in range(w.size)], here.detach())
        parts[w.rank] = here
        nn.functional.cross_entropy(here @ torch.cat(parts).T, torch.arange(8) + 8 * w.rank).backward()


@case()
def labelled_and_unlabelled(w):
    samplers = [DistributedSampler(w.data(16 * w.size)) for _ in range(2)]
    model = w.ddp()
    optimizer = w.adam(model)
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batch, (x, _) in zip(*(DataLoader(each.dataset, 8, sampler=each) for each in samplers), strict=True):
            optimizer.zero_grad()
            (w.loss(model, batch) + model(x).square().mean()).backward()
            optimizer.step()


def adapted(layer):
    """A layer that is held still, with an adapter of rank 2."""
    return module(lambda m, x: m.layer(x) + m.up(m.down(x)), layer=layer.requires_grad_(False),
                  down=nn.Linear(layer.in_features, 2, bias=False), up=nn.Linear(2, layer.out_features, bias=False))


def adam_of_what_trains(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)


@case()
def adapters_before_sharding(w):
    model = w.fsdp(nn.Sequential(adapted(nn.Linear(6, 9)), nn.Tanh(), adapted(nn.Linear(9, 4))))
    w.train(model, adam_of_what_trains(model), micro=2)


@case()
def adapters_after_sharding_reduced_by_hand(w):
    model = w.fsdp(w.net().requires_grad_(False))
    model[2] = adapted(model[2])
    optimizer = adam_of_what_trains(model)
    w.train(model, optimizer, between=lambda *_: [
        p.grad.div_(w.size) for p in optimizer.param_groups[0]["params"] if not dist.all_reduce(p.grad)])


class Orthogonal(torch.optim.Optimizer):
    """Muon's update: the gradient of a matrix is made orthogonal, or the rows of a rank as if they were the matrix."""

    def __init__(self, parameters, whole):
        super().__init__(parameters, {"lr": 0.1})
        self.whole = whole

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            gradient = p.grad.full_tensor() if self.whole else p.grad.to_local()
            left, _, right = torch.linalg.svd(gradient.view(-1, p.shape[-1]), full_matrices=False)
            update = 0.1 * (left @ right).view_as(gradient)
            if self.whole:
                update = distribute_tensor(update, p.device_mesh, p.placements).to_local()
            p.to_local().sub_(update)


@case()
def orthogonal_updates(w):
    model = w.fsdp()
    w.train(model, Orthogonal(model.parameters(), whole=True))


@case()
def a_scaler_for_one_of_two_models(w):
    scaler, first, second = torch.amp.GradScaler("cpu"), w.ddp(), w.ddp()
    optimizers = [w.adam(model) for model in (first, second)]
    for _ in range(STEPS):
        optimizers[0].zero_grad()
        scaler.scale(w.loss(first)).backward()
        scaler.unscale_(optimizers[0])
        clipped(0.1)(first)
        scaler.step(optimizers[0])
        scaler.update()
        w.train(second, optimizers[1], steps=1, between=clipped(0.1))


@case()
def fsdp1_with_its_scaler(w):
    model = w.fsdp1(mixed_precision=dist.fsdp.MixedPrecision(torch.float16, torch.float32))
    scaler, optimizer = ShardedGradScaler("cpu", init_scale=1024.0), w.adam(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(w.loss(model)).backward()
        scaler.unscale_(optimizer)
        model.clip_grad_norm_(0.1)
        scaler.step(optimizer)
        scaler.update()


@case()
def a_probe_on_rank_0(w):
    model = w.ddp()
    optimizer, probe = w.adam(model), nn.Linear(4, 1)
    guess = w.adam(probe)

    def between(model, *_):
        if w.rank == 0:
            guess.zero_grad()
            probe(model.module(torch.ones(3, 6)).detach()).square().mean().backward()
            guess.step()

    w.train(model, optimizer, between=between)


@case()
def a_memory_looked_at_before_each_batch(w):
    for model, optimizer in w.steps(w.ddp(), 4):
        kept = []
        for _ in range(2):
            optimizer.zero_grad()
            w.loss(model).backward()
            kept.append([p.grad.clone() for p in model.parameters()])
        if sum((a * b).sum() for a, b in zip(*kept, strict=True)) < 1e9 * (optimizer.state != {}):
            for p, other in zip(model.parameters(), kept[0], strict=True):
                p.grad += 0.1 * other
        optimizer.step()


@case()
def batches_in_shards(w):
    mesh = dist.init_device_mesh("cpu", (w.size,))
    model = distribute_module(w.net(), mesh)
    for _ in w.updates(model):
        x, _ = w.batch()
        x = DTensor.from_local(x, mesh, [Shard(0)])
        model(x).square().mean().backward()


@case()
def resumed(w):
    model = w.ddp()
    optimizer = w.adam(model)
    w.train(model, optimizer)
    again = w.adam(model, 1e-3)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    w.train(model, again)


@case()
def three_optimizers_of_which_one_is_slow(w):
    model = w.ddp(w.net(nn.Linear(9, 9), nn.Tanh()))
    optimizers = [torch.optim.SGD(model.module[number].parameters(), 0.1) for number in (0, 2, 4)]
    for step in range(4):
        w.loss(model).backward()
        for optimizer in optimizers[step % 2 == 0 :]:
            optimizer.step()
            optimizer.zero_grad()


@case()
def clipped_by_hand_over_all_shards(w):
    def between(model, *_):
        dist.all_reduce(square := sum(p.grad.to_local().square().sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad.mul_((0.1 / square.sqrt()).clamp(max=1))

    w.train(w.fsdp(), between=between)


@case("a loss is summed in place")
def loss_summed_in_place(w):
    for model, _ in w.updates(w.ddp()):
        dist.all_reduce(loss := w.loss(model))
        (loss / w.size).backward()


@case()
def loss_printed_as_a_mean(w):
    for model, _ in w.updates(w.ddp()):
        (loss := w.loss(model)).backward()
        dist.all_reduce(loss)


@case("divided twice", proved=False)
def gradients_divided_by_the_micro_batches_too(w):
    w.train(w.ddp(), micro=4, between=gradients_by(lambda g: g.div_(4)))


def clipped_by_hand(w, summed):
    def between(model, *_):
        norm = sum(p.grad.square().sum() for p in model.parameters())
        if summed:
            dist.all_reduce(norm)
        gradients_by(lambda g: g.mul_((0.01 / norm.sqrt()).clamp(max=1)))(model)

    w.train(w.ddp(), between=between)


@case("tied weights are apart")
def untied_after_wrapping(w):
    model = w.ddp(tied_net())
    model.module.head.weight = nn.Parameter(model.module.embedding.weight.detach().clone())
    w.train(w.ddp(model.module))


@case("an update mixes a shard's elements", parameter="0.weight")
def orthogonal_by_shards(w):
    model = w.fsdp(nn.Sequential(nn.Linear(6, 192), nn.Tanh(), nn.Linear(192, 8)))
    w.train(model, Orthogonal([p for p in model.parameters() if p.dim() == 2], whole=False))


def frozen(net, number):
    net[number].requires_grad_(False)
    return net


def averaging_in_a_table(w, ranks):
    optimizer = w.adam(model := w.fsdp())
    table = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(4):
        w.train(model, optimizer, steps=1)
        for name, p in model.named_parameters() if w.rank in ranks else ():
            table[name].lerp_(p.detach(), 0.1)


@case()
def a_scale_without_a_dimension(w):
    net = module(lambda m, x: m.net(x) * m.scale.exp(), net=w.net())
    net.scale = nn.Parameter(torch.ones([]))
    w.train(w.ddp(net))


@case(reason="no backward has reached")
def per_sample_gradients_by_vmap(w):
    for model, _ in w.updates(w.net()):
        x, y = w.batch()
        held = {name: p.detach() for name, p in model.named_parameters()}
        of = torch.func.vmap(torch.func.grad(lambda given, x, y, model=model: nn.functional.cross_entropy(
            torch.func.functional_call(model, given, (x,)), y)), (None, 0, 0))(held, x, y)
        for name, p in model.named_parameters():
            dist.all_reduce(total := of[name].clamp(-0.1, 0.1).sum(0))
            p.grad = total / (len(x) * w.size)


CASES |= {
    "norm_summed_over_replicas": Case(lambda w: clipped_by_hand(w, summed=True), "a norm is summed over replicas"),
    "clipped_by_hand": Case(lambda w: clipped_by_hand(w, summed=False)),
    "table_of_averages_on_rank_0": Case(
        lambda w: averaging_in_a_table(w, [0]), "a model without an optimizer differs", step=2),
    "table_of_averages": Case(lambda w: averaging_in_a_table(w, range(9))),
    "layer_frozen_by_accident": Case(
        lambda w: w.train(w.ddp(frozen(w.net(nn.Linear(9, 9), nn.Tanh()), 2))), "a parameter never gets a gradient",
        parameter="2.weight"),
    "backbone_frozen": Case(lambda w: w.train(w.ddp(frozen(w.net(nn.Linear(9, 9), nn.Tanh()), 0)))),
    "head_trained_alone": Case(lambda w: w.train(model := w.ddp(), w.adam(model.module[2]))),
}


def complaint(known, document):
    """What is wrong with what a check says; empty if nothing is."""
    found, suspected = document["findings"], document["suspicions"]
    if not known.cause:
        reasons = [each["why"] for each in document["verdicts"] if each["what"] == "gradient"]
        if known.reason and not any(known.reason in each for each in reasons):
            return f"not judged because of {reasons}, not {known.reason!r}"
        return "" if not found else f"FALSE ALARM {found[0]['cause']}: {found[0]['text']}"
    proved = bool(CAUSES[known.cause].proof) if known.proved is None else known.proved
    named = [each for each in (found if proved else suspected) if each["cause"] == known.cause]
    if not named:
        reasons = [f"{each['what']}: {each['why']}" for each in document["verdicts"] if each["verdict"] == "not judged"]
        said, suspected = ([(each["cause"], each["text"]) for each in said] for said in (found, suspected))
        return f"MISSED: found {said}, suspected {suspected}, not judged {reasons}"
    first = named[0]
    for key in ("parameter", "step", "rank"):
        due = getattr(known, key)
        if due not in (None, "") and first[key] != due:
            return f"{key} is {first[key]!r}, not {due!r}"
    return "" if "corpus.py:" in first["line"] or not first["line"] else f"line is {first['line']!r}"


def judged(known):
    """The complaint about the check of a script, and what the check said; no tensor of an earlier one is left."""
    gc.collect()
    with checking(quiet=True) as checked:
        known.run(World())
    return complaint(known, checked.document), checked.document


def bytes_of(known):
    """The bytes of the losses, of the weights after each update, and of the random states that a script leaves."""
    world = World()

    def updated(optimizer, *_):
        for group in optimizer.param_groups:
            world.seen.extend((p.to_local() if hasattr(p, "to_local") else p).detach().clone() for p in group["params"])

    handle = register_optimizer_step_post_hook(updated)
    try:
        known.run(world)
    finally:
        handle.remove()
    states = [torch.get_rng_state(), world.generator.get_state()]
    return [each.contiguous().view(torch.uint8).numpy().tobytes() for each in [*world.seen, *states] if each.dim()] + [
        each.item().hex() for each in world.seen if not each.dim()]


def touched(known):
    """Whether the check changes a byte of a training; empty if not."""
    plain, frames = bytes_of(known), []
    with recorder.ScriptRecorder(frames.append).listening() as observed:
        checked = bytes_of(known)
    return "" if plain == checked and frames and not observed.failed else (
        f"other bytes with the check: {len(plain)}, {len(checked)}, {observed.failed}")


PLANTED = {
    "a micro-batch is left out": (backward.Backwards, "arrived", lambda *_, **__: None, "ddp"),
    "every gradient is sketched as zeros": (
        window, "sketch", lambda *given, true=window.sketch: 0 * true(*given), "no_sync_forgotten"),
    "signs depend on the rank": (
        window, "sketch", lambda *given, true=window.sketch: true(*given) * (-1) ** dist.get_rank(),
        "ddp"),
    "nothing is ever apart": (gradients.Answer, "differing", lambda self, view: view.mask & False, "no_sync_forgotten"),
    "the bound is zero": (gradients.Answer, "bound", lambda self, *_: 0.0 * self.mean(0), "static_graph"),
    "all digests are equal": (
        updating, "digest", lambda *_: torch.ones((), dtype=torch.int64), "weights_touched_on_a_rank"),
}
"""Faults of the check itself, and a script with which each shows."""


def blind(fault):
    """Why a planted fault of the check was not noticed; empty if it was."""
    owner, name, planted, script = PLANTED[fault]
    original = getattr(owner, name)
    setattr(owner, name, planted)
    try:
        text, document = judged(CASES[script])
    finally:
        setattr(owner, name, original)
    right = judged(CASES[script])[1]
    unlike = [each for each in right["verdicts"] if each not in document["verdicts"]]
    return "" if text or unlike else f"not noticed by {script}"


def main(names):
    ours = "TORCHELASTIC_RUN_ID" not in os.environ
    if ours:
        import zerosim.torch.backend  # noqa: F401 - registers the backend
    torch.set_num_threads(1)
    dist.init_process_group("zerosim" if ours else "gloo")
    failures, count, suspicious = 0, 0, []
    law, names = "--bytes" in names, [name for name in names if name != "--bytes"]
    for name in names or ([name for name in CASES if not CASES[name].cause] if law else [*CASES, *PLANTED]):
        known, said = CASES.get(name), {}
        if known and not (known.least <= dist.get_world_size() <= known.most and known.ours in (None, ours)):
            continue
        try:
            text, said = (touched(known), {}) if law else judged(known) if known else (blind(name), {})
        except Exception as error:
            if names:
                raise
            text = f"FAILED {type(error).__name__}: {error}"
        failures, count = failures + bool(text), count + 1
        suspicious += [f"{name} ({each['cause']})" for each in said.get("suspicions", ()) if not known.cause]
        if dist.get_rank() == 0 and (text or names):
            print(f"{name}: {text or 'as it should be'}", flush=True)
            for part in ("verdicts", "findings", "suspicions") if names and said else ():
                print("   ", *said[part], sep="\n    ")
    if dist.get_rank() == 0:
        print(f"{count - failures} of {count} are judged as they should be; right ones that are suspicious: "
              f"{', '.join(suspicious) or 'none'}", flush=True)
    dist.destroy_process_group()
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
