"""Initial weights from a safetensors file: its header is checked on opening, and arrays are read one at a time."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError
from zerosim.scenario.data.dataset import data_file


@dataclass(frozen=True, eq=False)
class WeightsFile:
    """A file at `path`, open for reading, with `dtypes` (in the format's own names) and `shapes` by name."""

    path: Path
    dtypes: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    opened: Any

    def read(self, name: str) -> Array:
        """The array with that name, in its shape and dtype."""
        tensor: Array = self.opened.get_tensor(name)
        return tensor

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the whole file."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def weights_file(source: str, folder: Path) -> WeightsFile:
    """The weights file at path `source`, relative to `folder`. Raises `UsageError` for any other file."""
    with data_file(folder, source, "the path of a safetensors file"):
        path = folder / source
    try:
        opened: Any = safe_open(path, "np")
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it has no iterator
        return WeightsFile(
            path, {name: part.get_dtype() for name, part in slices.items()},
            {name: tuple(part.get_shape()) for name, part in slices.items()}, opened,
        )
    except (SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"this is not a safetensors file: {' '.join(str(error).split())[:200]}") from None
