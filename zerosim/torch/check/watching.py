"""Watches functions and hooks of PyTorch without a part in what they do.

What is watched runs exactly as without: with the same arguments, once, and its exception goes where it would. An
exception in the observer itself ends the observation, in one line, and never the training.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from inspect import getattr_static
from types import GeneratorType
from typing import Any

import numpy as np
import torch

from zerosim.core.errors import UsageError

Keep = Callable[[Any], None]


class Watch:
    """What is watched until `leaving` is closed, and the numbers on devices that have not been copied yet."""

    def __init__(self) -> None:
        self.leaving = ExitStack()
        self.failed = ""
        self.inside = 0
        self._later: list[tuple[Any, Keep]] = []

    def safely(self, method: Callable[..., Any], *given: Any) -> Any:
        """What `method` returns; None if it fails, if the observer itself calls, or under `vmap` and its like."""
        if self.failed or self.inside or torch._C._functorch.maybe_current_level() is not None:
            return None
        self.inside += 1
        try:
            with torch.no_grad():
                return method(*given)
        except UsageError:
            raise
        except Exception as error:  # the training goes on, whatever it is
            self.fail(f"{type(error).__name__}: {error}"[:300].replace("\n", " "))
        finally:
            self.inside -= 1
        return None

    def fail(self, why: str) -> None:
        """End the observation."""
        self.failed = why
        print(f"zerosim: the check has ended, and the training goes on: {why}", file=sys.stderr, flush=True)

    def safe(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method` as a hook that cannot fail."""
        return lambda *given, **named: self.safely(method, *given, *named.values())

    def watch(self, owner: Any, name: str, before: Callable[..., Any] | None = None,
              after: Callable[..., None] | None = None, listed: bool = False) -> None:
        """Call `before(args, kwargs)` and `after(what before has returned, args, kwargs, result)` around `owner.name`.

        `listed` says that its first argument may be a generator, which only one can read: it becomes a list.
        """
        if not hasattr(owner, name):
            return
        original, stored, stored_in = getattr(owner, name), getattr_static(owner, name), set(vars(owner))

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            if listed and args and isinstance(args[0], GeneratorType):
                args = ([*args[0]], *args[1:])
            elif listed and isinstance(kwargs.get("parameters"), GeneratorType):
                kwargs["parameters"] = [*kwargs["parameters"]]
            seen = self.safely(before, args, kwargs) if before else None
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                if after:
                    self.safely(after, seen, args, kwargs, result)

        setattr(owner, name, staticmethod(call) if isinstance(stored, staticmethod) else call)
        self.leaving.callback(*((setattr, owner, name, stored) if name in stored_in else (delattr, owner, name)))

    # -- numbers on devices

    def later(self, tensor: Any, keep: Keep) -> None:
        """Call `keep` with these numbers, as an array, once they are copied."""
        self._later.append((tensor, keep))

    def number(self, tensor: Any, target: dict[str, Any], name: str) -> None:
        """Give `target` the number of this tensor under a name, once it is copied."""
        kind = int if tensor.dtype is torch.int64 else float
        self.later(tensor, lambda values: target.update({name: kind(values.reshape(-1)[0])}))

    def flag(self, tensor: Any, target: Any, name: str) -> None:
        """Set an attribute of `target` to True if this tensor is, once it is copied."""
        self.later(tensor, lambda values: setattr(target, name, getattr(target, name) or bool(values.reshape(-1)[0])))

    def copy(self) -> None:
        """Copy all numbers, with one copy from each device."""
        waiting, self._later = self._later, []
        for device in dict.fromkeys(tensor.device for tensor, _ in waiting):
            group = [(tensor, keep) for tensor, keep in waiting if tensor.device == device]
            words = [tensor if tensor.dtype is torch.int64 else tensor.double().view(torch.int64)
                     for tensor, _ in group]
            numbers: Any = torch.cat([word.reshape(-1) for word in words]).cpu().numpy()
            ends = np.cumsum([word.numel() for word in words])
            for (tensor, keep), values in zip(group, np.split(numbers, ends[:-1]), strict=True):
                kept = values if tensor.dtype is torch.int64 else values.view(np.float64)
                keep(kept.reshape(tuple(tensor.shape)))
