"""A small language model trained in many layouts, right and wrong, and what the comparison with one process must say.

    torchrun --nproc-per-node 4 -m tests.torch.layouts [NAME …]

Everything runs in one process per rank. The layouts by hand are those of Megatron-LM, in few lines.
"""

import sys
import time
from collections import OrderedDict
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, parallel
from torch.nn import functional

from zerosim.torch.check.record import Entry
from zerosim.torch.check.tensors import local
from zerosim.torch.same.judge import CANNOT, same
from zerosim.torch.same.recorder import LayoutRecorder
from zerosim.torch.same.starting import doubled

ADAM = partial(torch.optim.AdamW, lr=1e-2)
WIDTH, HEADS, WORDS, LAYERS, LENGTH, BATCH, MICRO = 16, 4, 24, 4, 8, 2, 4


class Reduce(torch.autograd.Function):
    """Megatron's f and g: which of forward and backward adds over the group."""

    @staticmethod
    def forward(ctx, x, group, ahead, back):
        ctx.group, ctx.back = group, back
        return added(x, group) if ahead else x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return added(gradient, ctx.group) if ctx.back else gradient, None, None, None


class Gather(torch.autograd.Function):
    """Parts of a sequence joined in forward; in backward the sum over ranks, or only the own part of it."""

    @staticmethod
    def forward(ctx, x, group, adds):
        ctx.group, ctx.adds = group, adds
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = added(gradient, ctx.group) if ctx.adds else gradient
        return gradient.chunk(dist.get_world_size(ctx.group), 1)[dist.get_rank(ctx.group)].contiguous(), None, None


def added(x, group):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


class World:
    """The layout of one run: groups, and the faults that are planted in it."""

    def __init__(self, tp=1, cp=1, pp=1, dp=1, fault="", sequence=False, tied=False, experts=False, over=False):
        self.fault, self.sequence, self.tied, self.experts, self.over = fault, sequence, tied, experts, over
        self.wrapped = False
        """Whether a trainer of PyTorch reduces gradients."""
        self.sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
        self.group, self.at = dict.fromkeys(self.sizes), dict.fromkeys(self.sizes, 0)
        if tp * cp * pp * dp > 1:
            mesh = dist.init_device_mesh("cpu", (dp, pp, cp, tp), mesh_dim_names=("dp", "pp", "cp", "tp"))
            self.group = {name: mesh[name].get_group() for name in self.sizes}
            self.at = {name: mesh[name].get_local_rank() for name in self.sizes}

    def is_on(self, name):
        return self.fault == name

    def part(self, tensor, dim, name="tp"):
        return tensor.chunk(self.sizes[name], dim)[self.at[name]].contiguous()

    def f(self, x):
        if self.sizes["tp"] == 1:
            return x
        if self.sequence:
            return Gather.apply(x, self.group["tp"], True)
        return Reduce.apply(x, self.group["tp"], False, not self.is_on("f"))

    def g(self, x):
        if self.sizes["tp"] == 1:
            return x
        whole = Reduce.apply(x, self.group["tp"], not self.is_on("g"), self.sequence)
        return self.part(whole, 1) if self.sequence else whole


class Linear(nn.Module):
    def __init__(self, weight, bias=None):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, world, draw):
        super().__init__()
        self.world, heads = world, WIDTH // HEADS
        qkv = draw(3 * WIDTH, WIDTH).view(HEADS, 3 * heads, WIDTH)  # heads are interleaved: q, k, v of each
        self.qkv = Linear(world.part(qkv, 0).reshape(-1, WIDTH), world.part(torch.zeros(3 * WIDTH), 0))
        self.out = Linear(world.part(draw(WIDTH, WIDTH), 1))

    def forward(self, x):
        world = self.world
        x = world.f(x)
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, -1, 3, WIDTH // HEADS).unbind(3)
        first = world.at["cp"] * length * (not world.is_on("rope"))
        at = torch.arange(first, first + length)[:, None, None] / 3
        q, k = (y * at.cos() + y.roll(1, -1) * at.sin() for y in (q, k))
        if world.sizes["cp"] > 1:
            k, v = (Gather.apply(y, world.group["cp"], not world.is_on("gather")) for y in (k, v))
        rows = torch.arange(length)[:, None] + (world.at["cp"] + world.is_on("mask")) * length * (world.sizes["cp"] > 1)
        mask = torch.arange(k.shape[1])[None] <= rows
        y = functional.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)), attn_mask=mask)
        return world.g(self.out(y.transpose(1, 2).reshape(batch, length, -1)))


