"""Records a script in any parallel layout: projections of weights and gradients, a number for each token of an output.

The check's window watches modules, clipping and updates, and knows the names of parameters. Nothing is sent and nothing
is computed again. Numbers stay on their device until an update, and are then copied at once.
"""

import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from zerosim.torch.check.adapters import deepspeed_gradient
from zerosim.torch.check.names import plainly
from zerosim.torch.check.record import Entry, Frame
from zerosim.torch.check.sketch import blocks, hashed, whole
from zerosim.torch.check.tensors import clipped_parameters, local, parameters_of, script_line, settings_of
from zerosim.torch.check.window import Window
from zerosim.torch.same.starting import move
from zerosim.torch.same.wholes import matrix


@lru_cache(16)
def factors(count: int, device: Any) -> Any:
    """For each position a factor between 0.5 and 1.5 with a random sign, as float64."""
    numbers = hashed(torch.arange(count, device=device))
    return (1.0 - 2.0 * (numbers & 1)) * (0.5 + (numbers >> 11 & (1 << 53) - 1).double() / 2**53)


def projections(values: Any, shape: tuple[int, ...], place: Any) -> tuple[int, Any, Any]:
    """What a part contributes to the two projections of the whole tensor: its first row, those from there, all columns.

    It is a block of the tensor, or a range of its flat elements.
    """
    (rows, width), flat = matrix(shape), len(place) == 1 and len(shape) > 1
    right, left = factors(width, values.device), factors(rows, values.device)
    of_rows, columns = [right.new_zeros(0)], right.new_zeros(width)
    for first, block in blocks(values, (rows * width,) if flat else shape, place, width):
        wide = block.double()
        of_rows.append(wide @ right)
        columns += left[first : first + len(block)] @ wide
    return place[0][0] // (width if flat else 1) if place else 0, torch.cat(of_rows), columns


def per_token(tensor: Any) -> Any | None:
    """A number for each row of the last axis, None for a tensor that is a part of the features, or one of a sum."""
    if isinstance(tensor, DTensor) and any(
            placement.is_partial() or placement.is_shard(tensor.dim() - 1) for placement in tensor.placements):
        return None
    values, width = local(tensor), tensor.shape[-1]
    right = factors(width, values.device)
    return torch.cat([right.new_zeros(0), *(block.double() @ right for _, block in blocks(
        values, values.shape, whole(values.shape), width))])


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
    added = [getattr(placement, "reduce_op", "avg" if placement.is_replicate() else "sum") for placement in placements]
    copies = prod(size for size, how in zip(values.device_mesh.shape, added, strict=True) if how == "avg")
    return True, 0.0 if {*added} - {"sum", "avg"} else 1 / copies


