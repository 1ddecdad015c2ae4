"""The file of a checkpoint: safetensors, with all that is known of the training in the header's metadata.

    h.0.attn.c_attn.weight                       a weight, in its whole shape
    optimizer.momentum.h.0.attn.c_attn.weight    a slot of the optimizer
    optimizer.losses                             the losses of all steps so far

Format: https://huggingface.co/docs/safetensors, eight bytes of length, a header in JSON, the arrays back to back. The
header has the SHA-256 of all numbers, which is the same for all rows that end alike, and one of what it says itself.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from zerosim.core.allocation import Array
from zerosim.core.bits import little_endian
from zerosim.core.errors import CheckpointError
from zerosim.core.files import contents, regular
from zerosim.core.precisions import PRECISIONS
from zerosim.models.units import ParameterPlace
from zerosim.stages.storage import WEIGHTS

STEP = re.compile(r"step-(\d{8,18})\.safetensors")
OPTIMIZER, LOSSES = "optimizer.", "optimizer.losses"
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""The format's names of dtypes."""
OF_NAMES = {DTYPES[dtype.name]: dtype for policy in PRECISIONS.values() for dtype in (policy.weights, policy.state)}

Heading = tuple[str, np.dtype[Any], Sequence[int]]
"""The name, the dtype and the shape of an array."""


def path_of(folder: Path, step: int) -> Path:
    """
    >>> path_of(Path("kept/zero3"), 10).name
    'step-00000010.safetensors'
    """
    return folder / f"step-{step:08d}.safetensors"


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a row's folder, ascending."""
    matches = [STEP.fullmatch(path.name) for path in contents(folder)] if os.path.isdir(folder) else []
    return sorted(int(match[1]) for match in matches if match)


def named(what: str, parameter: str) -> str:
    """The name of an array in the file."""
    return parameter if what == WEIGHTS else f"{OPTIMIZER}{what}.{parameter}"


def write(path: Path, about: Mapping[str, Any], arrays: Sequence[Heading], contents: Iterable[Array]) -> None:
    """Write flat `contents` to a new file, and rename it to `path`; raises `OSError`."""
    temporary, digest, at = path.with_name(f".{path.name}"), hashlib.sha256(), 0
    header: dict[str, Any] = {}
    for name, dtype, shape in arrays:
        end = at + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype.name], "shape": [*shape], "data_offsets": [at, end]}
        at = end

    words = json.dumps(about)

    def head(sha256: str) -> bytes:
        metadata = {"sha256": sha256, "header_sha256": header_sha256(words, header), "zerosim": words}
        text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(head("0" * 64))
            for array in contents:
                content = little_endian(array)
                digest.update(content)
                file.write(content)
            file.seek(0)
            file.write(head(digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def header_sha256(words: str, header: Mapping[str, Any]) -> str:
    """The SHA-256 of all that a header says of the training and of the arrays."""
    return hashlib.sha256(json.dumps([words, header]).encode()).hexdigest()


Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class SavedSections(TypedDict):
    """The sections that are read from the scenario of a checkpoint."""

    model: dict[str, Any]
    train: dict[str, Any]


class About(TypedDict):
    """What a checkpoint says about its training."""

    scenario: SavedSections
    data_sha256: str
    parts: dict[str, str]
    row: str
    step: Count
    updates: Count
    loss_scale: float
    good_steps: Count
    stage: str
    ranks: Count


@dataclass(frozen=True, eq=False)
class Saved:
    """The checkpoint at `path`, open for reading: what is said `about` its training, and its arrays."""

    path: Path
    about: Mapping[str, Any]
    headings: Sequence[Heading]
    opened: Any

    @property
    def step(self) -> int:
        return int(self.about["step"])

    @property
    def losses(self) -> Array:
        """The losses of all steps so far."""
        return self.array(LOSSES, [self.step])

    def array(self, name: str, shape: Sequence[int]) -> Array:
        """An array. Raises `CheckpointError` if it is missing or has a different shape."""
        stored = {name: shape for name, _, shape in self.headings}.get(name)
        if stored != [*shape]:
            has = "lacks" if stored is None else f"has shape {stored} of"
            raise CheckpointError(
                f"{self.path} {has} {name}, which has shape {[*shape]} here; resume it with its own model")
        array: Array = self.opened.get_tensor(name)
        return array

    def whole(self, what: str, place: ParameterPlace) -> Array:
        """The weights, or a slot of the optimizer, of a parameter of the model in one piece."""
        return self.array(named(what, place.name), place.parameter.whole_shape)


def read(path: Path) -> Saved:
    """The checkpoint at `path`, checked against its digest. Raises `CheckpointError` for any other file."""
    try:
        with regular(path) as file:
            length, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
            header = json.loads(file.read(min(length, size)))
            metadata = header.pop("__metadata__")
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        about = json.loads(metadata["zerosim"])
        if (sha256, header_sha256(metadata["zerosim"], header)) != (metadata["sha256"], metadata["header_sha256"]):
            raise CheckpointError(f"{path} is damaged: its SHA-256 does not match; use another checkpoint")
        msgspec.convert(about, About)
        opened: Any = safe_open(path, "np")
        parts = {name: opened.get_slice(name) for name in header}
        headings = [(name, OF_NAMES[part.get_dtype()], part.get_shape()) for name, part in parts.items()]
        return Saved(path, about | {"sha256": sha256}, headings, opened)
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}; name a checkpoint") from None
    except (AttributeError, ValueError, LookupError, TypeError, RecursionError, SafetensorError) as error:
        what = error if isinstance(error, msgspec.ValidationError) else type(error).__name__
        raise CheckpointError(f"{path} is no checkpoint of zerosim, or its header is damaged ({what}); name a file of "
                              "--checkpoint") from None