class Experts(nn.Module):
    """Four experts, over the ranks of "dp" where the layout says so; a token goes to the one of its largest feature."""

    def __init__(self, world, draw):
        super().__init__()
        self.world, weights = world, torch.stack([draw(WIDTH, WIDTH) for _ in range(4)])
        self.experts = nn.ModuleList(map(Linear, world.part(weights, 0, "dp") if world.over else weights))
        self.first = world.at["dp"] * len(self.experts) if world.over else 0

    def forward(self, x):
        world = self.world
        whole = Gather.apply(x, world.group["dp"], True) if world.over else x
        choice = whole[..., :4].argmax(-1)
        y = torch.zeros_like(whole)
        for number, expert in enumerate(self.experts, self.first):
            y = y.masked_scatter((choice == number)[..., None], expert(whole[choice == number]))
        if world.over:
            y = world.part(Reduce.apply(y, world.group["dp"], True, True), 1, "dp")
        return y


class Block(nn.Module):
    def __init__(self, world, draw, experts):
        super().__init__()
        self.world = world
        self.norm, self.attention, self.norm2 = nn.RMSNorm(WIDTH), Attention(world, draw), nn.RMSNorm(WIDTH)
        up, down = draw(2 * WIDTH, WIDTH), draw(WIDTH, 2 * WIDTH)
        self.experts = Experts(world, draw) if experts else None
        if not experts:
            self.up, self.down = Linear(world.part(up, 0)), Linear(world.part(down, 1))
        self.drop = nn.Dropout(0.1 if world.is_on("dropout") else 0.0)

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm(x)))
        y = self.norm2(x)
        if self.experts is not None:
            return x + self.experts(y)
        return x + self.world.g(self.down(functional.gelu(self.up(self.world.f(y)))))


class Embedding(nn.Module):
    def __init__(self, world, weight, cut=True):
        super().__init__()
        self.world, self.cut = world, cut
        self.weight = nn.Parameter(world.part(weight, 0).clone() if cut else weight.clone())

    def forward(self, words):
        world = self.world
        if not self.cut or world.sizes["tp"] == 1:
            return functional.embedding(words, self.weight)
        first = world.at["tp"] * len(self.weight)
        outside = (words < first) | (words >= first + len(self.weight) - world.is_on("vocabulary"))
        x = functional.embedding((words - first).masked_fill(outside, 0), self.weight)
        return world.g(x.masked_fill(outside[..., None], 0))


