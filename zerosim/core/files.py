"""Safe files: input must be regular and within bounds; output is written to a new file and renamed into place.

    a scenario and its overrides        250,000 bytes, 8 parts a key, 8 levels of brackets, 1,000 variants or programs
    a text to train on                  64 MiB
    header of a safetensors file        16 MiB: reading takes up to 30 times as much
    manifest of a checkpoint            32 MiB; shards are read by blocks of 1 MiB
    an outcome, for `report`            64 MiB
    a Python file to prove or grade     1 MiB

A file is opened without waiting and must be regular. A scenario or an outcome may also arrive through a pipe, whose
writer has 10 s. A failed read or write raises `OSError`, whose `strerror` gives the reason.

Writing is atomic: the path holds the old file or the new one at any time. An output path is tested before anything
runs, by creating a file in the same folder. The inputs of a run (scenario, data, weights, a learner's file, an outcome,
anything in a checkpoint) are never overwritten. Pipes and devices are written to directly.
"""

import errno
import io
import os
import secrets
import select
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from zerosim.core.errors import UsageError, ZerosimError

Name = str | os.PathLike[str]

PIPE_SECONDS = 10.0
"""The longest wait for the writer or the reader of a pipe."""

LONGEST_SHOWN = 255
"""The most characters of a path in an error: those of the longest file name."""


def mode_of(path: Name) -> int:
    """The mode of the file or folder at `path`, as `os.stat` gives it; 0 if there is none.

    Raises `UsageError` if the system does not tell, as in a folder that this user may not search.

    >>> stat.S_ISDIR(mode_of("/")), mode_of("/no/such/file")
    (True, 0)
    >>> mode_of("x" * 300)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    zerosim.core.errors.UsageError: xxx...: file name too long; name a path that this user can read
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name with a NUL byte
        return 0
    except OSError as error:
        raise unreadable(path, error) from None


def is_folder(path: Name) -> bool:
    """Whether `path` is a folder; raises `UsageError` as `mode_of` does."""
    return stat.S_ISDIR(mode_of(path))


def is_file(path: Name) -> bool:
    """Whether `path` is a regular file; raises `UsageError` as `mode_of` does."""
    return stat.S_ISREG(mode_of(path))


def contents(folder: Path) -> list[Path]:
    """The paths in a folder, by name; raises `UsageError` if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None


def unreadable(path: Name, error: OSError) -> UsageError | OSError:
    """The error of a path that this user may not read, in one line; that of a system without memory or files stays."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO):
        return error
    name = os.fspath(path)
    shown = name if len(name) <= LONGEST_SHOWN else f"{name[:40]}…"
    return UsageError(f"{shown}: {reason(error)}; name a path that this user can read")


@contextmanager
def open_regular(path: Name) -> Iterator[BinaryIO]:
    """The regular file at `path`, open for reading; a pipe, a device or a socket is refused at once."""
    with open(path, "rb", opener=at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise irregular()
        yield file


def at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def irregular() -> OSError:
    return OSError(errno.EINVAL, "this is not a regular file")


def read_at_most(path: Name, most_bytes: int) -> bytes:
    """The contents of the file or pipe at `path`, at most `most_bytes` + 1 bytes; the extra byte shows that it is too
    long.

    The writer of a pipe has `PIPE_SECONDS`.
    """
    descriptor = at_once(os.fspath(path), os.O_RDONLY | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            raise refused(errno.EISDIR)
        if not stat.S_ISREG(kind) and not stat.S_ISFIFO(kind):
            raise irregular()
        found, deadline = io.BytesIO(), time.monotonic() + PIPE_SECONDS
        while found.tell() <= most_bytes:
            if stat.S_ISFIFO(kind):
                await_bytes(descriptor, deadline)
            piece = file.read(most_bytes + 1 - found.tell())
            if not piece:
                break
            found.write(piece)
        return found.getvalue()


def await_bytes(descriptor: int, deadline: float) -> None:
    """Wait until a pipe has bytes, or its writers have closed it."""
    left_ms = max(deadline - time.monotonic(), 0) * 1000
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if not waiting.poll(left_ms):
        raise TimeoutError(errno.ETIMEDOUT, f"nobody wrote all of it to this pipe within {PIPE_SECONDS:g} s")


def check_replaceable(path: Name) -> None:
    """Refuse a path that `replace` could not write, by creating a file in the same folder."""
    if not os.path.basename(path) or os.path.isdir(path):
        raise refused(errno.EISDIR)
    place = os.path.realpath(path)
    try:
        kind = os.stat(place).st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    else:
        if not os.access(place, os.W_OK):
            raise refused(errno.EACCES)
    if stat.S_ISREG(kind):
        beside = beside_of(place)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, 1)  # a full disk has room for empty files
        finally:
            os.close(descriptor)
            os.unlink(beside)


def reason(error: OSError | ValueError) -> str:
    """The reason why a read or a write failed, in lower case.

    >>> reason(OSError(2, "No such file or directory"))
    'no such file or directory'
    """
    return (getattr(error, "strerror", None) or str(error)).lower()


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def beside_of(place: str) -> str:
    """A new hidden name in the folder of `place`, short even if the name in `place` is long."""
    return os.path.join(os.path.dirname(place), f".zerosim-{os.getpid()}-{secrets.token_hex(4)}.part")


def replace(path: Name, pieces: Iterable[bytes]) -> None:
    """Write `pieces` to the file at `path` atomically: the path holds the old file or the whole new one.

    The new file is written in the same folder, flushed to disk, and renamed. A link stays a link, and a file keeps its
    permissions. A pipe or a device is written to directly.
    """
    place = os.path.realpath(path)
    mode = os.stat(place).st_mode if os.path.exists(place) else None
    if mode is not None and not stat.S_ISREG(mode):
        with open(opened_for_writing(place), "wb") as stream:
            stream.writelines(pieces)
        return
    beside = beside_of(place)
    try:
        with open(beside, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def opened_for_writing(place: str) -> int:
    """A descriptor of a pipe or a device; a pipe is opened when a reader has opened it."""
    deadline = time.monotonic() + PIPE_SECONDS
    while True:
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(os.stat(place).st_mode):
                raise
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"nobody read this pipe within {PIPE_SECONDS:g} s") from None
            time.sleep(0.02)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def write_text(path: str, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: str, content: bytes) -> None:
    """Write `content` to the file at `path`, as `replace` does; raises `ZerosimError` when that fails."""
    try:
        replace(path, [content])
    except OSError as error:
        raise ZerosimError(f"cannot write {path}: {error.strerror}") from error
