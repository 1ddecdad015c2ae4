"""Communication between the ranks for a check: over MPI where zerosim runs, over gloo under torchrun.

The check's messages have a channel, or a group, of their own, so they never mix with the script's.
"""

import pickle
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from zerosim.torch.verdicts.reference import plain_bytes

SECONDS = 60.0
"""How long a rank waits for the others to arrive at the same update."""


CHECKS = count(1)
"""Numbers the checks of this process, alike on all ranks."""


class BytesOfAll(Protocol):
    """Equal vectors of bytes from every rank to every rank."""

    rank: int
    size: int

    def gather(self, mine: Any) -> list[Any]:
        """The uint8 arrays of all ranks, of equal length, in the order of ranks."""
        ...


class OverMpi:
    """The ring's all-gather in a channel of the MPI world."""

    def __init__(self) -> None:
        from zerosim.worlds.mpi import connect  # noqa: PLC0415 - a check under torchrun needs no MPI

        comm = connect()
        self._comm = comm.channel(ranks=range(comm.size))
        self.rank, self.size = comm.rank, comm.size

    def gather(self, mine: Any) -> list[Any]:
        from zerosim.collectives import ring  # noqa: PLC0415 - as above

        found = [np.empty_like(mine) for _ in range(self.size)]
        found[self.rank] = mine
        ring.all_gather(self._comm, found)
        return found


class OverGloo:
    """A gloo group of all ranks; whatever the script trains over, this one moves tensors of the CPU."""

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, mine: Any) -> list[Any]:
        found = [torch.empty(len(mine), dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, torch.from_numpy(mine.copy()), group=self._group)
        return [each.numpy() for each in found]


class CheckRanks:
    """The ranks of a check. All call `everyone` and `tensors` in the same order, after they have met."""

    def __init__(self, transport: BytesOfAll, seconds: float = SECONDS) -> None:
        self._transport = transport
        self._seconds = seconds
        self.rank, self.size = transport.rank, transport.size
        self.apart = ""
        """Why the ranks no longer meet; empty while they do."""
        self._prefix = f"zerosim check {next(CHECKS)}"

    def meet(self, place: str, seconds: float = 0.0) -> bool:
        """Whether all ranks arrive at `place` within the time. Once they have not, they never meet again.

        A rank that has gone elsewhere does not stop the others: its absence is written down and the script goes on.
        """
        if self.apart or self.size == 1:
            return not self.apart
        store = distributed_c10d._get_default_store()
        keys = [f"{self._prefix} {place} {rank}" for rank in range(self.size)]
        store.set(keys[self.rank], "1")
        outcome = "met"
        try:
            store.wait(keys, timedelta(seconds=seconds or self._seconds))
        except RuntimeError:  # the store's timeout
            outcome = "apart"
        # The first rank to decide decides for all.
        if store.compare_set(f"{self._prefix} {place}", "", outcome) != b"met":
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            self.apart = f"rank {', '.join(missing) or '?'} did not reach {place} within {self._seconds:g} s"
        return not self.apart

    def first(self, place: str) -> bool:
        """Whether this is the first rank to ask at `place`."""
        store = distributed_c10d._get_default_store()
        return bool(store.compare_set(f"{self._prefix} first at {place}", "", str(self.rank)) == b"%d" % self.rank)

    def everyone(self, value: Any) -> list[Any]:
        """Every rank's `value`, pickled, in the order of ranks."""
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = [int(each.view(np.int64)[0]) for each in
                   self._transport.gather(np.array([len(data)]).view(np.uint8))]
        padded = np.zeros(max(lengths), np.uint8)
        padded[: len(data)] = data
        return [pickle.loads(each[:length].tobytes())
                for each, length in zip(self._transport.gather(padded), lengths, strict=True)]

    def tensors(self, mine: Any) -> list[Any]:
        """Every rank's tensor of equal shape and dtype, on the CPU, in the order of ranks."""
        if mine.numel() == 0:
            return [mine.detach().cpu()] * self.size
        return [torch.from_numpy(each).view(mine.dtype).reshape(mine.shape)
                for each in self._transport.gather(plain_bytes(mine))]
