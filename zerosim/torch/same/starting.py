"""What a recorded run may do to its precision, and to its initial weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from zerosim.torch.check.sketch import hashed
from zerosim.torch.check.tensors import local

NARROW = (torch.float32, torch.bfloat16, torch.float16)
MADE_FROM_OTHERS = (torch.tensor, torch.as_tensor)


class Widened(TorchFunctionMode):
    """Every call of PyTorch that names a shorter dtype names 64 bits instead."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            function = torch.Tensor.double
        elif function is not torch.Tensor.view:  # which gives the same bits another meaning
            args = tuple(torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value
                         for value in args)
            kwargs |= {"dtype": torch.float64} if kwargs.get("dtype") in NARROW else {}
        result = function(*args, **kwargs)
        return result.double() if function in MADE_FROM_OTHERS and result.dtype in NARROW else result


@contextmanager
def doubled() -> Iterator[None]:
    """A context in which PyTorch computes in 64 bits wherever a script names a shorter dtype, too.

    Autocast leaves 64 bits alone, and a GradScaler is off. What a script loads or a worker sends keeps its dtype until
    it is converted.

    >>> with doubled():
    ...     torch.zeros(2).float().softmax(0, dtype=torch.float32).dtype, torch.tensor(1.0, dtype=torch.float32).dtype
    (torch.float64, torch.float64)
    >>> with doubled():
    ...     torch.from_numpy(torch.zeros(1).numpy().astype("f4")).dtype, torch.amp.GradScaler("cpu").is_enabled()
    (torch.float64, False)
    """
    default, mode = torch.get_default_dtype(), Widened()
    engine, scaler = torch.autograd._engine_run_backward, torch.amp.GradScaler.__init__

    def differentiate(*args: Any, **kwargs: Any) -> Any:
        with mode:  # which is off in a backward: `Tensor.backward` is a function that it has seen
            return engine(*args, **kwargs)

    torch.set_default_dtype(torch.float64)
    with (mode, patch.multiple(torch, set_default_dtype=lambda dtype: None, from_numpy=torch.as_tensor),
          patch.object(torch.amp.GradScaler, "__init__", lambda self, *_, **__: scaler(self, enabled=False)),
          patch.object(torch.autograd, "_engine_run_backward", differentiate)):
        yield
    torch.set_default_dtype(default)


def move(root: Any, dtype: Any) -> None:
    """Move each weight of a model by a unit roundoff of `dtype`, up or down, or by the least step of its own dtype."""
    for parameter in root.parameters():
        if parameter.is_floating_point():
            values = local(parameter).data
            signs = 1 - 2 * (hashed(torch.arange(values.numel(), device=values.device)) & 1).double()
            least = max(torch.finfo(dtype).eps / 2, torch.finfo(values.dtype).eps)
            values.copy_(values.double() * (1 + least * signs.reshape(values.shape)))
