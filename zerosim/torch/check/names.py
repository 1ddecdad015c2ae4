"""The names of parameters, and the named pieces of a tensor that has the values of one: a shard, or a flat parameter.

Names come from modules that are called, and from copies of modules: copies that average weights are seldom called.
"""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from zerosim.torch.check.adapters import flat_pieces, gathered_parameters
from zerosim.torch.check.record import KEPT
from zerosim.torch.check.tensors import local, place_of

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module", "_checkpoint_wrapped_module")


def plainly(path: str) -> str:
    """A path of modules without wrappers."""
    return ".".join(name for name in path.split(".") if name not in WRAPPERS)


class Names:
    """What is known of each parameter; nothing here keeps a tensor or a module alive."""

    def __init__(self) -> None:
        self.of: Any = WeakIdKeyDictionary()
        """The name of each parameter, also of those that FSDP2 has gathered."""
        self.lent: Any = WeakIdKeyDictionary()
        """The gathered parameters among them, whose memory is there in forward and backward only."""
        self.flat: Any = WeakIdKeyDictionary()
        """The pieces of FSDP1's flat parameters."""
        self.parts: Any = WeakIdKeyDictionary()
        """The place of each parameter that is a view of a flat one."""
        self.paths: Any = WeakIdKeyDictionary()
        """The path of each module."""
        self.copied: list[weakref.ref[nn.Module]] = []
        """Modules made by copying others, or wrapped by a trainer, which may never be called."""

    def know(self, root: Any, prefix: str = "") -> list[Any]:
        """Name the modules and parameters of a model that is called, after a prefix; the modules that are new."""
        new = [(path, module) for path, module in root.named_modules() if module not in self.paths]
        for path, module in new:
            self.paths[module] = f"{prefix}{plainly(path)}".rstrip(".")
            for flat, pieces, parts in flat_pieces(module, self.paths):
                self.flat[flat] = pieces
                self.parts.update(parts)
        self.note_lent(root.modules())
        for name, parameter in root.named_parameters():
            self.name(self.lent.get(parameter, parameter), prefix + plainly(name))
        self.note_lent(root.modules())
        return [module for _, module in new]

    def name(self, parameter: Any, plain: str) -> None:
        if parameter not in self.of:
            taken = set(self.of.values())
            while plain in taken:
                plain += "'"
            self.of[parameter] = plain

    def note_copies(self, held: set[int]) -> None:
        """Name the parameters of copies that were not called, and shards that a script keeps, other than `held`."""
        sharded = {tuple(known.shape): name for known, name in self.of.items() if isinstance(known, DTensor)}
        for kept in gc.get_objects() if sharded else ():
            if type(kept) is DTensor and kept not in self.of and tuple(kept.shape) in sharded and id(kept) not in held:
                self.name(kept, KEPT + sharded[tuple(kept.shape)])
        alive = [module for copy in self.copied if (module := copy()) is not None and module not in self.paths]
        within = {id(child) for module in alive for child in module.children()}
        for module in alive:
            if id(module) not in within:
                self.know(module)
        self.copied = []

    def note_lent(self, modules: Any) -> None:
        """Give FSDP2's gathered parameters the names of those that the optimizer has."""
        for sharded, full in gathered_parameters(modules):
            self.lent[full] = sharded
            if sharded in self.of:
                self.of[full] = self.of[sharded]

    def pieces(self, parameter: Any, values: Any) -> Iterator[tuple[str, Any, Any, Any]]:
        """The named parts of a parameter's values on this rank, with shape and place; a flat parameter has several."""
        if parameter in self.flat:
            yield from self.flat[parameter](local(values))
        elif parameter in self.parts:
            name, shape, key = self.parts[parameter]
            yield name, values, shape, key
        elif local(values).untyped_storage().size() or not local(values).numel():  # gathered weights may be freed
            yield self.of.get(parameter, "?"), local(values), tuple(values.shape), place_of(values)

    def within(self, parameter: Any) -> list[str]:
        """The names of a parameter, or of all that a flat one contains."""
        if parameter in self.flat:
            return list(self.flat[parameter].names)
        return [self.parts[parameter][0] if parameter in self.parts else self.of.get(parameter, "?")]
