"""The first ranks of a world as a smaller world of their own."""

from dataclasses import dataclass

from zerosim.comm import Communicator, Payload, Reduction


@dataclass(frozen=True)
class First:
    """Ranks 0 … size − 1 of `comm`, for a program that only they run.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: First(comm, 2).size if comm.rank < 2 else None, ranks=3)
    [2, 2, None]
    """

    comm: Communicator
    size: int

    @property
    def rank(self) -> int:
        return self.comm.rank

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        self.comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)

    def send(self, outgoing: Payload, *, to: int) -> None:
        self.comm.send(outgoing, to=to)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        self.comm.recv(into=into, source=source, reduce=reduce)
