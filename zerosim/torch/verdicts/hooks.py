"""Where a check listens: the functions of PyTorch that it wraps while a script runs, and puts back afterwards."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.distributed import DistributedSampler

from zerosim.torch.verdicts.findings import script_line
from zerosim.torch.verdicts.reference import WRAPPERS, local
from zerosim.torch.verdicts.session import Clip, Session, parameters_of

Wrapped = Callable[..., Any]


@contextmanager
def replaced(owner: Any, name: str, made: Callable[[Wrapped], Wrapped]) -> Iterator[None]:
    """A context in which `owner.name` is what `made` returns for it; nothing happens if there is no such name."""
    original = vars(owner).get(name)
    if original is None:
        yield
        return
    setattr(owner, name, wraps(original)(made(original)))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def listening(session: Session, on_step: Wrapped, on_stepped: Wrapped, on_skipped: Wrapped) -> Iterator[None]:
    """A context in which `session` records, and these functions are called around each `optimizer.step()`."""
    with ExitStack() as stack:
        for owner, name, made in (
            (nn.Module, "__call__", forwards(session)),
            (torch.autograd, "backward", backwards(session)),
            (torch.autograd, "grad", differentiates(session)),
            (torch.optim.Optimizer, "__init__", makes_optimizer(session)),
            (torch.optim.Optimizer, "zero_grad", zeroes(session, parameters_of)),
            (nn.Module, "zero_grad", zeroes(session, lambda module: list(module.parameters()))),
            (nn.utils, "clip_grad_norm_", clips(session)),
            (nn.utils.clip_grad, "clip_grad_norm_", clips(session)),
            (nn.parallel.DistributedDataParallel, "__init__", wraps_model(session)),
            (torch.amp.GradScaler, "unscale_", unscales(session)),
            (torch.amp.GradScaler, "step", scales_step(session, on_skipped)),
            (torch.amp.GradScaler, "scale", scales(session)),
            (LRScheduler, "step", schedules(session)),
            (DistributedSampler, "__iter__", samples(session)),
            (dist, "all_reduce", reduces(session)),
        ):
            stack.enter_context(replaced(owner, name, made))
        for module in (fsdp, fsdp._fully_shard, fsdp._fully_shard._fully_shard):
            stack.enter_context(replaced(module, "fully_shard", shards(session, stack)))
        depth = [0]

        def before(optimizer: Any, *arguments: Any) -> None:
            depth[0] += 1
            if depth[0] == 1 and not session.asleep:
                on_step(optimizer, *arguments)

        def after(optimizer: Any, *_: Any) -> None:
            depth[0] -= 1
            if depth[0] == 0 and not session.asleep:
                on_stepped(optimizer)

        for handle in (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)):
            stack.callback(handle.remove)
        yield


def forwards(session: Session) -> Callable[[Wrapped], Wrapped]:
    """Record the outermost call of a model; wrappers are looked through."""
    def made(run: Wrapped) -> Wrapped:
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or session.depth or not session.active or (
                    type(module).__name__ in WRAPPERS and type(module).__name__ != "OptimizedModule"):
                return run(module, *args, **kwargs)
            begun = session.begin(module, args, kwargs)
            if begun is None:
                return run(module, *args, **kwargs)
            session.depth += 1
            try:
                output = run(module, *args, **kwargs)
            finally:
                session.depth -= 1
            session.ended(*begun, output)
            return output

        return forward

    return made


def backwards(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if session.active:
                session.backward_begins(bool(kwargs.get("create_graph")))
            return run(tensors, *args, **kwargs)

        return backward

    return made


def differentiates(session: Session) -> Callable[[Wrapped], Wrapped]:
    """`torch.autograd.grad` fills no gradient, but passes the hooks of outputs; second derivatives are not judged."""
    def made(run: Wrapped) -> Wrapped:
        def grad(*args: Any, **kwargs: Any) -> Any:
            if session.active:
                for model in session.models:
                    model.obstacles.append("torch.autograd.grad in the step")
            return run(*args, **kwargs)

        return grad

    return made


def zeroes(session: Session, parameters: Callable[[Any], list[Any]]) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if session.active:
                session.zeroed(parameters(owner), script_line())
            return run(owner, *args, **kwargs)

        return zero_grad

    return made


def clips(session: Session) -> Callable[[Wrapped], Wrapped]:
    """Keep the gradients as they were before clipping."""
    def made(run: Wrapped) -> Wrapped:
        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            if not session.active:
                return run(parameters, max_norm, norm_type, *args, **kwargs)
            chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            before = {id(each): local(each.grad).detach().clone() for each in chosen if each.grad is not None}
            concerned = [each for each in session.optimizers if any(
                id(p) in before for p in parameters_of(each.optimizer))]
            clip = Clip(before, float(max_norm), float(norm_type), script_line(),
                        min((each.unscaled for each in concerned), default=1.0))
            clip.norm = run(chosen, max_norm, norm_type, *args, **kwargs)
            for each in concerned:
                each.clips.append(clip)
            return clip.norm

        return clip_grad_norm_

    return made


def wraps_model(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            run(wrapper, *args, **kwargs)
            session.wrappers.append(wrapper)

        return init

    return made


def shards(session: Session, stack: ExitStack) -> Callable[[Wrapped], Wrapped]:
    """Note the weights before FSDP2 cuts them; from then on, those that forwards use."""
    def made(run: Wrapped) -> Wrapped:
        def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not session.watches_shards:
                session.watches_shards = True
                stack.callback(register_module_forward_hook(lambda module, *_: session.used(module)).remove)
            modules = module if isinstance(module, list) else [module]
            before = [each for one in modules for each in session.sharding(one)]
            found = run(module, *args, **kwargs)
            session.sharded(before)
            return found

        return fully_shard

    return made


def makes_optimizer(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            run(optimizer, *args, **kwargs)
            if not session.asleep:
                session.followed(optimizer)

        return init

    return made


def scales(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def scale(scaler: Any, outputs: Any) -> Any:
            found = run(scaler, outputs)
            session.scale = scaler.get_scale()
            return found

        return scale

    return made


def unscales(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def unscale(scaler: Any, optimizer: Any) -> Any:
            found = run(scaler, optimizer)
            if scaler.is_enabled():
                session.followed(optimizer).unscaled /= scaler.get_scale()
            return found

        return unscale

    return made


def scales_step(session: Session, on_skipped: Wrapped) -> Callable[[Wrapped], Wrapped]:
    """A scaler skips `optimizer.step()` when a gradient has overflowed; the others must learn of it."""
    def made(run: Wrapped) -> Wrapped:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = session.followed(optimizer).updates
            found = run(scaler, optimizer, *args, **kwargs)
            if session.followed(optimizer).updates == before and not session.asleep:
                on_skipped(optimizer)
            return found

        return step

    return made


def schedules(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            line = script_line()
            if getattr(scheduler, "last_epoch", -1) >= 0 and line:
                counts = session.followed(scheduler.optimizer).scheduled
                counts[id(scheduler)] = counts.get(id(scheduler), 0) + 1
            return run(scheduler, *args, **kwargs)

        return step

    return made


def samples(session: Session) -> Callable[[Wrapped], Wrapped]:
    def made(run: Wrapped) -> Wrapped:
        def iterate(sampler: Any) -> Any:
            session.epochs.append((id(sampler), sampler.epoch if sampler.shuffle else -1, script_line()))
            return run(sampler)

        return iterate

    return made


def reduces(session: Session) -> Callable[[Wrapped], Wrapped]:
    """Note that the script itself adds a number over the ranks, as it does to normalise a loss by all tokens."""
    def made(run: Wrapped) -> Wrapped:
        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if session.active and isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
                session.scalars_reduced += 1
            return run(tensor, *args, **kwargs)

        return all_reduce

    return made
