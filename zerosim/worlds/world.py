"""The interface of a world: ranks, and the transport of messages between them.

A world runs a program on every rank, opens a second channel, allocates its memory from a given allocator, and describes
itself. `run` returns the results of the ranks in this process: all of them in the local world, one under MPI. Only the
command that chooses a world has a branch for it; a new one is one file. `tests/conformance.py` tests all alike.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

from zerosim.core.allocation import Allocator
from zerosim.core.comm import Communicator
from zerosim.core.errors import CollectiveError
from zerosim.core.words import plural

Result = TypeVar("Result")


class World(Protocol):
    """The ranks, seen from one process: all of them in the local world, one of them under MPI.

    If a program on a rank opens a channel or gives an allocator, the programs of all ranks must do so.
    """

    @property
    def kind(self) -> str:
        """The world's name in outcomes, in one word."""

    @property
    def ranks(self) -> int:
        """The number of ranks, in all processes."""

    @property
    def library(self) -> str:
        """The name of the library that carries the messages."""

    @property
    def words(self) -> str:
        """The ranks and where they are, as a phrase."""

    @property
    def rank_is_process(self) -> bool:
        """Whether each rank has a process of its own, so that limits and measurements of the process are its own, and
        messages need memory of the world's own, which `take_buffers_from` sets."""

    @property
    def hosts(self) -> Sequence[int]:
        """The number of each rank's host."""

    @property
    def shared_cores(self) -> int:
        """The number of cores that the ranks of this host share, if there are more ranks than cores; else 0."""

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        """Run `program(comm)` on every rank; the results of the ranks of this process, in their order."""

    def channel(self) -> Communicator | None:
        """A second channel to the same ranks, for the messages of another thread; None if the world has none."""

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let all memory for later messages come from `allocate`, in all channels."""

    def kill(self, comm: Communicator) -> NoReturn:
        """End this rank at once, without a message to others; `comm` is its program's communicator."""

    def stop(self, comm: Communicator) -> None:
        """Freeze this rank; `comm` is its program's communicator."""


def left_early(exit_: SystemExit, rank: int, ranks: int) -> CollectiveError:
    """The error for a rank's program that has ended without a result."""
    return CollectiveError(
        f"rank {rank} of {ranks} called sys.exit({exit_.code!r}); end a rank's program by returning")


def world_document(world: World) -> dict[str, Any]:
    """The figures of a world that documents have; `shared_cores` only if there are any."""
    return {key: value for key in ("kind", "ranks", "library", "shared_cores") if (value := getattr(world, key))}


def sharing(ranks: int, shared_cores: int) -> str:
    """A warning about times if ranks share cores, as `World.shared_cores` tells; else nothing.

    >>> sharing(4, 2), sharing(4, 0)
    ('4 ranks share 2 cores, so times include waiting for a core.', '')
    """
    cores = plural(shared_cores, "core")
    return f"{plural(ranks, 'rank')} share {cores}, so times include waiting for a core." if shared_cores else ""
