"""What a recorded run may do to its initial weights, and to its precision."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from zerosim.core.errors import UsageError
from zerosim.torch.check.names import plainly
from zerosim.torch.check.sketch import hashed
from zerosim.torch.check.tensors import local, place_of

WEIGHTS = "weights.npz"
NARROW = (torch.float32, torch.bfloat16, torch.float16)
MADE_FROM_OTHERS = (torch.tensor, torch.as_tensor, torch.from_numpy)


class Double(TorchFunctionMode):
    """A context in which PyTorch computes in 64 bits wherever a script names a shorter dtype, too.

    Autocast leaves 64 bits alone. What a script loads or a worker sends keeps its dtype until it is converted.

    >>> with Double():
    ...     torch.zeros(2).float().softmax(0, dtype=torch.float32).dtype, torch.tensor(np.ones(1, "f4")).dtype
    (torch.float64, torch.float64)
    """

    def __enter__(self) -> "Double":
        self.default, self.setter, self.engine = (
            torch.get_default_dtype(), torch.set_default_dtype, torch.autograd._engine_run_backward)
        torch.set_default_dtype(torch.float64)
        torch.set_default_dtype, torch.autograd._engine_run_backward = lambda dtype: None, self.differentiate
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype, torch.autograd._engine_run_backward = self.setter, self.engine
        torch.set_default_dtype(self.default)

    def differentiate(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward, in which the mode would be off: `Tensor.backward` is a function that it has seen."""
        super().__enter__()
        try:
            return self.engine(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)

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


def move(root: Any, dtype: Any) -> None:
    """Move each weight of a model by a unit roundoff of `dtype`, up or down, or by the least step of its own dtype."""
    for parameter in root.parameters():
        if parameter.is_floating_point():
            values = local(parameter).data
            signs = 1 - 2 * (hashed(torch.arange(values.numel(), device=values.device)) & 1).double()
            least = max(torch.finfo(dtype).eps / 2, torch.finfo(values.dtype).eps)
            values.copy_(values.double() * (1 + least * signs.reshape(values.shape)))


def keep(root: Any, folder: Path) -> None:
    """Write the whole weights of a model by name, all of them new after each call."""
    path = folder / WEIGHTS
    np.savez(path, **{plainly(name): local(parameter).detach().double().cpu().numpy()
                      for name, parameter in root.named_parameters(remove_duplicate=False)})


def read(folder: Path) -> Mapping[str, Any]:
    """The whole weights of a reference run."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UsageError(f"--start-from {folder}: it has no weights; record the run on one rank with --keep-weights")
    return dict(np.load(path))


def start(root: Any, weights: Mapping[str, Any], rank: int) -> None:
    """Give a model the weights of these names, cut as its shapes say.

    A DTensor knows its place. Of another tensor that is shorter along an axis, rank r has the part r modulo the number
    of parts: neighbours share a layer, as in Megatron-LM.
    """
    for name, parameter in root.named_parameters():
        if plainly(name) not in weights:
            raise UsageError(f"--start-from: the reference has no {plainly(name)}; its first names are "
                             f"{', '.join([*weights][:5])}")
        whole = weights[plainly(name)]
        own, place = local(parameter).data, place_of(parameter)
        if whole.shape != tuple(parameter.shape):
            parts = [full // size for full, size in zip(whole.shape, own.shape, strict=True)]
            place = tuple((rank % part * size, (rank % part + 1) * size)
                          for part, size in zip(parts, own.shape, strict=True))
        own.copy_(torch.from_numpy(whole[tuple(slice(*bounds) for bounds in place)]))
