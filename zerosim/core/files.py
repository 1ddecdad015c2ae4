"""Files: what is written is there as a whole or not at all.

The path holds the old file or the new one at any time. An output path is tested before anything runs, by creating a
file in the same folder. Devices are written to directly; pipes, which may have no reader, are refused. A failed read
or write raises `OSError`, whose `strerror` gives the reason.
"""

import errno
import os
import secrets
import select
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

from zerosim.core.errors import UsageError, ZerosimError

Name = str | os.PathLike[str]

PIPE_SECONDS = 10.0
"""The seconds that a read waits for the other end of a pipe."""


def contents(folder: Path) -> list[Path]:
    """The paths in a folder, by name; raises `UsageError` if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: {reason(error)}; name a path that this user can read") from None


def reason(error: OSError | ValueError) -> str:
    """The reason why a read or a write failed, in lower case.

    >>> reason(OSError(2, "No such file or directory"))
    'no such file or directory'
    """
    return (getattr(error, "strerror", None) or str(error)).lower()


def regular(path: Name, *kinds: Callable[[int], bool]) -> BufferedReader:
    """A file to read, or what else is of `kinds`; raises `OSError` for a pipe or a device, which may never end."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    mode = os.fstat(file.fileno()).st_mode
    if not any(kind(mode) for kind in (stat.S_ISREG, *kinds)):
        file.close()
        raise OSError(errno.EINVAL, f"it is a {'pipe' if stat.S_ISFIFO(mode) else 'device'}, not a file")
    return file


def content(path: Name) -> bytes:
    """The bytes of a file, or of a pipe, of which each piece must come within `PIPE_SECONDS`."""
    pieces = list[bytes]()
    with regular(path, stat.S_ISFIFO) as file:
        while select.select([file], [], [], PIPE_SECONDS)[0]:
            if not (piece := os.read(file.fileno(), 1 << 20)):
                return b"".join(pieces)
            pieces.append(piece)
    raise OSError(errno.ETIMEDOUT, f"nobody has written to this pipe for {PIPE_SECONDS:g} s")


def check_replaceable(path: Name) -> None:
    """Refuse a path that `replace` could not write, by creating a file in the same folder."""
    if not os.path.basename(path) or os.path.isdir(path):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    place = os.path.realpath(path)
    mode = mode_of(place)
    if mode is not None and not os.access(place, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if mode is None or stat.S_ISREG(mode):
        temporary = temporary_for(place)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        os.unlink(temporary)


def mode_of(place: str) -> int | None:
    """The mode of what is written to, None if nothing is there; raises `OSError` for a pipe and a name too long."""
    try:
        mode = os.stat(place).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a pipe, which may have no reader")
    return mode


def temporary_for(place: str) -> str:
    """A new hidden name in the folder of `place`, short even if the name in `place` is long."""
    return os.path.join(os.path.dirname(place), f".zerosim-{os.getpid()}-{secrets.token_hex(4)}.part")


def replace(path: Name, pieces: Iterable[bytes]) -> None:
    """Write `pieces` to the file at `path` atomically: the path holds the old file or the whole new one.

    The new file is written in the same folder, flushed to disk, and renamed. A link stays a link, and a file keeps its
    permissions. A device is written to directly.
    """
    place = os.path.realpath(path)
    mode = mode_of(place)
    if mode is not None and not stat.S_ISREG(mode):
        with open(place, "wb") as stream:
            stream.writelines(pieces)
        return
    temporary = temporary_for(place)
    try:
        with open(temporary, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_text(path: str, text: str) -> None:
    """Write `text` in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: str, content: bytes) -> None:
    """Write `content` to the file at `path`, as `replace` does; raises `ZerosimError` when that fails."""
    try:
        replace(path, [content])
    except OSError as error:
        raise ZerosimError(f"cannot write {path}: {error.strerror}") from error
