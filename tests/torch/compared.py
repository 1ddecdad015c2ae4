"""zerosim's stages beside PyTorch's trainers and DeepSpeed's stages: what each sends in a step, and keeps.

`make torch` runs the stages first, by `zerosim run … --json OURS`; then `mpirun -n 4 python -m tests.torch.compared
OURS PAGE` trains the same model in the other ways over the same collectives, and writes the table of PAGE anew.
"""

import gc
import importlib
import json
import os
import re
import sys
from itertools import groupby
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import zerosim.torch
from tests.torch.ways import perceptron, sharded
from zerosim.torch.memory import Live
from zerosim.torch.watching import WATCH
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import gather_objects

STEPS, BATCH = 4, 16
PARAMETERS = 17226
SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR", "broadcast": "B", "reduce": "R"}


def fresh():
    return perceptron(64, 128, 64, 10)


def batch():
    return torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,))


def plain(model, optimizer):
    def step():
        x, y = batch()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        WATCH_MEMORY()
        optimizer.zero_grad()

    return step


def ddp(zero=False):
    model = DistributedDataParallel(fresh())
    if zero:
        return plain(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3))
    return plain(model, torch.optim.Adam(model.parameters()))


def fsdp2(reshard=True):
    model = sharded(fresh(), reshard_after_forward=reshard)
    return plain(model, torch.optim.Adam(model.parameters()))


def deepspeed(stage, overlap=False, **more):
    import deepspeed

    # DeepSpeed's own all-reduce in shared memory would pass the backend by.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    model = fresh()
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.Adam(model.parameters()), config={
        "train_micro_batch_size_per_gpu": BATCH, "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage, "overlap_comm": overlap, "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000, **more,
        }})

    def step():
        x, y = batch()
        engine.backward(nn.functional.cross_entropy(engine(x), y))
        engine.step()
        WATCH_MEMORY()

    return step


WAYS = {
    "PyTorch DDP": ddp,
    "PyTorch DDP, ZeroRedundancyOptimizer": lambda: ddp(zero=True),
    "PyTorch FSDP2, reshard_after_forward=False": lambda: fsdp2(reshard=False),
    "PyTorch FSDP2": fsdp2,
    **{f"DeepSpeed stage {stage}{', overlap_comm' if overlap else ''}":
       (lambda stage=stage, overlap=overlap: deepspeed(stage, overlap))
       for stage in (0, 1, 2, 3) for overlap in ([False, True] if stage else [False])},
    "DeepSpeed stage 2, use_multi_rank_bucket_allreduce=False":
        lambda: deepspeed(2, use_multi_rank_bucket_allreduce=False),
    "DeepSpeed stage 3, no weights kept until backward":
        lambda: deepspeed(3, stage3_max_live_parameters=0, stage3_max_reuse_distance=0),
}
KEPT = []


def WATCH_MEMORY():  # noqa: N802 - called between an update and zero_grad
    KEPT.append(WATCH.ledger.total)


def measured(build):
    """What all ranks send in the last step, and what they keep; on rank 0."""
    gc.collect()
    before = WATCH.ledger.total
    try:
        step = build()
        for _ in range(STEPS):
            gc.collect()
            WATCH.ledger.begin_peak()
            step()
            zerosim.torch.step()
    except Exception as error:  # a part that cannot run is a line of the table
        return f"{type(error).__name__}: {error}".splitlines()[0]
    calls = WATCH.last_calls
    mine = {"sent": sum(call.sent_bytes for call in calls), "messages": sum(call.messages for call in calls),
            "kept": KEPT[-1] - before, "peak": WATCH.ledger.peak_total - before,
            "calls": [call.collective for call in calls]}
    return gather_objects(connect(), mine)


def ours(path):
    """The same of the rows of zerosim's own run."""
    document = json.loads(Path(path).read_text())
    steps = document["scenario"]["train"]["steps"]
    for row in document["rows"]:
        first = row["trace"]["steps"][0]
        spans = [span for span in first["spans"] if span["lane"] == "collectives"]
        yield f"zerosim {row['name']}", [
            {"sent": traffic["sent_bytes"] // steps, "messages": traffic["messages"] // steps,
             "kept": sum(memory["resting_bytes"].values()), "peak": memory["peak_bytes"]["total"],
             "calls": [span["what"] for span in sorted(spans, key=lambda span: span["begin_ns"])]}
            for traffic, memory in zip(row["traffic"], row["memory"], strict=True)]


def line(name, found):
    """A line of the table: figures of the rank that has the most."""
    if isinstance(found, str):
        return f"| {name} | does not run: {found} | | | | |"
    ranks = len(found)
    unit = 4 * PARAMETERS * (ranks - 1) / ranks
    sequence = " ".join(f"{SHORT.get(what, what)}{f'×{n}' if (n := len(list(each))) > 1 else ''}"
                        for what, each in groupby(found[0]["calls"]))
    most = {key: max(rank[key] for rank in found) for key in ("sent", "messages", "kept", "peak")}
    return (f"| {name} | {sequence} | {most['sent']:,} | {most['sent'] / unit:.3f} | {most['messages']} | "
            f"{most['kept'] / 1e3:.1f} | {most['peak'] / 1e3:.1f} |")


HEAD = """| trainer | collectives of a step, in order | bytes sent | × P (N−1)/N | messages | keeps, kB | peak, kB |
|---|---|---|---|---|---|---|"""

if __name__ == "__main__":
    torch.set_num_threads(1)
    WATCH.begin(connect().rank)
    dist.init_process_group("zerosim")
    lines = [HEAD, *(line(name, found) for name, found in ours(sys.argv[1]))] if dist.get_rank() == 0 else []
    with Live(WATCH.ledger):
        for name, build in WAYS.items():
            found = measured(build)
            if dist.get_rank() == 0:
                lines.append(line(name, found))
                print(lines[-1], flush=True)
    if dist.get_rank() == 0:
        page, table = Path(sys.argv[2]), "".join(f"{each}\n" for each in lines)
        page.write_text(re.sub(r"(^\|.*\n)+", lambda _: table, page.read_text(), count=1, flags=re.MULTILINE))
