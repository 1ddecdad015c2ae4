"""The functions of PyTorch that a check wraps while a script runs, and puts back afterwards.

Each entry of `listening` pairs a function with a wrapper, which gets the original function and the call's arguments.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.distributed import DistributedSampler

from zerosim.torch.patching import patched
from zerosim.torch.places import PACKAGES, of_a_library
from zerosim.torch.verdicts.findings import script_line
from zerosim.torch.verdicts.reference import WRAPPERS, digest
from zerosim.torch.verdicts.session import Clip, Session, parameters_of
from zerosim.torch.verdicts.split import local_gradient, pieces_of

Original = Callable[..., Any]
COMMUNICATION = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_tensor", "all_to_all",
    "all_to_all_single", "reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter", "broadcast", "send",
    "recv", "batch_isend_irecv")
TRAINERS = tuple(f"{PACKAGES}{each}" for each in (
    "torch/distributed/fsdp", "torch/nn/parallel", "torch/distributed/utils", "torch/distributed/tensor/_",
    "torch/distributed/tensor/p", "deepspeed", "accelerate"))
"""Files of trainers and of tensor parallelism, which communicate while a forward runs."""
PARALLEL = {"torch/distributed/pipelining": "a pipeline: its ranks hold stages of one model",
            "torch/distributed/tensor/experimental": "context parallelism: its ranks hold parts of one sample"}
WITHIN_FORWARD = "ranks communicate within the forward: they may share samples, or hold parts of one model"
"""Reasons for which a model that communicates is not judged, by the files that do."""
BETWEEN = ("c10d_logger.py", "distributed_c10d.py", "contextlib.py", "_contextlib.py", "verdicts/hooks.py")
"""Files that forward calls."""


@contextmanager
def replaced(owner: Any, name: str, wrapper: Original) -> Iterator[None]:
    """A context in which calls of `owner.name` become calls of `wrapper(original, …)`."""
    original = vars(owner)[name]

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    with patched((owner, name, call)):
        yield


@contextmanager
def listening(session: Session, on_step: Original, on_stepped: Original, on_skipped: Original) -> Iterator[None]:
    """A context in which `session` records, and these functions are called around each `optimizer.step()`."""
    with ExitStack() as stack:
        session.on_step, session.on_stepped, session.on_skipped = on_step, on_stepped, on_skipped
        session.leaving = stack
        wrappers: list[tuple[Any, str, Original]] = [
            (nn.Module, "__call__", forward),
            (torch.autograd, "backward", backward),
            (torch.autograd, "grad", differentiate),
            (torch.optim.Optimizer, "__init__", make_optimizer),
            (torch.optim.Optimizer, "zero_grad", zero_grad),
            (nn.Module, "zero_grad", zero_grad),
            (clip_grad, "_get_total_norm", total_norm),
            *((owner, name, clip_by_norm) for owner, name in (
                (clip_grad, "_clip_grads_with_norm_"), (nn.utils, "clip_grads_with_norm_"))),
            *((owner, "clip_grad_value_", clip_by_value) for owner in (clip_grad, nn.utils)),
            (Join, "__enter__", join),
            (nn.parallel.DistributedDataParallel, "__init__", wrap_model),
            (torch.amp.GradScaler, "unscale_", unscale),
            (torch.amp.GradScaler, "scale", scale),
            (torch.amp.GradScaler, "step", scaled_step),
            (LRScheduler, "step", schedule),
            (DistributedSampler, "__iter__", sample),
            (dist, "all_reduce", all_reduce),
            *((owner, name, communicate) for owner in (dist, _functional_collectives) for name in COMMUNICATION
              if name in vars(owner) and (owner, name) != (dist, "all_reduce")),
            (FSDPParamGroup, "__init__", shard),
            (FlatParamHandle, "shard", shard_flat),
            (FullyShardedDataParallel, "clip_grad_norm_", clip_shards),
        ]
        for owner, name, wrapper in wrappers:
            stack.enter_context(replaced(owner, name, partial(wrapper, session)))
        stack.callback(register_module_forward_hook(
            lambda module, *_: None if torch.compiler.is_compiling() else session.used(module)).remove)
        depth = [0]

        def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
            depth[0] += 1
            if depth[0] > 1 or session.asleep:
                return None
            given = [each for each in (*args, *kwargs.values()) if each is not optimizer]
            closure = next(filter(callable, given), None)
            if closure is None:
                on_step(optimizer)
                return None

            def evaluated() -> Any:
                loss = closure()
                on_step(optimizer)
                session.forget(session.followed(optimizer))
                return loss

            return (tuple(evaluated if each is closure else each for each in args),
                    {key: evaluated if each is closure else each for key, each in kwargs.items()})

        def after(optimizer: Any, *_: Any) -> None:
            depth[0] -= 1
            if depth[0] == 0 and not session.asleep:
                on_stepped(optimizer)

        for handle in (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)):
            stack.callback(handle.remove)
        yield


def forward(session: Session, run: Original, module: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the outermost call of a model; wrappers are looked through."""
    if torch.compiler.is_compiling() or session.depth or not session.active:
        return run(module, *args, **kwargs)
    if type(module).__name__ in WRAPPERS and type(module).__name__ != "OptimizedModule":
        if not any(module is each for each in session.wrappers):
            session.wrappers.append(module)
            if type(module).__name__ == "DeepSpeedEngine":
                session.leaving.enter_context(replaced(type(module), "step", partial(engine_step, session)))
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


