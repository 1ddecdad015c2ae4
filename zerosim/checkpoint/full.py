"""The weights of a checkpoint as one safetensors file for other programs: whole parameters, under their usual names."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from zerosim.checkpoint.manifest import Manifest
from zerosim.checkpoint.reshard import Resharded
from zerosim.checkpoint.shards import BLOCK_BYTES, DTYPES, head_of
from zerosim.errors import CheckpointError, ZerosimError
from zerosim.files import replace
from zerosim.numerics.digests import little_endian
from zerosim.numerics.precisions import PRECISIONS
from zerosim.training.comparison import WEIGHTS

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
