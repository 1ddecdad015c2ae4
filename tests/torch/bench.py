"""Steps of our stages and of PyTorch's trainers over gloo, in the same processes; PyTorch over these collectives.

    mpirun -n 2 python -m tests.torch.bench [ROUNDS]

Both ranks run every task of a round together, one thread each; figures are of the slower rank.
"""

import statistics
import sys
import time
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import zerosim.torch  # noqa: F401 - registers the backend
from tests.torch.ways import perceptron, sharded
from zerosim.collectives import ring
from zerosim.commands.benches.timings import RANKS, WORKLOADS, plain, steps
from zerosim.instruments.resident import keep_freed
from zerosim.scenario import ModelKeys
from zerosim.sharding import split
from zerosim.torch.verdicts import CheckOptions, TrainingCheck
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import gather_objects

CALLS, STEPS, WARM_UP = 50, 3, 2
TRAINED = {
    **{f"MLP of width {width}": replace(WORKLOADS["mlp"], model=ModelKeys(hidden=(width,) * 3))
       for width in (64, 256, 1024)},
    "transformer": WORKLOADS["transformer"],
}
COMM = connect()


class Embedding(nn.Module):
    """Tokens to vectors, with their positions."""

    def __init__(self, vocabulary, tokens, width):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)

    def forward(self, tokens):
        return self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))


class Block(nn.TransformerEncoderLayer):
    """A block of GPT-2."""

    def forward(self, hidden):
        mask = nn.Transformer.generate_square_subsequent_mask(hidden.shape[1])
        return super().forward(hidden, src_mask=mask, is_causal=True)


def fresh(workload):
    model = workload.model
    if model.kind != "transformer":
        return perceptron(workload.inputs, *model.hidden, workload.outputs)
    torch.manual_seed(0)
    blocks = [Block(model.width, model.heads, 4 * model.width, 0.0, "gelu", batch_first=True, norm_first=True)
              for _ in range(model.layers)]
    return nn.Sequential(Embedding(workload.outputs, workload.inputs, model.width), *blocks,
                         nn.Linear(model.width, workload.outputs), nn.Flatten(0, 1))


def ddp(workload, group):
    model = DistributedDataParallel(fresh(workload), process_group=group)
    return training(model, torch.optim.AdamW(model.parameters()), workload)


def zero_redundancy(workload, group):
    model = DistributedDataParallel(fresh(workload), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group)
    return training(model, optimizer, workload)


def fsdp2(workload, group):
    """FSDP2, which adds gradients and divides afterwards, as gloo has no average."""
    model = sharded(fresh(workload), mesh=DeviceMesh.from_group(group, "cpu"))
    for unit in model.modules():
        if hasattr(unit, "set_force_sum_reduction_for_comms"):
            unit.set_force_sum_reduction_for_comms(True)
    return training(model, torch.optim.AdamW(model.parameters()), workload)


COUNTERPARTS = {
    "ddp": ("DDP", "DDP", ddp),
    "zero1": ("Stage I", "ZeroRedundancyOptimizer", zero_redundancy),
    "zero2": ("Stage II", "ZeroRedundancyOptimizer", zero_redundancy),
    "zero3": ("Stage III", "FSDP2", fsdp2),
}
"""Each stage's title, and its counterpart in PyTorch."""


def training(model, optimizer, workload):
    """A function that trains one step, on this rank's half of the batch."""
    data = workload.dataset()
    mine = slice(dist.get_rank(), None, RANKS)
    x, labels = torch.as_tensor(data.x[mine]), torch.as_tensor(data.y[mine]).flatten()

    def step():
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def own_step(stage, workload):
    trained = steps(plain(COMM, stage, workload))
    return lambda: next(trained)


def all_reduce(count, group):
    tensor = torch.zeros(count)
    return lambda: dist.all_reduce(tensor, group=group)


def bare_ring(count, group):
    """An all-reduce by the ring alone, in the channel of the group."""
    array = np.zeros(count, np.float32)
    return lambda: ring.all_reduce(group.comm, split(array, group.comm.size))


def tasks():
    """The name of each task, the task and its counterpart as functions of one call, and the calls in a row."""
    ours, gloo, alone = dist.group.WORLD, dist.new_group(backend="gloo"), dist.new_subgroups(1)[0]
    for model, workload in TRAINED.items():
        for stage, (title, name, trainer) in COUNTERPARTS.items():
            yield (f"{model}: {title}, against {name} over gloo", own_step(stage, workload), trainer(workload, gloo),
                   STEPS)
    for name, trainer in (("DDP", ddp), ("FSDP2", fsdp2)):
        pair = [trainer(TRAINED["transformer"], group) for group in (ours, gloo)]
        yield f"PyTorch's {name} over zerosim, against gloo", *pair, 1
    for count in (256, 1 << 18):
        for other, of_other in (("gloo", all_reduce(count, gloo)), ("the ring", bare_ring(count, ours))):
            yield f"all-reduce of {4 * count:,} B, against {other}", all_reduce(count, ours), of_other, CALLS
    for model in ("MLP of width 1024", "transformer"):
        for name, trainer in (("DDP", ddp), ("FSDP2", fsdp2)):
            check = TrainingCheck(CheckOptions(), ours=True)
            check.connect()
            yield (f"{model}: a checked step of {name}, against an unchecked one",
                   checked(check, trainer(TRAINED[model], ours)), trainer(TRAINED[model], ours), 1)
    yield "all-reduce of 1,024 B on 1 rank, against the ring", all_reduce(256, alone), bare_ring(256, alone), CALLS


def checked(check, step):
    """One step within a check."""
    def run():
        with check.listening():
            step()

    return run


def times(rounds, pair, calls):
    """The seconds of one call of each function in each round, on the slower rank; they take turns."""
    found = [], []
    for _ in range(WARM_UP + rounds):
        for seconds, function in zip(found, pair, strict=True):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                function()
            seconds.append(max(gather_objects(COMM, (time.perf_counter() - began) / calls) or [0.0]))
    return list(zip(*(seconds[WARM_UP:] for seconds in found), strict=True))


def main(rounds):
    """Print a row for each task: its time, that of its counterpart, the difference, the ratio and its range."""
    torch.set_num_threads(1)
    keep_freed()
    dist.init_process_group("zerosim")
    line = "{:68} {:>10} {:>10} {:>9} {:>6}  {}".format
    if COMM.rank == 0:
        print(line("PyTorch over zerosim", "ms", "other, ms", "more, µs", "ratio", "range"))
    with threadpool_limits(1):
        for what, *pair, calls in tasks():
            rows = times(rounds, pair, calls)
            if COMM.rank == 0:
                ratios = [one / other for one, other in rows]
                one, other = map(statistics.median, zip(*rows, strict=True))
                print(line(what, f"{1e3 * one:.3f}", f"{1e3 * other:.3f}",
                           f"{1e6 * statistics.median(one - other for one, other in rows):.0f}",
                           f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} … {max(ratios):.2f}"), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
