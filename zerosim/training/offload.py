"""A file for what a rank offloads: without a name, so that however the run ends nothing is left of it.

The name is gone before the first byte is written, so a killed process leaves nothing either.
"""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import BinaryIO

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.shelf import InMemory, Offloaded, Shelf
from zerosim.errors import OffloadError
from zerosim.training.config import Config


def shelf(config: Config, allocate: Allocator) -> Shelf:
    """Where the row's tape leaves inputs of units that will be run again."""
    parallel = config.row.parallel
    return Offloaded(OffloadFile(parallel.offload_folder), allocate) if parallel.offload_activations else InMemory()


class OffloadFile:
    """A `Store` in a folder, that of `TMPDIR` if none is named; made when it is first used, gone when it is closed.

    A thread reads, so that what is asked for ahead of time comes while others compute. What the operating system keeps
    of a file belongs to no process.

    Raises `OffloadError` where the file cannot be made, written or read.

    >>> file, x = OffloadFile(), np.arange(3.0)
    >>> file.write(0, x)
    >>> back = np.empty(2)
    >>> file.read(8, back)()
    >>> file.close()
    >>> back
    array([1., 2.])
    """

    def __init__(self, folder: str = "") -> None:
        self.folder = folder or tempfile.gettempdir()

    @cached_property
    def _file(self) -> BinaryIO:
        try:
            return tempfile.TemporaryFile(dir=self.folder, prefix="zerosim-", buffering=0)
        except OSError as error:
            raise self._refused("make a file", error) from None

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    def write(self, start: int, array: Array) -> None:
        rest = raw(array)
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, start)
                start, rest = start + written, rest[written:]
        except OSError as error:
            raise self._refused(f"write {len(rest):,} bytes", error) from None

    def read(self, start: int, array: Array) -> Callable[[], object]:
        return self._thread.submit(self._fill, start, raw(array)).result

    def _fill(self, start: int, rest: memoryview) -> None:
        try:
            while rest:
                came = os.preadv(self._file.fileno(), [rest], start)
                if not came:
                    raise OSError("it has ended")
                start, rest = start + came, rest[came:]
        except OSError as error:
            raise self._refused(f"read {len(rest):,} bytes", error) from None

    def _refused(self, what: str, error: OSError) -> OffloadError:
        reason = (error.strerror or str(error)).lower()
        return OffloadError(
            f"cannot {what} for offloaded activations in {self.folder}: {reason}; name another folder in "
            "parallel.offload_folder"
        )

    def open(self) -> None:
        """See whether a file can be made."""
        self._file.flush()

    def close(self) -> None:
        if "_thread" in self.__dict__:
            self._thread.shutdown()
        if "_file" in self.__dict__:
            self._file.close()


def raw(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, not copied."""
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8).data
