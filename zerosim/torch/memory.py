"""Bytes of tensors: those of an optimizer between steps, and all that are alive while a script runs.

A tensor's memory is its storage; views share it. The ledger examines every tensor that an operation returns, and every
storage that is resized, as FSDP2 does to free gathered weights. Memory that C++ code keeps internally is not counted.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zerosim.instruments.memory import Ledger


def storages(tensors: Any) -> Iterator[Any]:
    """The storages of tensors, for a distributed tensor this rank's part, each once."""
    seen = set()
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage


def local(tensor: Any) -> Any:
    """This rank's part of a distributed tensor, whose own storage has the size of the whole and no memory."""
    return getattr(tensor, "_local_tensor", tensor)


def total_bytes(tensors: Any) -> int:
    """
    >>> whole = torch.zeros(10)
    >>> total_bytes([whole, whole[:5], torch.zeros(2, dtype=torch.bfloat16)])
    44
    """
    return sum(storage.nbytes() for storage in storages(tensors))


def held_by(optimizer: Any) -> dict[str, int]:
    """The bytes of an optimizer's parameters, of their gradients and of its state on this rank.

    >>> weight = torch.nn.Parameter(torch.zeros(10))
    >>> weight.grad = torch.ones(10)
    >>> optimizer = torch.optim.SGD([weight], momentum=0.9)
    >>> optimizer.step()
    >>> held_by(optimizer)
    {'parameters': 40, 'gradients': 40, 'optimizer': 40}
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    gradients = [each.grad for each in parameters if each.grad is not None]
    state = [each for each in tree_leaves(list(optimizer.state.values())) if isinstance(each, torch.Tensor)]
    return {"parameters": total_bytes(parameters), "gradients": total_bytes(gradients), "optimizer": total_bytes(state)}


def whole_bytes(optimizer: Any) -> int:
    """The bytes of an optimizer's parameters; a distributed tensor counts with all its parts."""
    return sum(each.numel() * each.element_size() for group in optimizer.param_groups for each in group["params"])


class Live(TorchDispatchMode):
    """Notifies a ledger when storages are allocated, resized and freed.

    >>> live = Live(Ledger())
    >>> with live:
    ...     square = torch.ones(10) * torch.ones(10)
    >>> live.ledger.total, live.ledger.peak_total
    (40, 120)
    >>> with live:
    ...     _ = square.untyped_storage().resize_(0)
    >>> live.ledger.total
    0
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self._sizes: dict[int, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Any:
        resize, see = self._resize, self.see

        def resized(storage: Any, size: int) -> Any:
            found = resize(storage, size)
            see(storage)
            return found

        torch.UntypedStorage.resize_ = resized
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*failure)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self.see(local(tensor).untyped_storage())
        return found

    def see(self, storage: Any) -> None:
        """Count a storage if it is new, or its change of size."""
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.ledger.taken("activations", "", storage.nbytes())
            weakref.finalize(storage, self._end, key).atexit = False
        elif self._sizes[key] != storage.nbytes():
            self._change(key, storage.nbytes())

    def _change(self, key: int, size: int) -> None:
        before, self._sizes[key] = self._sizes[key], size
        self.ledger.given_back("activations", "", before)
        self.ledger.taken("activations", "", size)

    def _end(self, key: int) -> None:
        self.ledger.given_back("activations", "", self._sizes.pop(key))
