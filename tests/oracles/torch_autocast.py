"""Asks PyTorch what `autocast` holds: run it where torch is installed.

    python -m tests.oracles.torch_autocast            writes torch_autocast.json anew
    python -m tests.oracles.torch_autocast FILE       writes live answers to FILE and checks the recorded ones by them

Models are trained under `torch.autocast("cpu")`; the lists for CUDA are read where torch has them written.
"""

import re
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.oracles import autocast, functions, torch_modules
from tests.oracles.torch_functions import loss_of, module, numbers

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": lambda: nn.GELU(approximate="tanh")}
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


def built_for(case):
    if not isinstance(case, autocast.Perceptron):
        return module(case, case.parameter)
    layers = []
    for inputs, outputs in pairwise(case.widths):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[case.activation]()]
    network = nn.ModuleDict({"layers": nn.ModuleList(layers[::2])})
    shapes = {name: tuple(each.shape) for name, each in network.state_dict().items()}
    network.load_state_dict({n: torch.from_numpy(case.parameter(n, shape)) for n, shape in shapes.items()})
    network.forward = nn.Sequential(*layers[:-1]).forward
    return network


def of_case(case, dtype):
    """Steps and numbers under autocast, or the exact numbers if `dtype` is None."""
    wide = torch.float32 if dtype else torch.float64
    built = built_for(case).to(wide)
    x, targets = map(torch.from_numpy, case.batch())
    x = x.to(wide) if x.is_floating_point() else x
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        with watched(built) as steps:
            outputs = built(x)
        loss = functional.cross_entropy(
            outputs.flatten(0, -2), targets.flatten(), ignore_index=functions.UNCOUNTED) if dtype else loss_of(
            "cross_entropy", outputs, targets)
    steps.tell("loss", loss)
    loss.backward()
    assert {each.grad.dtype for each in built.parameters()} == {wide}
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
    found = {"torch": torch.__version__.partition("+")[0], "lists": lists(), "steps": {}, "numbers": {}, "exact": {}}
    for case in autocast.CASES:
        found["exact"][case.name] = of_case(case, None)[1]
        for dtype in autocast.DTYPES:
            key = f"{case.name}|{dtype}"
            found["steps"][key], found["numbers"][key] = of_case(case, getattr(torch, dtype))
    return found


def main(arguments):
    torch.set_num_threads(1)
    path = Path(arguments[0]) if arguments else autocast.RECORDED
    autocast.written(path, ask())
    live, recorded = autocast.read(path), autocast.read()
    wrong = autocast.disagreements(live, recorded) + ["lists"] * (live["lists"] != recorded["lists"])
    print("\n".join(wrong) or f"PyTorch {torch.__version__} agrees with the recorded answers about autocast")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
