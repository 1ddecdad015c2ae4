"""DeepSpeed with plain SGD: STAGE DTYPE MICRO_BATCHES, and `twice` or `by_hand`."""

import importlib
import sys

import deepspeed
import torch
from model import Net, batches, say

importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
stage, dtype, micro, by_hand = int(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3]), "by_hand" in sys.argv
deepspeed.init_distributed(dist_backend="gloo")
engine, *_ = deepspeed.initialize(model=Net("twice" in sys.argv), config={
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1 if by_hand else micro,
    "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "bf16": {"enabled": dtype is torch.bfloat16}})
for step in range(1, 4):
    for number, (x, y) in enumerate(batches(micro, dtype), 1):
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        if by_hand and "mended" in sys.argv:
            engine.set_gradient_accumulation_boundary(number == micro)
        engine.backward(loss / micro if by_hand else loss)
        if number == micro or not by_hand:
            engine.step()
    say(step, loss)
