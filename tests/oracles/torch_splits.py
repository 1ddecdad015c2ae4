"""PyTorch's and Megatron-Core's answers to `splits`, by two processes over gloo.

    python -m tests.oracles.torch_splits            records the answers again, beside this file
    python -m tests.oracles.torch_splits FOLDER     writes live answers to FOLDER, checks the recorded ones by them
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.oracles import functions, splits, torch_functions, torch_parallel


def plan(split):
    """The style of each module that is split, by its name."""
    if isinstance(split.model, functions.Perceptron):
        count = len(split.model.widths) - 1
        return {f"layers.{n}": RowwiseParallel() if n % 2 else ColwiseParallel() for n in range(count - count % 2)}
    found, between = {}, Shard(1) if split.sequence else Replicate()
    for n in range(split.model.layers):
        block = f"model.layers.{n}"
        for each in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            found[f"{block}.{each}"] = ColwiseParallel()
        for each in ("self_attn.o_proj", "mlp.down_proj"):
            found[f"{block}.{each}"] = RowwiseParallel(output_layouts=between)
        for each in ("self_attn", "mlp"):
            found[f"{block}.{each}"] = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(Replicate(),))
        if split.sequence:
            for each in ("input_layernorm", "post_attention_layernorm"):
                found[f"{block}.{each}"] = SequenceParallel()
    if split.sequence:
        found["model.embed_tokens"] = PrepareModuleOutput(
            output_layouts=(Replicate(),), desired_output_layouts=(between,))
        found["model.norm"] = PrepareModuleInput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),), use_local_output=True)
    return found


def of_dtensor(split):
    """The loss, and each gradient of the whole parameter."""
    model = split.model
    built = torch_functions.module(model, model.parameter).double()
    for part in built.modules():
        if hasattr(part, "key_value_heads"):
            part.heads, part.key_value_heads = part.heads // splits.RANKS, part.key_value_heads // splits.RANKS
    parallelize_module(built, init_device_mesh("cpu", (splits.RANKS,)), plan(split))
    x, targets = map(torch.from_numpy, model.batch())
    loss = torch_functions.loss_of(model.loss, built(x.double() if x.is_floating_point() else x), targets)
    loss.backward()
    return {"loss": loss, **{name: each.grad for name, each in built.named_parameters()}}


def whole(tensor):
    return torch_functions.numbers(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)


def of_megatron(split):
    return import_module("tests.oracles.torch_megatron").answers(split)


BY = {"DTensor": of_dtensor, "Megatron": of_megatron, "pipelining": torch_parallel.of_pipeline,
      "context": torch_parallel.of_context, "mixture": torch_parallel.of_mixture,
      "DeepSeek": torch_parallel.of_deepseek, "joined": torch_parallel.of_deepseek}


def of_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", splits.RANKS), rank=rank,
                            world_size=splits.RANKS)
    found = {}
    for split in splits.SPLITS:
        answers = {name: whole(each) for name, each in BY[split.by](split).items()}
        found |= splits.in_numbers(split, answers)
    if rank == 0:
        np.savez(f"{folder}/found.npz", **found)
    dist.destroy_process_group()


def ask():
    """All answers, in numbers."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(of_rank, (folder,), nprocs=splits.RANKS)
        with np.load(f"{folder}/found.npz") as found:
            return dict(found)


def main(arguments):
    folder, found = Path(*arguments or [functions.RECORDED]), ask()
    splits.write(folder, found)
    wrong = splits.disagreements(splits.read(functions.RECORDED), found)
    print("\n".join(wrong) or "PyTorch and Megatron-Core agree with the recorded answers")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