class LayoutRecorder(Window):
    """Frames with the entries of this rank, given to `keep` update by update, for the steps to `last`.

    A step ends where a model is called after an update. `noise` is the dtype by whose rounding the weights of each
    module that is called as a root are moved, before its first forward.
    """

    def __init__(self, keep: Callable[[Frame], None], last: int | None = None, noise: str = "") -> None:
        super().__init__(keep, 1, last)
        self.facts.recorded, self.facts.noise = f"1..{last or ''}", noise
        self.parents: Any = WeakIdKeyDictionary()
        """The modules that have been given each module as a part."""
        self.aliases: dict[str, list[str]] = {}
        self.wholes: dict[str, tuple[tuple[int, ...], list[int]]] = {}
        """The shape and the ranks of each parameter in a flat one of FSDP1."""
        self.known: Any = WeakIdKeyDictionary()
        """The parameters whose initial weights are recorded."""
        self.step, self.roots, self.updating = 1, 0, 0
        self.seen = set[str]()
        """Whether there was an "update", or "clipping", in this step."""
        self.random: Any = None
        self.latest: tuple[Any, int, Any, list[Any]] = (lambda: None), 0, None, []
        """The tensor that a module has returned last, its version and numbers, and the entries of its gradient."""
        self.entries: list[Entry] = []

    @property
    def active(self) -> bool:
        return not self.asleep and (self.last is None or self.step <= self.last)

    def observe(self) -> None:
        self.leaving.callback(register_module_module_registration_hook(self.contain).remove)
        self.watch(torch.autograd, "backward", self.before_backward, None, "within")
        for name in ("_prepare_forward_infra", "_prepare_backward_infra"):  # a forward that only asks for shapes
            self.watch(PipelineStage, name, None, None, "asleep")
        self.watch_clipping(self.before_clipping, self.after_clipping)
        self.watch_updates(self.safe(self.before_update), self.after_update, self.before_update, self.after_update)
        self.watch_modules(self.enter, self.leave)
        self.leaving.callback(self.safely, self.flush)

    def entry(self, kind: str, name: str, rows: Any = None, columns: Any = None, **about: Any) -> None:
        """Keep an entry of this step, with its numbers once they are copied."""
        entry = Entry(kind, self.step, name, **{"line": script_line(), **about})
        self.entries.append(entry)
        for key, numbers in (("rows", rows), ("columns", columns)):
            if numbers is not None:
                self.later(numbers, partial(setattr, entry, key))

    def flush(self) -> None:
        """Copy all numbers, and keep the entries."""
        self.copy()
        self.write(entries=self.entries)
        self.entries = []

    # -- modules

    def contain(self, module: Any, name: str, part: Any) -> None:
        if part is not None:
            self.parents.setdefault(part, []).append(weakref.ref(module))

    def enter(self, module: Any, training: bool) -> None:
        """A module begins: a step, perhaps, or a model that was not known."""
        if self.depth > 1:
            return
        self.random = drawn() if training and self.active else None
        if self.random is None or next(module.parameters(), None) is None:
            return
        if "update" in self.seen:
            self.step, self.seen = self.step + 1, set()
        if self.active and module not in self.names.paths:
            root = module
            while above := [parent for known in self.parents.get(root, ()) if (parent := known()) is not None]:
                root = above[-1]
            self.name(root)
            if self.facts.noise:
                move(root, getattr(torch, self.facts.noise))

    def leave(self, module: Any, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        if not self.active or not training:
            return
        if not self.depth and self.random is not None and self.random != drawn():
            self.entry("random", self.names.paths.get(module, ""))
        if not self.depth and not self.within and next(module.parameters(), None) is not None:
            for key, value in (*enumerate(args), *kwargs.items()):
                self.note_input(str(key), value)
        leaf = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1
                     and leaf.is_floating_point() and not leaf.is_meta), None)
        if leaf is None:
            return
        kind = type(module).__name__
        about = {"name": self.names.paths.get(module, kind), "module": kind, "line": script_line()}
        if self.latest[0]() is not leaf or self.latest[1] != leaf._version:
            gradients = list[Any]()
            self.latest = weakref.ref(leaf), leaf._version, per_token(leaf), gradients
            if leaf.requires_grad:
                leaf.register_hook(self.safe(partial(self.note_tokens, "output gradient", gradients)))
        self.note_tokens("output", [about], leaf, self.latest[2])
        self.latest[3].append(about)

    def note_tokens(self, kind: str, modules: list[Any], values: Any, rows: Any = None) -> None:
        """Note the numbers of an output's tokens, or of its gradient's, for all modules that return this tensor."""
        rows = per_token(values) if rows is None and self.active else rows
        for about in modules if rows is not None and self.active else ():
            self.entry(kind, rows=rows, shape=(local(values).shape[-1],), roundoff=torch.finfo(values.dtype).eps / 2,
                       **about)

    def note_input(self, key: str, value: Any) -> None:
        """Note the tokens that a root is given: integers as they are, features by their projection."""
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                whole = not leaf.is_floating_point() and not leaf.is_complex() and leaf.dtype is not torch.bool
                rows = (local(leaf).reshape(-1).double() if whole and leaf.dim() <= 2 else
                        per_token(leaf) if leaf.is_floating_point() and leaf.dim() > 1 else None)
                if rows is not None:
                    self.entry("input", key, rows, shape=(0 if whole else leaf.shape[-1],))

    def name(self, root: Any) -> None:
        """Name the modules and parameters of a model that is called; further models have a number before the names."""
        prefix = f"{self.roots}." if self.roots else ""
        self.roots += 1
        self.know(root, prefix)
        for flat in self.names.flat.values():
            self.wholes |= {name: (shape, flat.ranks) for name, shape in flat.shapes.items()}
        for name, parameter in root.named_parameters(remove_duplicate=False):
            plain = prefix + plainly(name)
            first = self.names.of.get(parameter, plain)
            if first != plain and plain not in self.aliases.setdefault(first, []):
                self.aliases[first].append(plain)

    # -- parameters

    def pieces(self, parameter: Any, values: Any) -> Iterator[Any]:
        """The named parts of a parameter's values on this rank: name, values, shape, all ranks that hold it, place."""
        if hasattr(parameter, "ds_tensor") and values is parameter:  # ZeRO-3 keeps a range of the flat tensor
            shard, ranks = parameter.ds_tensor.detach().reshape(-1), parameter.ds_process_group
            first, last = (min((ranks.rank() + ahead) * shard.numel(), parameter.ds_numel) for ahead in (0, 1))
            yield (self.names.of.get(parameter, "?"), shard[: last - first], tuple(parameter.ds_shape),
                   dist.get_process_group_ranks(ranks), ((first, last),))
            return
        self.names.of.setdefault(parameter, f"?{len(self.names.of)}")
        group = (values.device_mesh.mesh.flatten().tolist() if isinstance(values, DTensor) else
                 [dist.get_rank() if dist.is_initialized() else 0])
        for name, piece, shape, place in self.names.pieces(parameter, values):
            yield name, piece, *self.wholes.get(name, (tuple(shape), group)), place

    def note_all(self, kind: str, optimizer: Any, parameters: Any) -> None:
        """Note projections of the weights of parameters, or of gradients as an optimizer or what clips sees them."""
        groups, line = getattr(getattr(optimizer, "optimizer", optimizer), "param_groups", ()), script_line()
        settings = {id(parameter): numbers for group in groups for numbers in [settings_of(group)]
                    for parameter in group["params"]}
        for parameter in parameters:
            values = parameter
            if kind in ("gradient", "clipped"):
                values = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
                if values is None and isinstance(optimizer, nn.Module):
                    values = deepspeed_gradient(parameter)
            added, share = share_of(values)
            for name, piece, shape, group, place in self.pieces(parameter, values) if (
                    values is not None and values.layout is torch.strided and share) else ():
                first, rows, columns = projections(piece, shape, place)
                self.entry(kind, name, share * rows, share * columns, line=line, shape=shape, first=first,
                           place=place, group=group, aliases=self.aliases.get(name, []), added=added,
                           roundoff=torch.finfo(piece.dtype).eps / 2, settings=settings.get(id(parameter), {}))

    def before_update(self, optimizer: Any, *_: Any) -> None:
        self.updating += not self.asleep
        if self.updating > 1 or not self.active:
            return
        own = parameters_of(optimizer)
        new = [parameter for parameter in dict.fromkeys([*own, *self.names.of])
               if parameter not in self.known and parameter not in self.names.lent]
        self.known.update(dict.fromkeys(new, True))
        self.note_all("weight", None, new)
        self.note_all("clipped" if "clipping" in self.seen else "gradient", optimizer, own)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        self.updating -= not self.asleep
        if self.updating or not self.active:
            return
        self.note_all("updated", None, parameters_of(optimizer))
        norm = optimizer.get_global_grad_norm() if hasattr(optimizer, "get_global_grad_norm") else None
        if norm is not None and optimizer.gradient_clipping():
            self.entry("norm", "", torch.tensor([float(norm)]))
        self.seen.add("update")
        self.facts.updates[0] = self.step
        self.flush()

    def before_clipping(self, _: Any, args: Any, kwargs: Any) -> None:
        if self.active and not self.clipping:
            self.note_all("gradient", None, clipped_parameters(args, kwargs))

    def after_clipping(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self.active and not self.clipping:
            self.seen.add("clipping")
            if isinstance(result, torch.Tensor) and not isinstance(result, DTensor):
                self.entry("norm", "", result.detach().double().reshape(1))

    def before_backward(self, args: Any, kwargs: Any) -> None:
        roots = args[0] if args else kwargs["tensors"]
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        if self.active and not self.within and len(roots) == 1 and roots[0].numel() == 1:
            self.entry("loss", "", local(roots[0]).detach().double().reshape(1))
