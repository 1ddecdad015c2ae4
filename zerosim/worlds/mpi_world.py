"""The MPI world as a `World`."""

import os
import signal
from collections.abc import Callable
from typing import ClassVar, NoReturn

from zerosim.allocation import Allocator
from zerosim.comm import Communicator
from zerosim.worlds.mpi_communicator import MpiCommunicator
from zerosim.worlds.world import Result, counted


class MpiWorld:
    """The ranks that the launcher started, one of which is this process: a `World`."""

    kind: ClassVar[str] = "mpi"
    rank_is_process: ClassVar[bool] = True
    copies_messages: ClassVar[bool] = True

    def __init__(self, comm: MpiCommunicator) -> None:
        self.ranks = comm.size
        self.library = comm.library
        self.shared_cores, self.hosts = comm.machine.shared_cores, comm.machine.hosts
        self._comm = comm
        self._channels = [comm]

    @property
    def words(self) -> str:
        return f"{counted(self.ranks)}, one process each, over {self.library}"

    @property
    def transport(self) -> str:
        if self._comm.refused:
            return f"Messages within a host travel by MPI: no shared memory, {self._comm.refused}."
        carrier = "through shared memory" if self._comm.transport == "shared" else "by MPI"
        return f"Messages within a host travel {carrier}."

    def run(self, program: Callable[[Communicator], Result]) -> list[Result]:
        return [program(self._comm)]

    def channel(self) -> MpiCommunicator:
        """A second channel, as `MpiCommunicator.channel` makes it."""
        other = self._comm.channel()
        self._channels.append(other)
        return other

    def take_buffers_from(self, allocate: Allocator) -> None:
        for channel in self._channels:
            channel.take_buffers_from(allocate)

    def kill(self, comm: Communicator) -> NoReturn:
        """End this process by SIGKILL, as the operating system does when memory is short."""
        self._comm.note_location()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody survives SIGKILL")

    def stop(self, comm: Communicator) -> None:
        """Stop this process until it receives SIGCONT."""
        self._comm.note_location()
        os.kill(os.getpid(), signal.SIGSTOP)
