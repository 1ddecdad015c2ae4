"""One rank's file of a checkpoint: safetensors, flat arrays by name, with a digest of every block.

    block    a run of elements of at most BLOCK_BYTES: the unit of reading and of verification

It is written from the arrays themselves, without a copy, and read by slices, so that memory is bounded by a block.
Format: https://huggingface.co/docs/safetensors, eight bytes of length, a header in JSON, the arrays back to back.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from zerosim.allocation import Array
from zerosim.errors import CheckpointError
from zerosim.files import is_file
from zerosim.numerics.digests import little_endian

BLOCK_BYTES = 1 << 20
MOST_HEADER_BYTES = 1 << 24
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The format's names of dtypes."""
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class Stored:
    """The record of an array in a manifest: its elements, and the SHA-256 of each of its blocks, in hexadecimal."""

    dtype: str
    length: int
    blocks: tuple[str, ...]

    @property
    def block_length(self) -> int:
        """The number of elements of every block but the last."""
        return BLOCK_BYTES // ITEM_BYTES[self.dtype]

    @property
    def block_count(self) -> int:
        """The number of blocks."""
        return -(-self.length // self.block_length)


@dataclass(frozen=True)
class StoredFile:
    """The record of a file in a manifest; `header_sha256` covers all bytes before the arrays."""

    name: str
    file_bytes: int
    header_sha256: str
    arrays: Mapping[str, Stored]


def write(path: Path, arrays: Mapping[str, Array]) -> StoredFile:
    """Write flat arrays to `path`, and digest them during the write; raises `OSError` if that fails."""
    ordered = sorted(arrays.items(), key=lambda each: -each[1].itemsize)  # stable: arrays are then aligned
    head = head_of((name, array.dtype, [len(array)]) for name, array in ordered)
    with open(path, "xb") as file, ThreadPoolExecutor(1) as beside:
        file.write(head)
        for _, array in ordered:
            file.write(little_endian(array))
        file.flush()
        flushed = beside.submit(os.fsync, file.fileno())
        described = {name: stored_as(array) for name, array in ordered}
        flushed.result()
    file_bytes = len(head) + sum(array.nbytes for array in arrays.values())
    return StoredFile(path.name, file_bytes, hashlib.sha256(head).hexdigest(), described)


def head_of(arrays: Iterable[tuple[str, np.dtype[Any], Sequence[int]]]) -> bytes:
    """The beginning of a file with these arrays, back to back: name, dtype and shape of each."""
    header, at = {}, 0
    for name, dtype, shape in arrays:
        end = at + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype.name], "shape": [*shape], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def stored_as(array: Array) -> Stored:
    """The record of an array for a manifest."""
    digests = tuple(hashlib.sha256(little_endian(block)).hexdigest() for block in blocks(array))
    return Stored(DTYPES[array.dtype.name], len(array), digests)


def blocks(array: Array) -> Iterator[Array]:
    """The blocks of an array, each of which has a digest."""
    length = BLOCK_BYTES // array.itemsize
    for start in range(0, len(array), length):
        yield array[start : start + length]


class ShardReader:
    """Reads slices of one file and checks each block against its digest. Raises `CheckpointError` if anything differs.
    """

    def __init__(self, folder: Path, file: StoredFile) -> None:
        self.path, self.file = folder / file.name, file
        self._last: tuple[tuple[str, int], Array] | None = None
        """The block that was read last: runs of a cut parameter are short, and many lie in one block."""
        self._check_head()
        try:
            self._opened: Any = safe_open(self.path, "np")
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(f"it is not a safetensors file: {' '.join(str(error).split())}") from None

    def _check_head(self) -> None:
        try:
            size = self.path.stat().st_size
            if not is_file(self.path):
                raise self._damaged("it is not a regular file")
            if size != self.file.file_bytes:
                raise self._damaged(f"it has {size:,} bytes, and the manifest says {self.file.file_bytes:,}")
            with open(self.path, "rb") as file:
                length = file.read(8)
                header_bytes = int.from_bytes(length, "little")
                if header_bytes > min(size, MOST_HEADER_BYTES):
                    raise self._damaged(f"its header would have {header_bytes:,} bytes")
                head = length + file.read(header_bytes)
        except (OSError, ValueError) as error:
            raise self._damaged((getattr(error, "strerror", None) or str(error)).lower()) from None
        if hashlib.sha256(head).hexdigest() != self.file.header_sha256:
            raise self._damaged("its header was changed")

    def read(self, name: str, start: int, out: Array) -> None:
        """Fill `out` with the elements of array `name` from `start` on."""
        for first, values in self._blocks(name, start, start + len(out), out.dtype):
            low, high = max(first, start), min(first + len(values), start + len(out))
            out[low - start : high - start] = values[low - first : high - first]

    def verify(self) -> None:
        """Read all arrays and check them against their digests."""
        for name, stored in self.file.arrays.items():
            for _ in self._blocks(name, 0, stored.length, None):
                pass

    def _blocks(
        self, name: str, start: int, stop: int, dtype: np.dtype[np.generic] | None
    ) -> Iterator[tuple[int, Array]]:
        stored = self.file.arrays[name]
        try:
            found = self._opened.get_slice(name)
            shape, kind = found.get_shape(), found.get_dtype()
        except SafetensorError:
            raise self._damaged(f"it has no array {name!r}") from None
        if shape != [stored.length] or kind != stored.dtype or (dtype is not None and DTYPES[dtype.name] != kind):
            raise self._damaged(f"its array {name!r} is {kind} {shape}, not {stored.dtype} [{stored.length}]")
        length = stored.block_length
        for number in range(start // length, -(-stop // length)):
            if self._last is not None and self._last[0] == (name, number):
                yield number * length, self._last[1]
                continue
            values = found[number * length : min((number + 1) * length, stored.length)]
            if hashlib.sha256(little_endian(values)).hexdigest() != stored.blocks[number]:
                last = min((number + 1) * length, stored.length) - 1
                raise self._damaged(f"elements {number * length} to {last} of {name!r} were changed after they were "
                                    f"written")
            self._last = (name, number), values
            yield number * length, values

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {what}; use another checkpoint")
