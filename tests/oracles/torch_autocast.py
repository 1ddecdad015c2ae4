"""PyTorch's answers to `autocast`.

Models are trained under `torch.autocast("cpu")`; the lists for CUDA are read where torch has them written.
"""

import re
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.oracles import autocast, functions, torch_modules
from tests.oracles.torch_functions import module, numbers

NAMES = {
    "_to_copy": "cast", "addmm": "product", "mm": "product", "native_layer_norm": "layer_norm",
    "_scaled_dot_product_flash_attention_for_cpu": "attention", "mul": "multiply",
    **{name: name for name in ("embedding", "add", "relu", "tanh", "gelu", "silu")},
}
VIEWS = {"t", "view", "_unsafe_view", "transpose", "split", "expand", "arange", "clone", "detach", "alias", "slice",
         "unsqueeze", "reshape"}


class Conv1D(torch_modules.Conv1D):
    """GPT-2's linear map as Hugging Face has it, one product with its bias."""

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        return torch.addmm(self.bias, rows, self.weight).view(*x.shape[:-1], -1)


class LlamaAttention(torch_modules.LlamaAttention):
    """Llama's attention as Hugging Face has it, all three products first."""

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k = (torch_modules.rotated(each, self.size, 10000.0) for each in (q, k))
        return self.o_proj(torch_modules.attend(q, k, v, self.heads, self.key_value_heads))


class Steps(TorchDispatchMode):
    """Lists operations below autocast, where its casts are operations too."""

    def __init__(self):
        super().__init__()
        self.found, self.quiet = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not self.quiet and name not in VIEWS:
            self.tell(NAMES[name], made[0] if isinstance(made, tuple) else made)
        return made

    def tell(self, name, made):
        self.found.append(f"{name}:{made.dtype.itemsize * 8}")

    def as_one(self, name, function):
        """`function`, whose operations are told as one."""
        def call(*args):
            self.quiet += 1
            made = function(*args)
            self.quiet -= 1
            self.tell(name, made)
            return made
        return call


@contextmanager
def watched(built):
    """The steps of whatever is computed meanwhile; norms and rotations are one step each."""
    steps, rotated = Steps(), torch_modules.rotated
    for each in built.modules():
        if isinstance(each, nn.RMSNorm):
            each.forward = steps.as_one("rms_norm", each.forward)
    torch_modules.rotated = steps.as_one("rotary", rotated)
    with steps:
        yield steps
    torch_modules.rotated = rotated


def of_case(case, dtype):
    """Steps and numbers under autocast."""
    built = module(case, case.parameter)
    x, targets = map(torch.from_numpy, case.batch())
    with torch.autocast("cpu", dtype=dtype):
        with watched(built) as steps:
            outputs = built(x)
        loss = functional.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), ignore_index=functions.UNCOUNTED)
    steps.tell("loss", loss)
    loss.backward()
    assert {each.grad.dtype for each in built.parameters()} == {torch.float32}
    found = {"logits": numbers(outputs), "loss": numbers(loss)}
    found |= {name: numbers(each.grad) for name, each in built.named_parameters()}
    return " ".join(steps.found), functions.in_numbers({case.name: found})[case.name]


def lists():
    """The operations that torch's header names for each dtype, without those of which only some forms are."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    macros = dict(re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)", header.read_text()))

    def named(*macro):
        return sorted({name for each in macro for name in re.findall(r"_\((\w+)", macros[each])})

    return {"low": named("LOWER_PRECISION_FP"), "float32": named("FP32", "FP32_SET_OPT_DTYPE")}


def ask():
    torch_modules.Conv1D, torch_modules.LlamaAttention = Conv1D, LlamaAttention
    found = {"torch": torch.__version__.partition("+")[0], "lists": lists(), "steps": {}, "numbers": {}}
    for case in autocast.CASES:
        for dtype in functions.NARROW:
            key = f"{case.name}|{dtype}"
            found["steps"][key], found["numbers"][key] = of_case(case, getattr(torch, dtype))
    return found
