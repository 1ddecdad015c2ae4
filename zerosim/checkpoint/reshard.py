"""A saved state in any other layout: other ranks, another stage, other units of the same layers.

Layouts alone determine where an element lies. A rank reads the elements that its own layouts name, and only the blocks
of a file that contain them.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from zerosim.allocation import Array
from zerosim.checkpoint.manifest import Manifest
from zerosim.checkpoint.shards import ShardReader
from zerosim.errors import CheckpointError
from zerosim.models.units import Unit
from zerosim.sharding import Layout


class Resharded:
    """The checkpoint in `folder`; `units` are those of the saved model, for access by layers."""

    def __init__(self, folder: Path, manifest: Manifest, units: Sequence[Unit] = ()) -> None:
        self.folder, self.manifest, self.units = folder, manifest, units
        self._readers: dict[int, ShardReader] = {}

    @cached_property
    def _pieces(self) -> dict[tuple[int, str], list[tuple[int, str, Layout]]]:
        """The rank, the array's name and its layout, by a unit's number and the kind of state."""
        found: dict[tuple[int, str], list[tuple[int, str, Layout]]] = {}
        for rank, shard in enumerate(self.manifest.shards):
            for name, piece in shard.pieces.items():
                found.setdefault((piece.unit, piece.what), []).append((rank, name, piece.layout))
        return found

    def fill(self, unit: Unit, what: str, layout: Layout, out: Array) -> None:
        """Fill `out` with the elements of `what` of `unit` that lie in `layout`; padding is zero."""
        out[:] = 0
        for layer in unit.numbers:
            start, stop = unit.bounds(layer)
            number, saved = next((n, each) for n, each in enumerate(self.units) if layer in each.numbers)
            low, high = max(start, layout.start), min(stop, layout.start + layout.length)
            if low < high:
                shift = saved.bounds(layer)[0] - start
                self.copy(number, what, low + shift, out[low - layout.start : high - layout.start])

    def fill_losses(self, name: str, out: Array) -> None:
        """Fill `out` with the array of that name, which is in the file of rank 0."""
        stored = self.manifest.shards[0].file.arrays.get(name)
        if stored is None or stored.length != len(out):
            raise self._lacks(name)
        self._reader(0).read(name, 0, out)

    def copy(self, number: int, what: str, start: int, out: Array) -> None:
        """Copy the elements of a saved unit from `start` on, from the files of all ranks that have some."""
        copied = 0
        for rank, name, layout in self._pieces.get((number, what), ()):
            low, high = max(start, layout.start), min(start + len(out), layout.start + layout.length, layout.count)
            if low < high:
                self._reader(rank).read(name, low - layout.start, out[low - start : high - start])
                copied += high - low
        if copied != len(out):
            raise self._lacks(f"{what} of {self.manifest.units[number].name}")

    def _reader(self, rank: int) -> ShardReader:
        if rank not in self._readers:
            self._readers[rank] = ShardReader(self.folder, self.manifest.shards[rank].file)
        return self._readers[rank]

    def _lacks(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.folder} is damaged: it lacks elements of {what}; use another checkpoint")
