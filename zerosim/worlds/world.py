"""The interface of a world: ranks, and what carries messages between them.

A world runs a program on every rank, opens a second channel, takes its memory from where it is told to, and says what
it is. `run` returns what the ranks of this process returned: all of them in the local world, one under MPI. So no
command asks which world it is in order to run something, and a new world is one file. `tests/conformance.py` asks the
same of each.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NoReturn, Protocol, TypeVar

from zerosim.allocation import Allocator
from zerosim.comm import Communicator

Result = TypeVar("Result")
Transport = Literal["shared", "mpi"]
"""What carries messages between processes of a host: memory that they share, or MPI."""


class World(Protocol):
    """Ranks, seen from one process: the local world's has all of them, under MPI each has one.

    A program on a rank may ask for a channel or give an allocator; then the programs of all ranks do so.
    """

    @property
    def kind(self) -> str:
        """The world's name in outcomes, in one word."""

    @property
    def ranks(self) -> int:
        """The number of ranks, in all processes."""

    @property
    def library(self) -> str:
        """The name of what carries the messages."""

    @property
    def words(self) -> str:
        """The ranks and where they are, as a phrase."""

    @property
    def rank_is_process(self) -> bool:
        """Whether each rank has a process to itself, so that what is limited or measured there is the rank's own."""

    @property
    def copies_messages(self) -> bool:
        """Whether messages need memory of the world's own, which comes from where `take_buffers_from` says."""

    @property
    def hosts(self) -> Sequence[int]:
        """The number of each rank's host."""

    @property
    def transport(self) -> str:
        """What carries messages within a host, in a sentence; empty where that goes without saying."""

    @property
    def shared_cores(self) -> int:
        """The number of cores that the ranks of this host share, where they are more than cores; else 0."""

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        """Run `program(comm)` on every rank; what it returned on the ranks of this process, in their order."""

    def channel(self) -> Communicator | None:
        """A second channel to the same ranks, in which another thread's messages travel; None where there is none."""

    def take_buffers_from(self, allocate: Allocator) -> None:
        """Let memory for messages come from `allocate`, in all channels: all of it from here on."""

    def kill(self, comm: Communicator) -> NoReturn:
        """End this rank, on which `comm` is what its program was given: at once, and it tells nobody."""

    def stop(self, comm: Communicator) -> None:
        """Freeze this rank, on which `comm` is what its program was given."""


def counted(ranks: int) -> str:
    """
    >>> counted(1), counted(4)
    ('1 rank', '4 ranks')
    """
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
