"""Arrays of an .npz, each checked before it is read: sizes in the directory and in headers must agree and are bounded.

An .npz is a zip archive of .npy files. Format:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.

Only stored and deflated members are read, as `np.savez` and `np.savez_compressed` write them. Other methods may need a
dictionary of gigabytes to unpack a kilobyte. Nothing is unpickled.
"""

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from typing import IO

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault

MOST_BYTES = 1 << 30
"""The most bytes of the archive, and of all arrays read from it, uncompressed."""
MOST_DIRECTORY_BYTES = 1 << 20
"""The most bytes of the archive's directory, which is read at once: enough for a few thousand names."""
END, END_BYTES = b"PK\5\6", 22
END_64 = b"PK\6\7"
LONGEST_COMMENT = 1 << 16
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
"""The methods of np.savez and np.savez_compressed; others may need gigabytes to be unpacked."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
BROKEN = (
    ValueError, EOFError, RuntimeError, MemoryError, LookupError, TypeError, SyntaxError, OverflowError, OSError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)


def read_arrays(stream: IO[bytes], fault: DataFault) -> dict[str, Array]:
    """The arrays x, y, x_test and y_test of an .npz, by name.

    Raises `fault`'s error if `stream`, a regular file, is no .npz, is damaged, or declares more than `MOST_BYTES`; at
    most twice that is allocated.
    """
    size = os.fstat(stream.fileno()).st_size
    if size > MOST_BYTES:
        raise fault(f"this file has {size:,} bytes; an .npz may have {MOST_BYTES:,}, so use fewer samples")
    if not has_small_directory(stream, size):
        raise fault("this is not an .npz file; np.savez(path, x=x, y=y) writes one")
    try:
        with zipfile.ZipFile(stream) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            chosen = {name: archive.getinfo(members[name]) for name in required(list(members), fault)}
            expanded = sum(member.file_size for member in chosen.values())
            if expanded > MOST_BYTES:
                raise fault(f"its arrays have {expanded:,} bytes; they may have {MOST_BYTES:,}, so use fewer samples")
            return {name: member_array(archive, name, member, fault) for name, member in chosen.items()}
    except BROKEN as error:
        said = " ".join(str(error).split())[:200]
        words = f"this .npz cannot be read: {said}; np.savez(path, x=x, y=y) with numeric arrays writes one"
        raise fault(words) from None


def required(names: Sequence[str], fault: DataFault) -> list[str]:
    for name in ("x", "y"):
        if name not in names:
            raise fault(f"there is no array {name}, found {', '.join(names) or 'none'}")
    test = [name for name in ("x_test", "y_test") if name in names]
    if len(test) == 1:
        raise fault(f"give both x_test and y_test or neither, found {test[0]} alone")
    return ["x", "y", *test]


def has_small_directory(stream: IO[bytes], size: int) -> bool:
    """Whether the file ends as a zip archive of less than 4 GiB with a directory that is small enough to read."""
    stream.seek(max(size - END_BYTES - LONGEST_COMMENT, 0))
    tail = stream.read()
    at = len(tail) - END_BYTES
    if tail[at : at + 4] != END or tail[-2:] != b"\0\0":
        at = tail.rfind(END)
    if at < 0 or len(tail) - at < END_BYTES or END_64 in tail[max(at - 20, 0) : at]:
        return False
    stream.seek(0)
    return int.from_bytes(tail[at + 12 : at + 16], "little") <= MOST_DIRECTORY_BYTES


def member_array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo, fault: DataFault) -> Array:
    """One array of the archive, with the shape and dtype of its header, which is checked before it is read.

    A damaged member raises one of `BROKEN`, or `fault`'s error.
    """
    if member.compress_type not in METHODS:
        raise fault(f"{name} is compressed by method {member.compress_type}; np.savez_compressed writes a supported "
                    f"one")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise fault(f"{name} is an array of version {version}; np.savez writes a supported one")
        shape, _, dtype = HEADERS[version](file)
        if any(type(length) is not int or length < 0 for length in shape):
            raise fault(f"{name} has shape {shape}, which is not a valid shape")
        due = file.tell() + math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and due != member.file_size:
        raise fault(f"{name} should have {due:,} bytes by its header, and has {member.file_size:,}")
    with archive.open(member) as file:
        found: Array = np.lib.format.read_array(file, allow_pickle=False)
        file.read()
    return found
