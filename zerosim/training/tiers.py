"""Memory tiers beside the device's: shared pages of the host, a file without a name, and the queue to both.

    device    private memory of the process, from NumPy, which `world.memory_limit_mb` limits (`RLIMIT_DATA`)
    host      anonymous shared pages, which the system counts separately (`RssShmem`)
    disk      a mapped file whose name is removed before its first byte, so a killed process leaves no file

- States in a file are arrays over its mapping, so every reader of states can read them. The queue copies piece by piece
  and then releases the pages (`MADV_DONTNEED`), so no process keeps them; the system writes them at a time of its
  choice.
- Plain reads and writes would need staging arrays in every reader: comparison, digests, checkpoints, faults.
- Space is reserved when an array is allocated (`posix_fallocate`). A full disk is then an error; in a mapping without
  space a write would kill the process.
- Space in a file is not reused. States are allocated once per row, and staging arrays are on the host.
"""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, ClassVar

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Allocator, Array, Kind, Tier
from zerosim.autograd.shelf import InMemory, Offloaded, Partitioned, Shelf
from zerosim.autograd.tape_collectives import Direction, TapeGroups
from zerosim.errors import OffloadError
from zerosim.instruments.observed import callbacks
from zerosim.stages.storage import FarMemory
from zerosim.training.config import Config

PIECE_BYTES = 1 << 20
"""Elements to copy before pages are released."""
SEGMENT_BYTES = 1 << 24
"""The least size of a mapped segment of the file, because each mapping takes a file descriptor."""