def backward(session: Session, run: Original, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    if not session.active:
        return run(tensors, *args, **kwargs)
    session.backward_begins([tensors] if isinstance(tensors, torch.Tensor) else list(tensors),
                            bool(kwargs.get("create_graph")))
    found = run(tensors, *args, **kwargs)
    session.gradients_are_left()
    return found


def differentiate(session: Session, run: Original, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.grad` passes the hooks of outputs, but fills no gradient: such a step is not judged."""
    compiling = any(part in callers(2) for part in ("torch/_functorch", "torch/fx"))
    if session.active and not compiling:
        for model in session.models:
            model.obstacles.append("torch.autograd.grad in the step")
    return run(*args, **kwargs)


def make_optimizer(session: Session, run: Original, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    run(optimizer, *args, **kwargs)
    if not session.asleep:
        session.followed(optimizer)


def zero_grad(session: Session, run: Original, owner: Any, *args: Any, **kwargs: Any) -> Any:
    if session.active:
        found = list(owner.parameters()) if isinstance(owner, nn.Module) else parameters_of(owner)
        session.zeroed(found, script_line())
    return run(owner, *args, **kwargs)


def total_norm(session: Session, run: Original, tensors: Any, norm_type: float = 2.0, *args: Any,
               **kwargs: Any) -> Any:
    session.norm_type = float(norm_type)
    return run(tensors, norm_type, *args, **kwargs)


def clip_by_norm(session: Session, run: Original, parameters: Any, max_norm: float, total_norm: Any, *args: Any,
                 **kwargs: Any) -> None:
    chosen = clipping(session, parameters, Clip({}, float(max_norm), session.norm_type, script_line(), total_norm))
    run(chosen, max_norm, total_norm, *args, **kwargs)


def clip_by_value(session: Session, run: Original, parameters: Any, *args: Any, **kwargs: Any) -> None:
    run(clipping(session, parameters, Clip({}, float("inf"), 2.0, script_line(), None)), *args, **kwargs)


def clipping(session: Session, parameters: Any, clip: Clip) -> list[Any]:
    """The parameters as a list; their gradients before clipping are kept."""
    chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    if session.active:
        clip.before = {id(each): None if each.grad is None else local_gradient(each).clone() for each in chosen}
        concerned = [each for each in session.optimizers
                     if any(id(p) in clip.before for p in parameters_of(each.optimizer))]
        clip.unscaled = min((each.unscaled for each in concerned), default=1.0)
        for each in concerned:
            each.clips.append(clip)
    return chosen


def clip_shards(session: Session, run: Original, model: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """FSDP1's own clipping, by the norm of all shards."""
    clip = Clip({}, float(max_norm), float(norm_type), script_line(), None)
    clipping(session, model.parameters(), clip)
    clip.norm = run(model, max_norm, norm_type)
    return clip.norm


def join(session: Session, run: Original, *args: Any) -> Any:
    session.joins = True
    return run(*args)


def wrap_model(session: Session, run: Original, wrapper: Any, *args: Any, **kwargs: Any) -> None:
    session.wrapping(args[0] if args else kwargs["module"])
    run(wrapper, *args, **kwargs)
    session.wrappers.append(wrapper)


def scale(session: Session, run: Original, scaler: Any, outputs: Any) -> Any:
    found = run(scaler, outputs)
    session.scale = scaler.get_scale() if scaler.is_enabled() else 1.0
    return found


def unscale(session: Session, run: Original, scaler: Any, optimizer: Any) -> Any:
    found = run(scaler, optimizer)
    if scaler.is_enabled():
        session.followed(optimizer).unscaled /= scaler.get_scale()
        session.gradients_are_left()
    return found


def scaled_step(session: Session, run: Original, scaler: Any, optimizer: Any, *args: Any,
                **kwargs: Any) -> Any:
    """A scaler skips `optimizer.step()` when a gradient has overflowed; the others must learn of it."""
    followed = session.followed(optimizer)
    followed.line = script_line()
    before = followed.updates
    found = run(scaler, optimizer, *args, **kwargs)
    if followed.updates == before and not session.asleep:
        session.on_skipped(optimizer)
    return found


def engine_step(session: Session, run: Original, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """DeepSpeed's engine is its optimizer; those within, of flat partitions, are not followed."""
    if session.asleep or not engine.is_gradient_accumulation_boundary():
        return run(engine, *args, **kwargs)
    session.on_step(engine)
    session.asleep = True
    try:
        found = run(engine, *args, **kwargs)
    finally:
        session.asleep = False
    session.on_stepped(engine)
    return found


def schedule(session: Session, run: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Count the steps of a scheduler that the script itself makes; libraries may have reasons for several."""
    if not of_a_library(sys._getframe(2).f_code.co_filename):
        counts = session.followed(scheduler.optimizer).scheduled
        counts[id(scheduler)] = counts.get(id(scheduler), 0) + 1
    return run(scheduler, *args, **kwargs)


def sample(session: Session, run: Original, sampler: Any) -> Any:
    if sampler.shuffle:
        session.epochs[id(sampler)] = sampler.epoch, script_line()
        session.sampling.append({"samples": len(sampler.dataset), "num_replicas": sampler.num_replicas,
                                 "seed": sampler.seed, "epoch": sampler.epoch, "line": script_line()})
    return run(sampler)


def communicate(session: Session, run: Original, *args: Any, **kwargs: Any) -> Any:
    """Note communication within a forward, and any message: its ranks may hold parts of one model."""
    messages, file = run.__name__ in ("send", "recv", "batch_isend_irecv"), callers(2)
    if session.active and (session.depth or messages) and not file.startswith(TRAINERS):
        session.communicates = next((why for part, why in PARALLEL.items() if part in file), WITHIN_FORWARD)
    return run(*args, **kwargs)


def callers(depth: int) -> str:
    """The file that called the wrapped function."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename


def all_reduce(session: Session, run: Original, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Note that the script adds a number over the ranks, as it does to normalise a loss by all tokens."""
    if session.active and isinstance(tensor, torch.Tensor):
        session.scalars_reduced += tensor.numel() == 1
        for each in session.optimizers:
            each.reduced_clipped = bool(each.clips) and (each.reduced_clipped or tensor.numel() > 1)
    return communicate(session, run, tensor, *args, **kwargs)


def shard(session: Session, run: Original, group: Any, params: Any, modules: Any, *args: Any, **kwargs: Any) -> None:
    """Note the weights of a unit before FSDP2 cuts them."""
    before = [each for module in modules for each in session.sharding(module)]
    run(group, params, modules, *args, **kwargs)
    session.sharded(before)


def shard_flat(session: Session, run: Original, handle: Any) -> None:
    """Note the weights in a flat parameter before FSDP1 cuts it."""
    whole = [(piece, digest([handle.flat_param[piece.where]])) for piece in pieces_of(handle)]
    run(handle)
    session.wrapping_line, left = script_line(), digest([handle.flat_param])
    for piece, found in whole if handle.uses_sharded_strategy else ():
        session.shards[id(piece.module), piece.name] = found, left, lambda: handle.flat_param
