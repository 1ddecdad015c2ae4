"""Connects PyTorch's ranks to the ranks of the MPI world."""

import os
import socket
import sys
from collections.abc import Callable
from typing import Any, TextIO

from zerosim.errors import LaunchError
from zerosim.instruments.observed import Observed
from zerosim.torch.group import Group
from zerosim.torch.watching import WATCH
from zerosim.torch.works import Mail, Turns
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.objects import broadcast_object, gather_objects

LONGER = "timeout in init_process_group(timeout=timedelta(minutes=30))"
"""The setting that gives a slow rank more time, in PyTorch's words."""
SET_HERE = "ZEROSIM_SET_RANK"
"""The variable with the rank and the size that this package has set in the environment; a child process inherits it."""


def set_environment() -> None:
    """Set the variables of torchrun, unless they are set: this rank, the number of ranks, and the address of their
    store.

    Variables that a parent process has set in this way are set again: the launcher may have started a child as another
    rank.
    """
    comm = connect()
    host = socket.gethostname()
    hosts = broadcast_object(comm, gather_objects(comm, host))
    same = [rank for rank, each in enumerate(hosts) if each == host]
    address = "127.0.0.1" if len(same) == comm.size else hosts[0]
    port = broadcast_object(comm, free_port() if comm.rank == 0 else 0)
    inherited = os.environ.get(SET_HERE) == rank_of_size(os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))
    for name, value in {
        "RANK": comm.rank, "WORLD_SIZE": comm.size, "LOCAL_RANK": same.index(comm.rank), "LOCAL_WORLD_SIZE": len(same),
        "MASTER_ADDR": address, "MASTER_PORT": port, SET_HERE: rank_of_size(comm.rank, comm.size),
    }.items():
        if inherited or name not in os.environ:
            os.environ[name] = str(value)
    if os.environ["WORLD_SIZE"] != str(comm.size) or os.environ["RANK"] != str(comm.rank):
        raise LaunchError(
            f"the environment has RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']}, and the "
            f"launcher started rank {comm.rank} of {comm.size}: unset both, or start the ranks with mpirun -n")


def rank_of_size(rank: object, size: object) -> str:
    return f"{rank} of {size}"


def free_port() -> int:
    """A free port of this host."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def create(options: Any, _: Any = None) -> Group:
    """The group that PyTorch requests: first of all ranks, later of some. Only its ranks call this."""
    comm = connect()
    ranks = list(options.global_ranks_in_group) or list(range(comm.size))
    seconds = options.timeout.total_seconds()
    if not options.global_ranks_in_group:
        check_world(options, comm)
        comm.timeout_seconds = seconds
        sys.excepthook = aloud(sys.excepthook, sys.stderr)
    collectives, messages = (comm.channel(seconds, ranks) for _ in range(2))
    for channel in (comm, collectives, messages):
        channel.longer = LONGER
    turns = Turns(options.group_id, seconds, lambda: collectives.came_ns)
    return Group(options.group_id, ranks, observed(collectives), Mail(messages, ranks, observed), turns)


def observed(channel: MpiCommunicator) -> Observed:
    """A channel with all its observers, above the injected faults of its messages."""
    faulty = channel if WATCH.faults is None else WATCH.faults.around(channel)
    return Observed(faulty, *WATCH.instruments)


def check_world(options: Any, comm: MpiCommunicator) -> None:
    """Refuse a rank or a size that differs from the launcher's."""
    if (options.group_rank, options.group_size) != (comm.rank, comm.size):
        raise LaunchError(
            f"init_process_group has rank {options.group_rank} of {options.group_size}, and the launcher started this "
            f"process as rank {comm.rank} of {comm.size}: leave both out, or use mpirun -n {options.group_size}")


Hook = Callable[..., Any]


def aloud(hook: Hook, stderr: TextIO) -> Hook:
    """`hook` with `stderr` as its standard error, called with the exception that PyTorch's C++ code has wrapped.

    PyTorch redirects the output of hooks to memory and prints it when they have returned; ours ends the process.
    """
    def speaking(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        sys.stderr = stderr
        cause = wrapped_by(error)
        hook(type(cause), cause, cause.__traceback__)

    return speaking


def wrapped_by(error: BaseException) -> BaseException:
    """The exception of an asynchronous collective that C++ code has made a `RuntimeError` of; else `error` itself."""
    cause = WATCH.failure
    return cause if cause is not None and type(error) is RuntimeError and str(cause) in str(error) else error
