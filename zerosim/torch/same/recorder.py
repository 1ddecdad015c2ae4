"""Records a script in any parallel layout: projections of weights and gradients, a number for each token of an output.

The check's window watches modules, clipping and updates, and knows the names of parameters. Nothing is sent and nothing
is computed again. Numbers stay on their device until an update, and are then copied at once.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
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
from zerosim.torch.check.sketch import PIECES, hashed
from zerosim.torch.check.tensors import clipped_parameters, local, parameters_of, script_line
from zerosim.torch.check.window import Window
from zerosim.torch.same.record import is_range, matrix, span

Piece = tuple[str, Any, tuple[int, ...], Any, list[int]]
"""The name of a parameter, this rank's values of it, the whole shape, the place of the values, and all its ranks."""


@lru_cache(16)
def factors(count: int, device: Any) -> Any:
    """For each position a factor between 0.5 and 1.5 with a random sign, as float64."""
    numbers = hashed(torch.arange(count, device=device))
    return (1.0 - 2.0 * (numbers & 1)) * (0.5 + (numbers >> 11 & (1 << 53) - 1).double() / 2**53)


def products(values: Any, right: Any, left: Any) -> tuple[Any, Any]:
    """A matrix times a vector, and a vector, if there is one, times the matrix, in float64, some rows at a time."""
    most = max(1, PIECES.get(values.device.type, 1 << 24) // max(1, values.shape[1]))
    rows, columns = [right.new_zeros(0)], right.new_zeros(values.shape[1])
    for piece, factor in zip(values.split(most), values.new_zeros(len(values)).split(most) if left is None else
                             left.split(most), strict=True):
        wide = piece.double()
        rows.append(wide @ right)
        if left is not None:
            columns += factor @ wide
    return torch.cat(rows), columns


def projections(values: Any, shape: tuple[int, ...], place: Any) -> tuple[Any, Any]:
    """What a part contributes to the two projections of the whole tensor, in its rows and in its columns."""
    first, last, columns = span(shape, place)
    values, (rows, width) = values.detach().reshape(-1), matrix(shape)
    if is_range(shape, place):
        (start, end), = place
        values = nn.functional.pad(values, (start - first * width, last * width - end))
    right = factors(width, values.device)
    right = right if len(columns) == width else right[torch.from_numpy(columns).to(right.device)]
    return products(values.reshape(last - first, len(columns)), right, factors(rows, values.device)[first:last])


def per_token(tensor: Any) -> Any | None:
    """A number for each row of the last axis, None for a tensor that is a part of the features, or one of a sum."""
    if isinstance(tensor, DTensor) and any(
            placement.is_partial() or placement.is_shard(tensor.dim() - 1) for placement in tensor.placements):
        return None
    values = local(tensor).detach()
    values = values.reshape(-1, values.shape[-1])
    return products(values, factors(values.shape[1], values.device), None)[0]


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


class LayoutRecorder(Window):
    """Frames with the entries of this rank, given to `keep` update by update, for the steps to `last`.

    A step ends where a model is called after an update. `prepare` is called with each module that is called as a root,
    before its first forward.
    """

    def __init__(self, keep: Callable[[Frame], None], last: int | None = None,
                 prepare: Callable[[Any], None] = lambda root: None, noise: str = "") -> None:
        super().__init__(keep, 1, last)
        self.prepare = prepare
        self.facts.recorded, self.facts.noise = f"1..{last or ''}", noise
        self.parents: Any = WeakIdKeyDictionary()
        """The modules that have been given each module as a part."""
        self.aliases: dict[str, list[str]] = {}
        self.wholes: dict[str, tuple[tuple[int, ...], list[int]]] = {}
        """The shape and the ranks of each parameter in a flat one of FSDP1."""
        self.known: Any = WeakIdKeyDictionary()
        """The parameters whose initial weights are recorded."""
        self.step, self.roots, self.updating = 1, 0, 0
        self.stepped = self.clipped = False
        """Whether there was an update, or clipping, in this step."""
        self.random: Any = None
        self.latest: tuple[Any, int, Any, list[Entry]] = (lambda: None), 0, None, []
        """The tensor that a module has returned last, its version and numbers, and the entries of its gradient."""
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
        for name in ("_prepare_forward_infra", "_prepare_backward_infra"):  # a forward that only asks for shapes
            self.watch(PipelineStage, name, self.before_trial, self.after_trial)
        self.watch_clipping(self.before_clipping, self.after_clipping)
        self.watch_updates(self.safe(self.before_update), self.after_update)
        self.watch_modules(self.enter, self.leave)
        try:
            yield self
        finally:
            self.safely(self.flush)
            self.leaving.close()
            self.forget()

    def later_entry(self, entry: Entry, rows: Any, columns: Any = None) -> None:
        """Keep an entry once its numbers are copied."""
        self.entries.append(entry)
        self.later(rows, lambda values: vars(entry).update(rows=values.reshape(-1)))
        if columns is not None:
            self.later(columns, lambda values: vars(entry).update(columns=values))

    def flush(self) -> None:
        """Copy all numbers, and keep the entries."""
        self.copy()
        self.identify()
        self.keep(Frame(self.facts, entries=self.entries))
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
        if self.stepped:
            self.step, self.stepped, self.clipped, self.calls = self.step + 1, False, False, {}
        if self.active and module not in self.names.paths:
            root = module
            while above := [parent for known in self.parents.get(root, ()) if (parent := known()) is not None]:
                root = above[-1]
            self.know(root)
            self.prepare(root)

    def leave(self, module: Any, args: Any, kwargs: Any, output: Any, training: bool) -> None:
        if not self.active or not training:
            return
        if not self.depth and self.random is not None and self.random != drawn():
            self.entries.append(Entry("random", self.step, self.names.paths.get(module, ""), line=script_line()))
        if not self.depth and not self.within and next(module.parameters(), None) is not None:
            for key, value in (*enumerate(args), *kwargs.items()):
                self.note_input(str(key), value)
        leaf = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1
                     and leaf.is_floating_point() and not leaf.is_meta), None)
        if leaf is None:
            return
        name = self.names.paths.get(module, type(module).__name__)
        self.calls[name] = self.calls.get(name, 0) + 1
        about = self.step, name, type(module).__name__, self.calls[name], script_line()
        if self.latest[0]() is not leaf or self.latest[1] != leaf._version:
            gradients = list[Entry]()
            self.latest = weakref.ref(leaf), leaf._version, per_token(leaf), gradients
            if leaf.requires_grad:
                leaf.register_hook(self.safe(lambda values: self.note_tokens(gradients, values, per_token(values))))
        self.note_tokens([Entry("output", *about)], leaf, self.latest[2])
        self.latest[3].append(Entry("output gradient", *about))

    def note_tokens(self, entries: list[Entry], values: Any, rows: Any) -> None:
        """Note the numbers of an output's tokens or of its gradient's, of all modules that return this tensor."""
        for entry in entries if rows is not None and self.active else ():
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
        prefix = f"{self.roots}." if self.roots else ""
        self.roots += 1
        for module in self.names.know(root, prefix):
            if type(module).__name__ == "DeepSpeedEngine":
                self.watch_engine(type(module), self.before_update, self.after_update)
        for flat in self.names.flat.values():
            self.wholes |= {name: (shape, flat.ranks) for name, shape in flat.shapes.items()}
        for name, parameter in root.named_parameters(remove_duplicate=False):
            plain = prefix + plainly(name)
            first = self.names.of.get(parameter, plain)
            if first != plain and plain not in self.aliases.setdefault(first, []):
                self.aliases[first].append(plain)

    # -- parameters

    def pieces(self, parameter: Any, values: Any) -> Iterator[Piece]:
        """The named parts of a parameter's values on this rank."""
        if hasattr(parameter, "ds_tensor") and values is parameter:  # ZeRO-3 keeps a range of the flat tensor
            shape, shard = tuple(parameter.ds_shape), parameter.ds_tensor.detach().reshape(-1)
            first = parameter.ds_process_group.rank() * shard.numel()
            last = min(first + shard.numel(), parameter.ds_numel)
            yield (self.names.of.get(parameter, "?"), shard[: max(0, last - first)], shape, ((min(first, last), last),),
                   dist.get_process_group_ranks(parameter.ds_process_group))
            return
        group = (values.device_mesh.mesh.flatten().tolist() if isinstance(values, DTensor) else
                 [dist.get_rank() if dist.is_initialized() else 0])
        for name, piece, size, place in self.names.pieces(parameter, values):
            shape, ranks = self.wholes.get(name, (tuple(size), group))
            yield name, piece, shape, place, ranks

    def note(self, kind: str, parameter: Any, values: Any, unnamed: str, line: str,
             settings: dict[str, float] | None = None) -> None:
        """Note the projections of a parameter's weights or gradient."""
        added, share = share_of(values)
        if not share:
            return
        for name, piece, shape, place, group in self.pieces(parameter, values):
            entry = Entry(kind, self.step, unnamed if name == "?" else name, "", 0, line, shape, place, group,
                          self.aliases.get(name, []), torch.finfo(piece.dtype).eps / 2, added, settings or {})
            self.later_entry(entry, *(share * numbers for numbers in projections(piece, shape, place)))

    def note_all(self, kind: str, optimizer: Any, parameters: Any, line: str) -> None:
        """Note the gradients of parameters as an optimizer sees them, or a function that clips."""
        groups = getattr(getattr(optimizer, "optimizer", optimizer), "param_groups", ())
        settings = {id(parameter): numbers for group in groups for numbers in [numbers_of(group)]
                    for parameter in group["params"]}
        for number, parameter in enumerate(parameters):
            gradient = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
            if gradient is None and isinstance(optimizer, nn.Module):
                gradient = deepspeed_gradient(parameter)
            if gradient is not None and gradient.layout is torch.strided:
                self.note(kind, parameter, gradient, f"?{number}", line, settings.get(id(parameter)))

    def before_update(self, optimizer: Any, *_: Any) -> None:
        if self.asleep:
            return
        self.updating += 1
        if self.updating > 1 or not self.active:
            return
        line, own = script_line(), parameters_of(optimizer)
        for number, parameter in enumerate([*own, *self.names.of]):
            if parameter not in self.known and parameter not in self.names.lent:
                self.known[parameter] = True
                self.note("weight", parameter, parameter, f"?{number}", line)
        self.note_all("clipped" if self.clipped else "gradient", optimizer, own, line)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        if self.asleep:
            return
        self.updating -= 1
        if self.updating or not self.active:
            return
        line = script_line()
        for number, parameter in enumerate(parameters_of(optimizer)):
            self.note("updated", parameter, parameter, f"?{number}", line)
        self.stepped = True
        self.facts.updates[0] = self.step
        self.flush()

    def before_trial(self, args: Any, kwargs: Any) -> None:
        self.asleep += 1

    def after_trial(self, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.asleep -= 1

    def before_clipping(self, _: Any, args: Any, kwargs: Any) -> None:
        self.clipping += 1
        if self.active and self.clipping == 1:
            self.note_all("gradient", None, clipped_parameters(args, kwargs), script_line())

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


def numbers_of(group: dict[str, Any]) -> dict[str, float]:
    """The settings of an optimizer's group that are numbers; of a pair such as betas there are two."""
    return {name + str(at) * (len(values) > 1): float(value) for name, values in (
        (name, value if isinstance(value, tuple | list) else [value]) for name, value in group.items()
        if name != "params" and not name.startswith("initial"))
        for at, value in enumerate(values) if isinstance(value, int | float) and not isinstance(value, bool)}
