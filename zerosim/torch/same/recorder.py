"""Records a script in any parallel layout: projections of weights and gradients, a number for each token of an output.

Nothing is sent and nothing is computed again. Numbers stay on their device until an update, and are then copied at
once. Modules are seen by global hooks, updates by hooks of optimizers, clipping by PyTorch's functions for it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zerosim.torch.check.adapters import deepspeed_gradient, flat_pieces
from zerosim.torch.check.names import plainly
from zerosim.torch.check.sketch import PIECES, hashed
from zerosim.torch.check.tensors import local, parameters_of, place_of, script_line
from zerosim.torch.check.watching import Watch
from zerosim.torch.same.record import Entry, is_range, matrix, span

RAISED = object()
"""Instead of the output of a module that has none."""
Piece = tuple[str, Any, tuple[int, ...], Any, list[int]]
"""The name of a parameter, this rank's values of it, the whole shape, the place of the values, and all its ranks."""


@lru_cache(16)
def factors(count: int, device: Any) -> Any:
    """For each position a factor between 0.5 and 1.5 with a random sign, as float64."""
    numbers = hashed(torch.arange(count, device=device))
    return (1.0 - 2.0 * (numbers & 1)) * (0.5 + (numbers >> 11 & (1 << 53) - 1).double() / 2**53)


