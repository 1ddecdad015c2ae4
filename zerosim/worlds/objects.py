"""Python objects between the ranks of any world, pickled: for outcomes and scenarios, not tensors.

Each object is sent as two messages, its length and then its bytes. All ranks must call these functions in the same
order, as with any collective.
"""

import pickle
from typing import Any

import numpy as np

from zerosim.core.comm import Communicator


def broadcast_object(comm: Communicator, value: Any) -> Any:
    """The `value` of rank 0, on every rank; the values of the others are ignored.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: broadcast_object(comm, {"rank": comm.rank}), ranks=2)
    [{'rank': 0}, {'rank': 0}]
    """
    if comm.rank:
        return _receive_object(comm, source=0)
    for rank in range(1, comm.size):
        _send_object(comm, value, to=rank)
    return value


def gather_objects(comm: Communicator, value: Any) -> list[Any] | None:
    """Every rank's `value` in rank order on rank 0, None elsewhere.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: gather_objects(comm, str(comm.rank)), ranks=3)
    [['0', '1', '2'], None, None]
    """
    if comm.rank:
        _send_object(comm, value, to=0)
        return None
    return [value, *(_receive_object(comm, source=rank) for rank in range(1, comm.size))]


def _send_object(comm: Communicator, value: Any, *, to: int) -> None:
    pickled = np.frombuffer(pickle.dumps(value), np.uint8)
    comm.send(np.array([pickled.size]), to=to)
    comm.send(pickled, to=to)


def _receive_object(comm: Communicator, *, source: int) -> Any:
    length = np.empty(1, np.int64)
    comm.recv(into=length, source=source)
    pickled = np.empty(int(length[0]), np.uint8)
    comm.recv(into=pickled, source=source)
    return pickle.loads(pickled.tobytes())
