"""The first ranks of a world as a smaller world of their own."""

from zerosim.comm import Communicator


class FirstRanks:
    """Ranks 0 … size − 1 of `comm`, for a program that only they run: a rank among fewer, whose messages are the same.

    >>> from zerosim.worlds.local import spawn
    >>> spawn(lambda comm: FirstRanks(comm, 2).size if comm.rank < 2 else None, ranks=3)
    [2, 2, None]
    """

    def __init__(self, comm: Communicator, size: int) -> None:
        self.rank = comm.rank
        self.size = size
        self.exchange = comm.exchange
        self.send = comm.send
        self.recv = comm.recv
