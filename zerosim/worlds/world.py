"""What every world is to those who run something in it: ranks, and what carries messages between them."""

from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar

from zerosim.allocation import Allocator
from zerosim.comm import Communicator

Result = TypeVar("Result")


class World(Protocol):
    """Ranks, seen from one process: the local world's has all of them, under MPI each has one.

    A program on a rank may ask for a channel or give an allocator; then the programs of all ranks do so.
    """

    @property
    def kind(self) -> str:
        """The world's name in outcomes, in one word."""

    @property
    def ranks(self) -> int:
        """How many there are, in all processes."""

    @property
    def library(self) -> str:
        """What carries the messages."""

    @property
    def words(self) -> str:
        """The ranks and where they are, as a phrase."""

    @property
    def rank_is_process(self) -> bool:
        """Whether each rank has a process to itself, so that what is limited or measured there is the rank's own."""

    @property
    def copies_messages(self) -> bool:
        """Whether messages need memory of the world's own, which comes from where `take_buffers_from` says."""

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
