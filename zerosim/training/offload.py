"""A nameless file for offloaded activations, so that nothing remains of it however the run ends.

The name is removed before the first byte is written, so a killed process leaves no file either.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from zerosim.allocation import Allocator, Array
from zerosim.autograd.shelf import InMemory, Offloaded, Shelf
from zerosim.training.config import Config
from zerosim.training.tiers import NamelessFile


def shelf(config: Config, allocate: Allocator) -> Shelf:
    """The place where the row's tape keeps the inputs of recomputed units."""
    parallel = config.row.parallel
    return Offloaded(OffloadFile(parallel.offload_folder), allocate) if parallel.offload_activations else InMemory()


class OffloadFile(NamelessFile):
    """A `Store` in a folder, by default that of `TMPDIR`; made at first use, removed when closed.

    A thread reads, so that prefetched arrays arrive during other computation. The file's pages in the system's cache
    belong to no process.

    Raises `OffloadError` if the file cannot be made, written or read.

    >>> file, x = OffloadFile(), np.arange(3.0)
    >>> file.write(0, x)
    >>> back = np.empty(2)
    >>> file.read(8, back)()
    >>> file.close()
    >>> back
    array([1., 2.])
    """

    holds = "activations"

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    def write(self, start: int, array: Array) -> None:
        rest = raw(array)
        try:
            while rest:
                written = os.pwrite(self.file.fileno(), rest, start)
                start, rest = start + written, rest[written:]
        except OSError as error:
            raise self.refused(f"write {len(rest):,} bytes", error) from None

    def read(self, start: int, array: Array) -> Callable[[], object]:
        return self._thread.submit(self._fill, start, raw(array)).result

    def _fill(self, start: int, rest: memoryview) -> None:
        try:
            while rest:
                came = os.preadv(self.file.fileno(), [rest], start)
                if not came:
                    raise OSError("it has ended")
                start, rest = start + came, rest[came:]
        except OSError as error:
            raise self.refused(f"read {len(rest):,} bytes", error) from None

    def close(self) -> None:
        if "_thread" in self.__dict__:
            self._thread.shutdown()
        super().close()


def raw(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    assert array.flags.c_contiguous
    return array.reshape(-1).view(np.uint8).data
