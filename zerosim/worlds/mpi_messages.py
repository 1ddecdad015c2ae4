"""The form of an MPI message: raw bytes under a tag that encodes their dtype."""

import zlib
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from zerosim.errors import CollectiveError
from zerosim.worlds.delivery import refuse_mask

if TYPE_CHECKING:
    from mpi4py import MPI

CLOSE_NOTIFY = 0x7FFF
"""The tag of the last message between two ranks; the largest that every MPI library has."""
UNUSED = CLOSE_NOTIFY - 1
"""A tag that no message has."""
NOTHING = np.empty(0, np.uint8)
TAGGED = CLOSE_NOTIFY + 1
"""MPI's tag of messages with tag 0. Tags given by a program do not encode the dtype."""


@cache
def dtype_tag(dtype: np.dtype[Any]) -> int:
    """The tag of messages of this dtype, the same in every process; two dtypes nearly never share one."""
    return zlib.crc32(spelled(dtype).encode()) % UNUSED


def tag_of(tag: int, comm: "MPI.Intracomm") -> int:
    """MPI's tag of messages that a program sends in `comm` under `tag`; raises `CollectiveError` if MPI has none."""
    from mpi4py import MPI  # noqa: PLC0415 - a communicator exists, so it is loaded

    most = int(comm.Get_attr(MPI.TAG_UB) or TAGGED) - TAGGED
    if not 0 <= tag <= most:
        raise CollectiveError(f"tag={tag}: tags are whole numbers from 0 to {most:,} with this MPI library")
    return TAGGED + tag


def tag_for(dtype: np.dtype[Any], tag: int) -> int:
    """MPI's tag of a message: `tag` if a program gave it one, else the tag of its dtype."""
    return tag if tag >= TAGGED else dtype_tag(dtype)


def spelled(dtype: np.dtype[Any]) -> str:
    """
    >>> spelled(np.dtype("f4")), spelled(np.dtype([("re", "f4"), ("im", "f4")]))
    ('float32', '8 bytes: re float32 at 0, im float32 at 4')
    """
    if dtype.fields is None:
        return str(dtype)
    fields = (f"{name} {spelled(of)} at {offset}" for name, (of, offset, *_) in dtype.fields.items())
    return f"{dtype.itemsize} bytes: {', '.join(fields)}"


def check_timeout(seconds: Any) -> None:
    """Refuse anything but a positive finite number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise CollectiveError(f"timeout_seconds={seconds!r}: a positive finite number of seconds")


def check_array(array: object, role: str) -> None:
    """Refuse an object without raw bytes to send or to receive into."""
    if type(array) is np.ndarray and not array.dtype.hasobject:
        return
    if not isinstance(array, np.ndarray):
        raise CollectiveError(
            f"{role} is of type {type(array).__name__}; under MPI a message is a NumPy array"
        )
    refuse_mask(array, role)
    if array.dtype.hasobject:
        raise CollectiveError(
            f"{role} has dtype {array.dtype}; under MPI a message is of fixed-size elements, Python objects travel in "
            "the local world only"
        )
