"""With `round_robin_gradients`, ZeRO-1 and 2 mistake parameters for each other (not reported before): STAGE [off].

`safe_get_full_fp32_param` returns values of other parameters, and universal checkpoints are made of them. The training
itself and `zero_to_fp32` are right. Two ranks: torchrun --nproc-per-node 2 deepspeed_round_robin.py 2
"""

import importlib
import subprocess
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param

importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
    "zero_optimization": {"stage": int(sys.argv[1]), "round_robin_gradients": "off" not in sys.argv}})
engine.backward(engine(torch.randn(1, 4) + dist.get_rank()).square().sum())
engine.step()
found = [safe_get_full_fp32_param(each) for each in engine.module.parameters()]
engine.save_checkpoint("saved", tag="1")
dist.barrier()
if dist.get_rank() == 0:
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state",
                    "--input_folder", "saved/1", "--output_folder", "universal"], check=True, capture_output=True)
    for (name, parameter), told in zip(engine.module.named_parameters(), found, strict=True):
        kept = torch.load(Path("universal", "zero", name, "fp32.pt"), weights_only=False)["param"]
        off = [float((each.reshape(told.shape) - parameter.detach()).abs().max()) for each in (told, kept)]
        print(f"> {name}: off by {off[0]:.2f}, in the universal checkpoint by {off[1]:.2f}", flush=True)
dist.barrier()
