"""A saved state in any other layout: other ranks and directions, another stage, other units of the same layers.

An element is identified by its parameter and its place in the whole of it. Layouts and cuts determine where it lies. A
rank reads the elements of its own layouts, and only the blocks of a file that contain them. `write_full` writes all
weights as one safetensors file for other programs: whole parameters, under their usual names.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zerosim.allocation import Array
from zerosim.checkpoint.manifest import Manifest
from zerosim.checkpoint.shards import BLOCK_BYTES, DTYPES, ShardReader, head_of
from zerosim.errors import CheckpointError, ZerosimError
from zerosim.files import replace
from zerosim.models.parameters import ORIGIN, Coordinates
from zerosim.models.units import Unit
from zerosim.numerics.digests import little_endian
from zerosim.numerics.precisions import PRECISIONS
from zerosim.sharding import Layout
from zerosim.training.comparison import WEIGHTS


class SavedStretch(NamedTuple):
    """Elements `start` … `stop` − 1 of a place's piece of a parameter, from `at` on in an array of a rank's file."""

    rank: int
    array: str
    at: int
    start: int
    stop: int


class Resharded:
    """The checkpoint in `folder`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._parameters = {each.name: each for unit in manifest.units for each in unit.parameters}
        self._readers: dict[int, ShardReader] = {}

    @cached_property
    def _stretches(self) -> dict[tuple[str, str, int], list[SavedStretch]]:
        """The stretches of each parameter's piece, by its name, the kind of state, and the place among
        those that have its layer."""
        found: dict[tuple[str, str, int], list[SavedStretch]] = {}
        for rank, shard in enumerate(self.manifest.shards):
            place = self.manifest.directions.place(rank) % self.manifest.directions.side_by_side
            for array, piece in shard.pieces.items():
                at = 0
                for each, start, stop in self.manifest.held(rank, piece):
                    stretch = SavedStretch(rank, array, at, start, stop)
                    found.setdefault((each.name, piece.what, place), []).append(stretch)
                    at += stop - start
        return found

    def fill(self, unit: Unit, what: str, layout: Layout, out: Array, coordinates: Coordinates = ORIGIN) -> None:
        """Fill `out` with the elements of `what` of a place's `unit` that lie in `layout`; padding is zero."""
        out[:] = 0
        for each in unit.places:
            saved = self._parameters.get(each.name)
            if saved is None or saved.whole_shape != each.parameter.whole_shape:
                found = "lacks" if saved is None else f"has shape {list(saved.whole_shape)} of"
                raise CheckpointError(f"{self.folder} {found} {each.name}, which has shape "
                                      f"{list(each.parameter.whole_shape)} here; resume it with its own model")
            low, high = max(each.start, layout.start), min(each.stop, layout.stop)
            for start, length in each.parameter.in_whole(low - each.start, high - each.start, coordinates):
                self.copy(each.name, what, start, out[low - layout.start :][:length])
                low += length

    def fill_losses(self, name: str, out: Array) -> None:
        """Fill `out` with the array of that name, which is in the file of rank 0."""
        stored = self.manifest.shards[0].file.arrays.get(name)
        if stored is None or stored.length != len(out):
            raise self._lacks(name)
        self._reader(0).read(name, 0, out)

    def copy(self, parameter: str, what: str, start: int, out: Array) -> None:
        """Copy the elements of a whole parameter from `start` on, from the files of all ranks that have some."""
        cut, copied = self._parameters[parameter].cut, 0
        stride = 0 if cut is None else self.manifest.directions.stride(cut.direction.name)
        for number, first, length in self._parameters[parameter].in_pieces(start, start + len(out)):
            for each in self._stretches.get((parameter, what, number * stride), ()):
                low, high = max(first, each.start), min(first + length, each.stop)
                if low < high:
                    into = out[low - first :][: high - low]
                    self._reader(each.rank).read(each.array, each.at + low - each.start, into)
                    copied += high - low
            out = out[length:]
            copied -= length
        if copied:
            raise self._lacks(f"{what} of {parameter}")

    def _reader(self, rank: int) -> ShardReader:
        if rank not in self._readers:
            self._readers[rank] = ShardReader(self.folder, self.manifest.shards[rank].file)
        return self._readers[rank]

    def _lacks(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.folder} is damaged: it lacks elements of {what}; use another checkpoint")


OF_PRECISIONS = {DTYPES[each.weights.name]: each.weights for each in PRECISIONS.values()}


def write_full(folder: Path, manifest: Manifest, path: Path) -> None:
    """Write the weights of the checkpoint in `folder` to `path` atomically, block by block."""
    try:
        replace(path, blocks_of_weights(folder, manifest))
    except OSError as error:
        raise ZerosimError(f"cannot write {path}: {error.strerror or error}") from None


def blocks_of_weights(folder: Path, manifest: Manifest) -> Iterator[bytes]:
    """A header, then each parameter in model order."""
    saved, kind = Resharded(folder, manifest), dtype_of(manifest, folder)
    parameters = [each for unit in manifest.units for each in unit.parameters]    # in the order of first layers
    block = np.empty(BLOCK_BYTES // kind.itemsize, kind)
    yield head_of((each.name, kind, each.whole_shape) for each in parameters)
    for each in parameters:
        count = math.prod(each.whole_shape)
        for start in range(0, count, len(block)):
            out = block[: count - start]
            saved.copy(each.name, WEIGHTS, start, out)
            yield little_endian(out).tobytes()


def dtype_of(manifest: Manifest, folder: Path) -> np.dtype[np.generic]:
    """The common dtype of all weights."""
    found = {
        shard.file.arrays[name].dtype
        for shard in manifest.shards for name, piece in shard.pieces.items() if piece.what == WEIGHTS
    }
    if len(found) != 1 or not found <= OF_PRECISIONS.keys():
        raise CheckpointError(f"{folder} is damaged: its weights are of dtypes {', '.join(sorted(found)) or 'none'}")
    return OF_PRECISIONS[found.pop()]