def on_host(shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Array:
    """An array in anonymous shared pages, which are freed with it.

    >>> on_host(3, np.float32, kind="optimizer", owner="layers.0").nbytes
    12
    """
    found = np.dtype(dtype)
    wanted = int(np.prod(shape)) * found.itemsize
    if not wanted:
        return np.empty(shape, dtype)
    try:
        pages = mmap.mmap(-1, wanted)
    except OSError as error:
        raise MemoryError(str(error)) from None
    return np.frombuffer(pages, found).reshape(shape)


@dataclass(frozen=True)
class MappedStretch:
    """A mapped segment of a file; `begin` is its offset."""

    begin: int
    pages: mmap.mmap

    @cached_property
    def _address(self) -> int:
        return address(np.frombuffer(self.pages, np.uint8))

    def pages_of(self, array: Array) -> tuple[int, int]:
        """The offset of an array's pages in the segment and their bytes; 0 bytes if the array is elsewhere."""
        first = address(array) - self._address
        if not 0 <= first < len(self.pages):
            return 0, 0
        begin = first // mmap.PAGESIZE * mmap.PAGESIZE
        return begin, min(whole_pages(first + array.nbytes), len(self.pages)) - begin


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class NamelessFile:
    """A file in `folder`, or in the system's folder for temporary files, made at first use."""

    holds: ClassVar[str]
    """The contents, for error messages."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder

    @cached_property
    def folder(self) -> str:
        """The folder of the file; the system's is looked for at first use, since a container may have none."""
        try:
            return self._folder or tempfile.gettempdir()
        except OSError as error:
            self.folder = "the folder for temporary files"
            raise self.refused("find a folder", error) from None

    @cached_property
    def file(self) -> BinaryIO:
        """The file."""
        try:
            return tempfile.TemporaryFile(dir=self.folder, prefix="zerosim-", buffering=0)
        except OSError as error:
            raise self.refused("make a file", error) from None

    def refused(self, what: str, error: OSError) -> OffloadError:
        """The error: the failed action, its reason, and the fix."""
        reason = (error.strerror or str(error)).lower()
        return OffloadError(
            f"cannot {what} for offloaded {self.holds} in {self.folder}: {reason}; name another folder in "
            "parallel.offload_folder"
        )

    def open(self) -> None:
        """Make the file, if that has not happened."""
        self.file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if "file" in self.__dict__:
            self.file.close()


class MappedFile(NamelessFile):
    """Arrays in one nameless file in a folder, by default that of `TMPDIR`; the file is made at first use.

    Raises `OffloadError` if the file cannot be made or has no space.

    >>> file = MappedFile()
    >>> state = file.allocate(3, np.float32, kind="optimizer", owner="layers.0")
    >>> state[:] = 1
    >>> file.give_back(state)
    >>> state
    array([1., 1., 1.], dtype=float32)
    >>> file.close()
    """

    holds = "states"

    def __init__(self, folder: str = "") -> None:
        super().__init__(folder)
        self._segments: list[MappedStretch] = []
        self._end = self._mapped = 0

    def allocate(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Array:
        found = np.dtype(dtype)
        wanted = int(np.prod(shape)) * found.itemsize
        if not wanted:
            return np.empty(shape, dtype)
        if not self._segments or self._end + wanted > self._mapped:
            self._map(max(whole_pages(wanted), SEGMENT_BYTES))
        start, segment = self._end, self._segments[-1]
        try:
            os.posix_fallocate(self.file.fileno(), start, wanted)
        except OSError as error:
            raise self.refused(f"have {wanted:,} bytes", error) from None
        self._end = start + whole_pages(wanted)
        return np.frombuffer(segment.pages, np.uint8, wanted, start - segment.begin).view(found).reshape(shape)

    def _map(self, length: int) -> None:
        begin = self._mapped
        try:
            os.ftruncate(self.file.fileno(), begin + length)
            self._segments.append(MappedStretch(begin, mmap.mmap(self.file.fileno(), length, offset=begin)))
        except OSError as error:
            raise self.refused(f"map {length:,} bytes", error) from None
        self._end, self._mapped = begin, begin + length

    def give_back(self, array: Array | None = None) -> None:
        """Release the memory pages of an array in the file; without an array, those of all."""
        for segment in self._segments:
            first, length = (0, len(segment.pages)) if array is None else segment.pages_of(array)
            if length:
                segment.pages.madvise(mmap.MADV_DONTNEED, first, length)


def whole_pages(count: int) -> int:
    """Bytes, rounded up to whole pages."""
    return -(-count // mmap.PAGESIZE) * mmap.PAGESIZE


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


class CopyThread:
    """A queue that copies arrays on a thread, in order, and reports each copy to instruments.

    Pages of `file` are released after their copy; pages that others have read are released at the end of a step.
    """

    def __init__(self, file: MappedFile, instruments: Sequence[object] = ()) -> None:
        self._file = file
        self._moving, self._moved = callbacks(instruments, "moving"), callbacks(instruments, "moved")
        self._under_way: deque[Future[None]] = deque()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    def begin(self, what: str, owner: str, into: Array, source: Array) -> "Future[None]":
        return self._submitted(self._copy, what, owner, into, source)

    def call(self, what: str, owner: str, work: Callable[[], None]) -> "Future[None]":
        return self._submitted(self._work, what, owner, work)

    def _submitted(self, function: Callable[..., None], *about: Any) -> "Future[None]":
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()
        moving = self._thread.submit(function, *about)
        self._under_way.append(moving)
        return moving

    @contextmanager
    def _reported(self, what: str, owner: str, moved_bytes: int = 0) -> Iterator[None]:
        for tell in self._moving:
            tell(what, owner)
        yield
        for tell in self._moved:
            tell(what, owner, moved_bytes)

    def _work(self, what: str, owner: str, work: Callable[[], None]) -> None:
        with self._reported(what, owner), np.errstate(all="ignore"):
            work()

    def _copy(self, what: str, owner: str, into: Array, source: Array) -> None:
        with self._reported(what, owner, source.nbytes):
            for start in range(0, len(source), PIECE_BYTES):
                piece = slice(start, start + PIECE_BYTES)
                into[piece] = source[piece]
                self._file.give_back(source[piece])
                self._file.give_back(into[piece])

    def wait(self, owner: str, moving: "Future[None]") -> None:
        with self._reported("wait", owner):
            moving.result()

    def settle(self) -> None:
        while self._under_way:
            self.wait("", self._under_way.popleft())
        self._file.give_back()

    def close(self) -> None:
        if "_thread" in self.__dict__:
            self._thread.shutdown()
        self._file.close()


def far_memory(
    folder: str = "", observed: Callable[[Tier, Allocator], Allocator] = lambda tier, allocate: allocate,
    instruments: Sequence[object] = (),
) -> FarMemory:
    """The memory tiers of a rank beside the device's; `observed` wraps the allocator of each, for accounting."""
    file = MappedFile(folder)
    rooms: dict[Tier, Allocator] = {"host": observed("host", on_host), "disk": observed("disk", file.allocate)}
    return FarMemory(rooms, CopyThread(file, instruments))


def shelf(config: Config, allocate: Allocator, groups: TapeGroups) -> Shelf:
    """The place where the row's tape keeps the inputs of recomputed units."""
    parallel = config.row.parallel
    offloaded = parallel.offload_activations
    kept = Offloaded(OffloadFile(parallel.offload_folder), allocate) if offloaded else InMemory()
    if not parallel.partition_activations:
        return kept
    return Partitioned(kept, groups.get("tensor", Direction("tensor")), allocate)