def rows_of(values: Any, right: Any) -> Any:
    """The product of a matrix and a vector in float64, some rows at a time."""
    most = max(1, PIECES.get(values.device.type, 1 << 24) // max(1, values.shape[1]))
    return torch.cat([piece.double() @ right for piece in values.split(most)]) if len(values) else right.new_zeros(0)


def columns_of(values: Any, left: Any) -> Any:
    """The product of a vector and a matrix in float64, some rows at a time."""
    most = max(1, PIECES.get(values.device.type, 1 << 24) // max(1, values.shape[1]))
    total = left.new_zeros(values.shape[1])
    for piece, factor in zip(values.split(most), left.split(most), strict=True):
        total += factor @ piece.double()
    return total


def projections(values: Any, shape: tuple[int, ...], place: Any) -> tuple[Any, Any]:
    """What a part contributes to the two projections of the whole tensor, in its rows and in its columns."""
    first, last, columns = span(shape, place)
    values, (rows, width) = values.detach().reshape(-1), matrix(shape)
    if is_range(shape, place):
        (start, end), = place
        values = nn.functional.pad(values, (start - first * width, last * width - end))
    values = values.reshape(last - first, len(columns))
    right = factors(width, values.device)
    right = right if len(columns) == width else right[torch.from_numpy(columns).to(right.device)]
    return rows_of(values, right), columns_of(values, factors(rows, values.device)[first:last])


def per_token(tensor: Any) -> Any | None:
    """A number for each row of the last axis, None for a tensor that is a part of the features, or one of a sum."""
    if isinstance(tensor, DTensor) and any(
            placement.is_partial() or placement.is_shard(tensor.dim() - 1) for placement in tensor.placements):
        return None
    values = local(tensor).detach()
    values = values.reshape(-1, values.shape[-1])
    return rows_of(values, factors(values.shape[1], values.device))


def drawn() -> Any:
    """The state of the generators of random numbers, another after each number that is drawn."""
    on_device = (torch.cuda.default_generators[torch.cuda.current_device()].get_offset() if torch.cuda.is_initialized()
                 and not torch.cuda.is_current_stream_capturing() else 0)
    return on_device, torch.random.default_generator.get_state().numpy().tobytes()


def share_of(values: Any) -> tuple[bool, float]:
    """Whether a tensor is a sum of what its ranks have, and what a rank counts in it: 0 if its parts make no sum."""
    placements = getattr(values, "placements", ())
    if not any(placement.is_partial() for placement in placements):
        return False, 1.0
    share = 1.0
    for size, placement in zip(values.device_mesh.shape, placements, strict=True):
        if placement.is_partial() and placement.reduce_op not in ("sum", "avg"):
            return True, 0.0
        if placement.is_replicate() or (placement.is_partial() and placement.reduce_op == "avg"):
            share /= size
    return True, share


class LayoutRecorder(Watch):
    """The entries of this rank, given to `keep` in order, for the steps from the first to `last`, while `listening`.

    `prepare` is called with each module that is called as a root, before its first forward.
    """

    def __init__(self, keep: Callable[[list[Entry]], None], last: int | None = None,
                 prepare: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.keep, self.last, self.prepare = keep, last, prepare
        self.names: Any = WeakIdKeyDictionary()
        self.paths: Any = WeakIdKeyDictionary()
        self.parents: Any = WeakIdKeyDictionary()
        """The modules that have been given each module as a part."""
        self.aliases: dict[str, list[str]] = {}
        self.flat: Any = WeakIdKeyDictionary()
        """The pieces of FSDP1's flat parameters, with the shapes of their parameters and its ranks."""
        self.views: Any = WeakIdKeyDictionary()
        """The place of each parameter that is a view of a flat one."""
        self.known: Any = WeakIdKeyDictionary()
        """The parameters whose initial weights are recorded."""
        self.step, self.roots, self.depth, self.updating, self.asleep, self.clipping, self.within = 1, 0, 0, 0, 0, 0, 0
        self.updated = self.clipped = False
        self.random: Any = None
        self.calls: dict[str, int] = {}
        self.entries: list[Entry] = []

    @property
    def active(self) -> bool:
        return not self.asleep and (self.last is None or self.step <= self.last)

    @contextmanager
    def listening(self) -> Iterator["LayoutRecorder"]:
        """A context in which everything that trains is recorded."""
        self.leaving.callback(register_module_module_registration_hook(self.contain).remove)
        self.watch(torch.autograd, "backward", self.before_backward, self.after_backward)
        self.watch(fsdp.FullyShardedDataParallel, "clip_grad_norm_", self.before_clipping, self.after_clipping)
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_"):
                self.watch(owner, name, self.before_clipping, self.after_clipping, listed=True)
        for name in ("_prepare_forward_infra", "_prepare_backward_infra"):  # a forward that only asks for shapes
            self.watch(PipelineStage, name, self.before_trial, self.after_trial)
        for handle in (register_module_forward_pre_hook(self.before_forward),
                       register_module_forward_hook(self.after_forward, with_kwargs=True, always_call=True),
                       register_optimizer_step_pre_hook(self.safe(self.before_update)),
                       register_optimizer_step_post_hook(self.safe(self.after_update))):
            self.leaving.callback(handle.remove)
        try:
            yield self
        finally:
            self.flush()
            self.leaving.close()

    def later_entry(self, entry: Entry, rows: Any, columns: Any = None) -> None:
        """Keep an entry once its numbers are copied."""
        self.entries.append(entry)
        self.later(rows, lambda values: vars(entry).update(rows=values.reshape(-1)))
        if columns is not None:
            self.later(columns, lambda values: vars(entry).update(columns=values))

    def flush(self) -> None:
        """Copy all numbers, and keep the entries."""
        self.copy()
        self.keep(self.entries)
        self.entries = []

    # -- modules. These two run while a model is compiled, too, and must then be nothing but a return.

    def before_forward(self, module: Any, args: Any) -> None:
        if not torch.compiler.is_compiling() and not self.asleep:
            root = self.safely(self.enter, module, torch.is_grad_enabled())
            if root is not None and self.prepare is not None:
                with torch.no_grad():
                    self.prepare(root)

    def after_forward(self, module: Any, args: Any, kwargs: Any, output: Any = RAISED) -> None:
        """After an exception (a checkpoint's early stop of its second forward) PyTorch calls this without `kwargs`."""
        if not torch.compiler.is_compiling() and not self.asleep and self.depth:
            if output is RAISED:
                self.depth -= 1
            else:
                self.safely(self.exit, module, args, kwargs, output, torch.is_grad_enabled())

    def contain(self, module: Any, name: str, part: Any) -> None:
        if part is not None:
            self.parents.setdefault(part, []).append(weakref.ref(module))

    def enter(self, module: Any, training: bool) -> Any:
        """A module begins; the model that it belongs to, if it was not known."""
        self.depth += 1
        if self.depth == 1:
            self.random = drawn() if training and self.active else None
        if self.depth == 1 and training and self.active:
            if self.updated and next(module.parameters(), None) is not None:
                self.step, self.updated, self.clipped, self.calls = self.step + 1, False, False, {}
            if self.active and module not in self.paths:
                root = module
                while above := [parent for known in self.parents.get(root, ()) if (parent := known()) is not None]:
                    root = above[-1]
                self.know(root)
                return root
        return None

    def exit(self, module: Any, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        self.depth -= 1
        if not self.active or not training:
            return
        if not self.depth and self.random is not None and self.random != drawn():
            self.entries.append(Entry("random", self.step, self.paths.get(module, ""), line=script_line()))
        if not self.depth and not self.within and next(module.parameters(), None) is not None:
            for key, value in (*enumerate(args), *kwargs.items()):
                self.note_input(str(key), value)
        leaf = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1
                     and leaf.is_floating_point() and not leaf.is_meta), None)
        if leaf is None:
            return
        name = self.paths.get(module, type(module).__name__)
        self.calls[name] = self.calls.get(name, 0) + 1
        about = self.step, name, type(module).__name__, self.calls[name], script_line()
        self.note_tokens(Entry("output", *about), leaf)
        if leaf.requires_grad:
            gradient = partial(Entry, "output gradient", *about)
            leaf.register_hook(self.safe(lambda values: self.note_tokens(gradient(), values)))

    def note_tokens(self, entry: Entry, values: Any) -> None:
        """Note a number for each token of an output or of its gradient, unless it is a part that must be added."""
        rows = per_token(values)
        if rows is not None and self.active:
            entry.shape, entry.roundoff = (local(values).shape[-1],), torch.finfo(values.dtype).eps / 2
            self.later_entry(entry, rows)

    def note_input(self, key: str, value: Any) -> None:
        """Note the tokens that a root is given: integers as they are, features by their projection."""
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                whole = not leaf.is_floating_point() and not leaf.is_complex() and leaf.dtype is not torch.bool
                rows = (local(leaf).reshape(-1).double() if whole and leaf.dim() <= 2 else
                        per_token(leaf) if leaf.is_floating_point() and leaf.dim() > 1 else None)
                if rows is not None:
                    width = 0 if whole else leaf.shape[-1]
                    self.later_entry(Entry("input", self.step, key, line=script_line(), shape=(width,)), rows)

    def know(self, root: Any) -> None:
        """Name the modules and parameters of a model that is called; further models have a number before the names."""
        has = next(root.parameters(), None) is not None
        prefix = "" if not self.roots else f"{self.roots}."
        self.roots += has
        for path, module in root.named_modules():
            plain = prefix + plainly(path) if has else type(root).__name__
            self.paths.setdefault(module, plain.rstrip("."))
            if type(module).__name__ == "DeepSpeedEngine":
                self.watch(type(module), "step", self.before_engine_step, self.after_engine_step)
            for flat, pieces, parts in flat_pieces(module, self.paths):
                shapes = dict(zip(pieces.names, map(tuple, flat._shapes), strict=True))
                group = dist.get_process_group_ranks(module.process_group)
                self.flat[flat] = pieces, shapes, group
                for view, (name, _, key) in parts:
                    self.views[view] = name, shapes[name], key, group
        for name, parameter in root.named_parameters(remove_duplicate=False):
            plain = prefix + plainly(name)
            first = self.names.setdefault(parameter, plain)
            if first != plain and plain not in self.aliases.setdefault(first, []):
                self.aliases[first].append(plain)

    # -- parameters

    def pieces(self, parameter: Any, values: Any) -> Iterator[Piece]:
        """The named parts of a parameter's values on this rank."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        name, here = self.names.get(parameter, ""), local(values).detach()
        if parameter in self.flat:
            flat, shapes, group = self.flat[parameter]
            for name, piece, _, key in flat(here):
                yield name, piece, shapes[name], key, group
        elif parameter in self.views:
            name, shape, key, group = self.views[parameter]
            yield name, here, shape, key, group
        elif hasattr(parameter, "ds_tensor") and values is parameter:  # ZeRO-3 keeps a range of the flat tensor
            shape, shard = tuple(parameter.ds_shape), parameter.ds_tensor.detach().reshape(-1)
            first = parameter.ds_process_group.rank() * shard.numel()
            last = min(first + shard.numel(), parameter.ds_numel)
            yield (name, shard[: max(0, last - first)], shape, ((min(first, last), last),),
                   dist.get_process_group_ranks(parameter.ds_process_group))
        elif here.untyped_storage().size() or not here.numel():
            group = values.device_mesh.mesh.flatten().tolist() if isinstance(values, DTensor) else [rank]
            yield name, here, tuple(values.shape), place_of(values), group

    def note(self, kind: str, parameter: Any, values: Any, unnamed: str, line: str) -> None:
        """Note the projections of a parameter's weights or gradient."""
        added, share = share_of(values)
        if not share:
            return
        for name, piece, shape, place, group in self.pieces(parameter, values):
            entry = Entry(kind, self.step, name or unnamed, "", 0, line, shape, place, group,
                          self.aliases.get(name, []), torch.finfo(piece.dtype).eps / 2, added=added)
            self.later_entry(entry, *(share * numbers for numbers in projections(piece, shape, place)))

    def note_gradients(self, kind: str, optimizer: Any, parameters: Any, line: str) -> None:
        """Note the gradients of parameters as an optimizer sees them."""
        for number, parameter in enumerate(parameters):
            gradient = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
            if gradient is None and isinstance(optimizer, nn.Module):
                gradient = deepspeed_gradient(parameter)
            if gradient is not None and gradient.layout is torch.strided:
                self.note(kind, parameter, gradient, f"?{number}", line)

    def before_update(self, optimizer: Any, *_: Any) -> None:
        if self.asleep:
            return
        self.updating += 1
        if self.updating > 1 or not self.active:
            return
        line, own = script_line(), parameters_of(optimizer)
        for number, parameter in enumerate([*own, *self.names]):
            if parameter not in self.known:
                self.known[parameter] = True
                self.note("weight", parameter, parameter, f"?{number}", line)
        self.note_gradients("clipped" if self.clipped else "gradient", optimizer, own, line)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        if self.asleep:
            return
        self.updating -= 1
        if self.updating or not self.active:
            return
        line = script_line()
        for number, parameter in enumerate(parameters_of(optimizer)):
            self.note("updated", parameter, parameter, f"?{number}", line)
        self.updated = True
        self.flush()

    def before_engine_step(self, args: Any, kwargs: Any) -> bool:
        """DeepSpeed's engine is its optimizer; those within, of flat partitions, are not followed."""
        boundary = bool(args[0].is_gradient_accumulation_boundary())
        if boundary:
            self.before_update(args[0])
        self.asleep += 1
        return boundary

    def after_engine_step(self, boundary: bool, args: Any, kwargs: Any, result: Any) -> None:
        self.asleep -= 1
        if boundary:
            self.after_update(args[0])

    def before_trial(self, args: Any, kwargs: Any) -> None:
        self.asleep += 1

    def after_trial(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.asleep -= 1

    def before_clipping(self, args: Any, kwargs: Any) -> None:
        self.clipping += 1
        if self.active and self.clipping == 1:
            given = args[0] if args else kwargs["parameters"]
            chosen = ([given] if isinstance(given, torch.Tensor) else
                      list(given.parameters()) if isinstance(given, nn.Module) else list(given))
            self.note_gradients("gradient", None, chosen, script_line())

    def after_clipping(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.clipping -= 1
        if self.active and not self.clipping:
            self.clipped = True
            if isinstance(result, torch.Tensor) and not isinstance(result, DTensor):
                self.later_entry(Entry("norm", self.step, "", line=script_line()), result.detach().double())

    def after_backward(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.within -= 1

    def before_backward(self, args: Any, kwargs: Any) -> None:
        self.within += 1
        roots = args[0] if args else kwargs["tensors"]
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        if self.active and self.within == 1 and len(roots) == 1 and roots[0].numel() == 1:
            rows = local(roots[0]).detach().double()
            self.later_entry(Entry("loss", self.step, "", line=script_line()), rows)