class Model(nn.Module):
    """The layers of one stage of a pipeline, or all; names differ: a stage counts its layers from 0."""

    def __init__(self, world):
        super().__init__()
        generator = torch.Generator().manual_seed(1 + (world.is_on("seed") and dist.get_rank()))

        def draw(*shape):
            return torch.randn(shape, generator=generator) * 0.3

        self.world, stage, stages = world, world.at["pp"], world.sizes["pp"]
        words, head = draw(WORDS, WIDTH), draw(WORDS, WIDTH)
        blocks = [Block(world, draw, world.experts and number == 1) for number in range(LAYERS)]
        self.blocks = nn.ModuleList(blocks[stage * LAYERS // stages : (stage + 1) * LAYERS // stages])
        self.embed = Embedding(world, words, cut=not world.tied) if stage == 0 else None
        self.norm = nn.RMSNorm(WIDTH) if stage == stages - 1 else None
        self.head = Linear(words if world.tied else head) if stage == stages - 1 else None
        if world.tied and stages == 1:
            self.head.weight = self.embed.weight

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        if self.head is None:
            return x
        x = self.norm(x)
        return self.head(Gather.apply(x, self.world.group["tp"], False) if self.world.sequence else x)


def batches(step):
    """The samples of a step: words and next words of each micro-batch."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, WORDS, (MICRO, BATCH, LENGTH + 1), generator=generator)


def train(world, wrap=lambda model, world: model, make=ADAM, clip=None, steps=2):
    """Train in a layout: the weights at the end."""
    model = Model(world)
    shown = wrap(model, world)
    optimizer = make(shown.parameters())
    _, cp, pp, dp = world.sizes.values()
    count = MICRO // dp
    for step in range(steps):
        optimizer.zero_grad()
        own = [*batches(step)[world.at["dp"] * count : (world.at["dp"] + 1) * count]]
        if world.is_on("same batch"):
            own = [*batches(step)[:count]]
        for number, words in enumerate(own):
            given, due = (world.part(half, 1, "cp") for half in (words[:, :-1], words[:, 1:]))
            if pp > 1 and number == 1 and world.is_on("lost"):
                continue
            x = given
            if world.at["pp"]:
                x = torch.empty(BATCH, LENGTH // cp, WIDTH).requires_grad_()
                dist.recv(x.data, group_src=world.at["pp"] - 1, group=world.group["pp"])
            y = shown(x)
            if world.at["pp"] < pp - 1:
                dist.send(y.detach(), group_dst=world.at["pp"] + 1, group=world.group["pp"])
                gradient = torch.empty_like(y)
                dist.recv(gradient, group_src=world.at["pp"] + 1, group=world.group["pp"])
                y.backward(gradient)
            else:
                loss = functional.cross_entropy(y.flatten(0, 1), due.flatten())
                (loss / (1 if world.is_on("loss") else count)).backward()
            if world.at["pp"]:
                dist.send(x.grad, group_dst=world.at["pp"] - 1, group=world.group["pp"])
        reduce(model, world)
        if clip:
            clipped(model, world, clip)
        if world.is_on("decay") and world.at["tp"] == 1:
            optimizer.param_groups[0]["weight_decay"] = 0.0
        if world.is_on("small") and dist.get_rank() == 1:
            model.blocks[0].norm.weight.grad *= 1 + 1e-4
        if world.is_on("rank 0 only") and dist.get_rank():
            model.blocks[0].norm.weight.grad = None
        optimizer.step()
    return [parameter.detach().clone() for parameter in shown.parameters()]


def reduce(model, world):
    """What a trainer by hand reduces after the last backward."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None and not world.wrapped:  # an expert without tokens
            parameter.grad = torch.zeros_like(parameter)
        for axis in () if world.wrapped else ("dp", "cp"):
            of_an_expert = world.over and ".experts.experts" in name and not world.is_on("experts")
            if world.sizes[axis] > 1 and not (of_an_expert and axis == "dp"):
                dist.all_reduce(parameter.grad, group=world.group[axis])
            parameter.grad /= 1 if world.is_on("1/N") and axis == "cp" else world.sizes[axis]
        if world.sequence and "norm" in name and not (world.is_on("sequence") and "norm2" in name):
            dist.all_reduce(parameter.grad, group=world.group["tp"])
    if world.tied and world.sizes["pp"] > 1 and not world.is_on("tied"):
        dist.all_reduce((model.embed or model.head).weight.grad, group=world.group["pp"])


def clipped(model, world, most):
    """Clip by the norm of all parameters, each counted once."""
    squares = torch.zeros(())
    for name, parameter in model.named_parameters():
        cut = (parameter.dim() > 1 and "head" not in name) or "qkv.bias" in name
        squares += parameter.grad.square().sum() / (1 if cut else world.sizes["tp"])
    if world.sizes["tp"] > 1 and not world.is_on("norm"):
        dist.all_reduce(squares, group=world.group["tp"])
    if world.is_on("by hand"):
        for parameter in model.parameters():
            parameter.grad *= (most / (squares.sqrt() + 1e-6)).clamp(max=1)
    else:
        nn.utils.clip_grads_with_norm_(model.parameters(), most, squares.sqrt())


# -- the trainers of PyTorch

def ddp(model, world):
    world.wrapped = True
    return nn.parallel.DistributedDataParallel(model)


def fsdp2(model, world, mesh=None):
    world.wrapped = True
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def fsdp1(model, world, original=False):
    world.wrapped = True
    return fsdp.FullyShardedDataParallel(model, use_orig_params=original, device_id=torch.device("cpu"))


def plain(dp=1, tp=1, fault="", sequence=False):
    """DTensor's tensor parallelism, with FSDP2 over it."""
    torch.manual_seed(3)
    model = nn.Sequential(OrderedDict(
        embed=nn.Embedding(WORDS, WIDTH), blocks=nn.Sequential(*(nn.Sequential(OrderedDict(
            norm=nn.LayerNorm(WIDTH), up=nn.Linear(WIDTH, 2 * WIDTH), gelu=nn.GELU(),
            down=nn.Linear(2 * WIDTH, WIDTH))) for _ in range(2))), head=nn.Linear(WIDTH, WORDS, bias=False)))
    if dp * tp > 1:
        mesh = dist.init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
        rows, columns = (parallel.RowwiseParallel(output_layouts=Shard(1)), parallel.ColwiseParallel(
            input_layouts=Shard(1))) if sequence else (parallel.RowwiseParallel(), parallel.ColwiseParallel())
        for block in model.blocks:
            plan = {"up": columns, "down": rows} | ({"norm": parallel.SequenceParallel()} if sequence else {})
            parallel.parallelize_module(block, mesh["tp"], plan)
        if sequence:
            parallel.parallelize_module(model, mesh["tp"], {
                "embed": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "head": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
        for block in model.blocks if dp > 1 else ():
            fsdp.fully_shard(block, mesh=mesh["dp"])
        if dp > 1:
            fsdp.fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(2):
        optimizer.zero_grad()
        words = batches(step).chunk(dp)[mesh["dp"].get_local_rank() if dp > 1 else 0].flatten(0, 1)
        functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        if fault and dist.get_rank() == 1:
            model.blocks[1].down.weight.grad.to_local().mul_(1.5)
        optimizer.step()


# -- what must be said: the reference, the run, and how its finding begins; nothing of a right layout

T, S = World, partial(World, sequence=True)
REFERENCES = {"": lambda: train(T()), "clip": lambda: train(T(), clip=0.1), "tied": lambda: train(T(tied=True)),
              "experts": lambda: train(T(experts=True)), "plain": plain}


def over_tensors(trainer):
    """A trainer over the data-parallel groups of tensor parallelism by hand."""
    def wrap(model, world):
        world.wrapped = True
        return trainer(model, world.group["dp"])

    return wrap


CASES = {
    "tensors": ("", lambda: train(T(tp=4)), ""),
    "sequences": ("clip", lambda: train(S(tp=2, dp=2), clip=0.1), ""),
    "context and tensors": ("clip", lambda: train(T(cp=2, tp=2), clip=0.1), ""),
    "clipping by hand": ("clip", lambda: train(T(tp=2, dp=2, fault="by hand"), clip=0.1), ""),
    "pipeline": ("", lambda: train(T(pp=4)), ""),
    "pipeline and tensors": ("", lambda: train(T(pp=2, tp=2)), ""),
    "tied pipeline and data": ("tied", lambda: train(T(pp=2, dp=2, tied=True)), ""),
    "experts": ("experts", lambda: train(T(dp=4, experts=True, over=True)), ""),
    "DDP over tensors": ("", lambda: train(T(dp=2, tp=2), over_tensors(
        lambda model, group: nn.parallel.DistributedDataParallel(model, process_group=group))), ""),
    "FSDP2": ("", lambda: train(T(dp=4), fsdp2), ""),
    "FSDP2 over tensors by hand": ("", lambda: train(T(dp=2, tp=2), over_tensors(
        lambda model, group: fsdp2(model, model.world, dist.DeviceMesh.from_group(group, "cpu")))), ""),
    "FSDP1": ("", lambda: train(T(dp=4), fsdp1), ""),
    "FSDP1, original parameters": ("", lambda: train(T(dp=4), partial(fsdp1, original=True)), ""),
    "ZeroRedundancyOptimizer": ("", lambda: train(T(dp=4), ddp, partial(
        ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW, lr=1e-2)), ""),
    "DTensor and sequences": ("plain", lambda: plain(tp=4, sequence=True), ""),
    "DTensor and FSDP2": ("plain", lambda: plain(dp=2, tp=2), ""),
    "DTensor, sequences and FSDP2": ("plain", lambda: plain(dp=2, tp=2, sequence=True), ""),

    "a sum missing in f": ("", lambda: train(T(tp=2, dp=2, fault="f")), "gradients of outputs blocks.3.norm2"),
    "a sum missing in g": ("", lambda: train(T(tp=2, dp=2, fault="g")), "outputs embed"),
    "a sum missing in a gather": ("", lambda: train(T(cp=2, dp=2, fault="gather")),
                               "gradients of outputs blocks.3.attention.qkv"),
    "norms of sequences not added": ("", lambda: train(S(tp=2, dp=2, fault="sequence")),
                                     "gradient blocks.0.norm2.weight"),
    "a wrong position": ("", lambda: train(T(cp=2, dp=2, fault="rope")), "outputs blocks.0.attention.out"),
    "a wrong mask": ("", lambda: train(T(cp=2, dp=2, fault="mask")), "outputs blocks.0.attention.out"),
    "a mean over too few": ("", lambda: train(T(cp=2, dp=2, fault="1/N")), "gradient blocks.0.norm.weight"),
    "a lost micro-batch": ("", lambda: train(T(pp=2, dp=2, fault="lost")), "inputs "),
    "an undivided loss": ("", lambda: train(T(pp=4, fault="loss")), "loss "),
    "experts over a wrong group": ("experts", lambda: train(T(dp=4, experts=True, over=True, fault="experts")),
                                   "gradient blocks.1.experts.experts.0.weight"),
    "a wrong border of a vocabulary": ("", lambda: train(T(tp=2, dp=2, fault="vocabulary")), "outputs embed"),
    "a tied embedding not added": ("tied", lambda: train(T(pp=2, dp=2, tied=True, fault="tied")),
                                   "gradient embed.weight"),
    "dropout": ("", lambda: train(T(tp=2, dp=2, fault="dropout")), "cannot be compared"),
    "a norm over one shard": ("clip", lambda: train(T(tp=2, dp=2, fault="norm"), clip=0.1),
                              "clipping blocks.0.norm.weight"),
    "decay on one shard": ("", lambda: train(T(tp=2, dp=2, fault="decay")), "update blocks.0.norm.weight"),
    "a norm trained on rank 0": ("", lambda: train(T(tp=2, dp=2, fault="rank 0 only")), "update blocks.0.norm.weight"),
    "other initial weights": ("", lambda: train(T(tp=2, dp=2, fault="seed")), "initial weights "),
    "the same batch": ("", lambda: train(T(dp=4, fault="same batch")), "inputs "),
    "a shard's gradient": ("plain", lambda: plain(dp=2, tp=2, fault="shard"), "gradient blocks.1.down.weight"),
    "no clipping": ("clip", lambda: train(T(tp=2, dp=2)), "clipping "),
}


def recorded(run, within=doubled, **more):
    """What this rank records of a run."""
    entries = list[Entry]()
    with within(), LayoutRecorder(lambda frame: entries.extend(frame.entries), **more).listening():
        run()
    return entries


def compared(reference, run, *again, within=doubled):
    """How the finding of a comparison begins, or why there is none; empty for a run that is equal."""
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, recorded(run, within))
    document = same([reference], ranks, *again)
    return next((f"{finding['what']} {finding['parameter']}" for finding in document["findings"]), "") or next(
        (verdict["why"] for verdict in document["verdicts"] if verdict["why"].startswith(CANNOT)), "")


def in_fewer_bits(dtype, **world):
    """What is said of a run where the threshold is measured."""
    def run(**more):
        torch.manual_seed(0)
        train(World(**more))

    torch.set_default_dtype(dtype)
    reference, again = (recorded(run, nullcontext, noise=noise) for noise in ("", str(dtype).removeprefix("torch.")))
    said = compared(reference, partial(run, **world), [again], within=nullcontext)
    torch.set_default_dtype(torch.float32)
    return said


FEWER = {
    "32 bits": (torch.float32, {}, ""),
    "a small fault in 32 bits": (torch.float32, {"fault": "small"}, "gradient blocks.0.norm.weight"),
    "16 bits": (torch.bfloat16, {}, ""),
    "a sum missing in g in 16 bits": (torch.bfloat16, {"fault": "g"}, "outputs embed"),
}


def main(chosen):
    """Compare all cases with their references; how many were not as they must be."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    references = {name: recorded(run) for name, run in REFERENCES.items()}
    asked = {name: (partial(compared, references[reference], run), due) for name, (reference, run, due) in CASES.items()
             } | {name: (partial(in_fewer_bits, dtype, tp=2, dp=2, **world), due)
                  for name, (dtype, world, due) in FEWER.items()}
    outcomes = {name: (ask(), due) for name, (ask, due) in asked.items() if not chosen or name in chosen}
    wrong = [f"{name}: {said or 'right'}, and must be {due or 'right'}" for name, (said, due) in outcomes.items()
             if not (said.startswith(due) if due else not said)]
    for make in (lambda: train(T(cp=2, tp=2)), lambda: train(T(dp=4), fsdp1), lambda: train(T(dp=4), fsdp2)):
        alone, weights = make(), []
        recorded(lambda make=make, weights=weights: weights.extend(make()), nullcontext)
        if not all(torch.equal(*map(local, pair)) for pair in zip(alone, weights, strict=True)):
            wrong.append("the record changes the training")
    if dist.get_rank() == 0:
        print(*wrong, sep="\n")
    time.sleep(1)  # a thread of gloo may hold tensors for a moment
    dist.destroy_process_group()
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
