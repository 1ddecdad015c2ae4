"""One window of a step: what the observers of forward, backward, clipping, update and wrapping have seen in it.

A window ends when an optimizer's update is over: its `Step` is then copied from the devices and written. Each optimizer
has a step of its own under way, because several may share one forward. Nothing here keeps an optimizer alive.

Functions and hooks of PyTorch are watched without a part in what they do. What is watched runs exactly as without: with
the same arguments, once, and its exception goes where it would. An exception in the observer itself ends the
observation, in one line, and never the training.
"""

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import getattr_static
from types import GeneratorType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zerosim.core.errors import UsageError
from zerosim.torch.check.names import Names
from zerosim.torch.check.record import Batch, Facts, Frame, Remark, Sketched, Step, Term
from zerosim.torch.check.sketch import digest, sketch, whole
from zerosim.torch.check.tensors import local, parameters_of


@dataclass
class Seen:
    """A term, how many optimizers there were, the numbers of those whose updates have used it, and GradScaler's factor.
    """

    term: Term
    optimizers: int
    scale: Any = None
    used: set[int] = field(default_factory=set)


class Window:
    """What all observers share; frames are given to `keep` one by one. Steps from `first` to `last` are observed.

    It watches until `leaving` is closed; `observe` says what.
    """

    def __init__(self, keep: Callable[[Frame], None], first: int = 1, last: int | None = None) -> None:
        self.keep, self.first, self.last = keep, first, last
        self.leaving, self.failed, self.inside = ExitStack(), "", 0
        self._later: list[tuple[Any, Callable[[Any], Any]]] = []
        """Numbers on devices that have not been copied yet."""
        self.facts, self.names = Facts(), Names()
        self.optimizers: list[weakref.ref[Any]] = []
        self.open: dict[int, Step] = {}
        """The present step of each optimizer, as far as it is known before the update."""
        self.terms: dict[str, list[Seen]] = {}
        self.gradients: dict[int, tuple[weakref.ref[Any], Any]] = {}
        """The digest of each gradient that the last backward, or clipping, has left."""
        self.backwards = self.within = self.clipping = self.wrapping = self.asleep = self.depth = 0
        self.version = 0
        """A number that changes with the optimized weights, as far as their version counters tell."""
        self.factor = 1.0
        """By what a script has multiplied its loss, other than by a GradScaler."""
        self.reduced: Any = None
        """The number that the script has reduced last, and before this backward."""
        self.counted: Any = None
        self.losses: list[Any] = []
        """The nodes of scalars that the script has summed over ranks in place, which autograd does not see."""
        self.talks = 0
        """The calls of collectives, whoever has made them."""
        self.half = False
        """Whether a model has returned 16 bits of IEEE: a loss is then multiplied against underflow."""
        self.begin()

    def observe(self) -> None:
        """Watch."""

    def begin(self) -> None:
        """A new window begins."""
        self.batches: list[Batch] = []
        self.forwards, self.returned = 0, set[int]()
        self.reasons: list[str] = []
        self.remarks: list[Remark] = []

    def forget(self) -> None:
        """Let go of every tensor."""
        self.begin()
        self.open, self.terms, self.gradients, self.losses, self._later = {}, {}, {}, [], []
        self.reduced = self.counted = None

    @property
    def active(self) -> bool:
        """Whether the present step is observed."""
        step = 1 + max(self.facts.updates.values(), default=0)
        return not self.asleep and self.first <= step and (self.last is None or step <= self.last)

    def obstacle(self, reason: str) -> None:
        if reason not in self.facts.obstacles:
            self.facts.obstacles.append(reason)

    def identify(self) -> None:
        """Note the rank."""
        if dist.is_available() and dist.is_initialized():
            self.facts.grouped = True
            self.facts.rank, self.facts.size = dist.get_rank(), dist.get_world_size()

    def write(self, step: Step | None = None, **more: Any) -> None:
        """Write a frame, with what is known of the rank by now."""
        self.identify()
        self.keep(Frame(self.facts, step, **more))

    @contextmanager
    def listening(self) -> Iterator[Self]:
        """A context in which everything that trains is recorded."""
        self.observe()
        try:
            yield self
        finally:
            self.leaving.close()
            self.forget()

    # -- functions that are watched, and numbers on devices

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
        self.failed = self.facts.failed = why
        print(f"zerosim: the check has ended, and the training goes on: {why}", file=sys.stderr, flush=True)

    def safe(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method` as a hook that cannot fail."""
        return lambda *given, **named: self.safely(method, *given, *named.values())

    def watch(self, owner: Any, name: str, before: Callable[..., Any] | None = None,
              after: Callable[..., object] | None = None, during: str = "") -> None:
        """Call `before(args, kwargs)` and `after(what before has returned, args, kwargs, result)` around `owner.name`.

        `during` is the counter of calls that are under way between the two.
        """
        if not hasattr(owner, name):
            return
        original, stored, stored_in = getattr(owner, name), getattr_static(owner, name), set(vars(owner))

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            if during == "clipping" and args and isinstance(args[0], GeneratorType):  # only one can read it
                args = ([*args[0]], *args[1:])
            elif during == "clipping" and isinstance(kwargs.get("parameters"), GeneratorType):
                kwargs["parameters"] = [*kwargs["parameters"]]
            seen = self.safely(before, args, kwargs) if before else None
            result = None
            if during:
                vars(self)[during] += 1
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                if during:
                    vars(self)[during] -= 1
                if after:
                    self.safely(after, seen, args, kwargs, result)

        setattr(owner, name, staticmethod(call) if isinstance(stored, staticmethod) else call)
        self.leaving.callback(*((setattr, owner, name, stored) if name in stored_in else (delattr, owner, name)))

    def later(self, tensor: Any, keep: Callable[[Any], Any]) -> None:
        """Call `keep` with these numbers, as an array, once they are copied."""
        self._later.append((tensor, keep))

    def number(self, tensor: Any, target: dict[str, Any], name: str) -> None:
        """Give `target` the number of this tensor under a name, once it is copied; what is True stays so."""
        def keep(values: Any) -> None:
            value, = values.reshape(-1)[:1].tolist()
            target[name] = bool(value or target[name]) if tensor.dtype is torch.bool else value

        self.later(tensor, keep)

    def copy(self) -> None:
        """Copy all numbers, with one copy of each dtype from each device."""
        waiting, self._later = self._later, []
        for kind in dict.fromkeys((tensor.device, tensor.dtype) for tensor, _ in waiting):
            group = [(tensor, keep) for tensor, keep in waiting if (tensor.device, tensor.dtype) == kind]
            numbers: Any = torch.cat([tensor.reshape(-1) for tensor, _ in group]).cpu().numpy()
            ends = np.cumsum([tensor.numel() for tensor, _ in group])
            for (tensor, keep), values in zip(group, np.split(numbers, ends[:-1]), strict=True):
                keep(values.reshape(tuple(tensor.shape)))

    # -- what every observer of a training watches

    def watch_modules(self, enter: Callable[..., Any], leave: Callable[..., Any]) -> None:
        """Call `enter(module, grad)` and `leave(module, args, kwargs, output, grad)` around each forward.

        `grad` says whether gradients are on, and `depth` how many modules are under way. After an exception `leave` is
        not called.
        """
        self.entered, self.left = enter, leave
        for handle in (register_module_forward_pre_hook(self.before_forward),
                       register_module_forward_hook(self.after_forward, with_kwargs=True, always_call=True)):
            self.leaving.callback(handle.remove)

    # These two run while a model is compiled, too, and must then be nothing but a return.

    def before_forward(self, module: Any, args: Any) -> None:
        if not torch.compiler.is_compiling() and not self.asleep:
            self.depth += 1
            self.safely(self.entered, module, torch.is_grad_enabled())

    def after_forward(self, module: Any, args: Any, *kwargs_and_output: Any) -> None:
        """After an exception, such as a checkpoint's early stop of its second forward, PyTorch gives no `kwargs`."""
        if not torch.compiler.is_compiling() and not self.asleep and self.depth:
            self.depth -= 1
            if len(kwargs_and_output) == 2:
                self.safely(self.left, module, args, *kwargs_and_output, torch.is_grad_enabled())

    def watch_clipping(self, before: Callable[..., Any], after: Callable[..., None]) -> None:
        """Call `before(name, args, kwargs)` and `after` around each function of PyTorch that clips; FSDP1's is None."""
        self.watch(fsdp.FullyShardedDataParallel, "clip_grad_norm_", partial(before, None), after, "clipping")
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_"):
                self.watch(owner, name, partial(before, name), after, "clipping")

    def watch_updates(self, before: Callable[..., Any], after: Callable[..., Any], *of_engine: Callable[..., Any]
                      ) -> None:
        """Call `before(optimizer, args, kwargs)`, which may replace these, and `after` around each update.

        The two functions `of_engine` are called around those of DeepSpeed's engine: optimizers within are not followed.
        """
        self.of_engine = of_engine
        for handle in (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(self.safe(after))):
            self.leaving.callback(handle.remove)

    def know(self, root: Any, prefix: str = "") -> list[Any]:
        """Name the modules of a model that is called, after a prefix; the modules that are new."""
        before, after = self.of_engine

        def before_step(args: Any, kwargs: Any) -> bool:
            if boundary := bool(args[0].is_gradient_accumulation_boundary()):
                before(args[0])
            return boundary

        new = self.names.know(root, prefix)
        for engine in {type(module) for module in new if type(module).__name__ == "DeepSpeedEngine"}:
            self.facts.trainer, self.facts.group = "DeepSpeed", list(range(dist.get_world_size()))
            if not hasattr(engine.step, "__wrapped__"):
                self.watch(engine, "step", before_step, lambda due, args, *_: due and after(args[0]), "asleep")
        return new

    # -- optimizers

    def step_of(self, optimizer: Any) -> Step:
        """The present step of an optimizer."""
        number = next((number for number, known in enumerate(self.optimizers) if known() is optimizer), None)
        if number is None:
            number = len(self.optimizers)
            self.optimizers.append(weakref.ref(optimizer))
        return self.open.setdefault(number, Step(number, self.facts.updates.get(number, 0) + 1))

    def known(self) -> Iterator[tuple[Any, list[Any]]]:
        """Each optimizer that is alive, with its parameters."""
        for reference in self.optimizers:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer, parameters_of(optimizer)

    def optimized(self) -> list[Any]:
        """The parameters of all optimizers, each once."""
        return list({id(parameter): parameter for _, parameters in self.known() for parameter in parameters}.values())

    # -- gradients

    def sketched(self, values: Any, shape: Any, key: Any, of: Any) -> Sketched:
        about = torch.finfo(values.dtype)
        partial_sum = isinstance(of, DTensor) and any(placement.is_partial() for placement in of.placements)
        sketched = Sketched(tuple(shape), key, about.eps / 2, about.tiny, partial_sum)
        self.later(sketch(values, shape, key), lambda rows: vars(sketched).update(sums=rows[0], squares=rows[1]))
        return sketched

    def sketches(self, parameters: Any, gradient_of: Callable[[Any], Any] = lambda parameter: parameter.grad
                 ) -> dict[str, Sketched]:
        """The gradients of parameters as they are now, by name."""
        gradients = [(parameter, gradient_of(parameter)) for parameter in parameters]
        return {name: self.sketched(piece, shape, key, gradient) for parameter, gradient in gradients
                if gradient is not None and gradient.layout is torch.strided
                for name, piece, shape, key in self.names.pieces(parameter, gradient)}

    def note_gradients(self, parameters: Any) -> None:
        """Keep digests of gradients as they are now: version counters do not see a write through `.data`."""
        if self.facts.trainer != "DeepSpeed":
            self.gradients |= {id(parameter): (weakref.ref(parameter), bits_of(parameter.grad))
                               for parameter in parameters}

    def notice_touched(self, optimizer: Any) -> None:
        """Note whether the script has written into gradients, or replaced them, since they were kept."""
        step, differing = self.step_of(optimizer), []
        for parameter in parameters_of(optimizer) if self.gradients and self.active else ():
            then, now = self.gradients.get(id(parameter), (None, None))[1], bits_of(parameter.grad)
            if then is None or now is None:
                step.touched |= then is not now
            else:
                differing.append(then != now)
        if differing:
            self.number(torch.stack(differing).any(), vars(step), "touched")


def bits_of(gradient: Any) -> Any:
    """The digest of a gradient on this rank; None without one."""
    dense = gradient is not None and gradient.layout is torch.strided
    return digest(local(gradient), local(gradient).shape, whole(local(gradient).shape)) if dense else None
