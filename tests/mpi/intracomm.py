"""`ZerosimIntracomm`: mpi4py's communicator, whose collectives on buffers are carried out by zerosim.

    message    what mpi4py's methods take: BUFFER, [BUFFER, TYPE], [BUFFER, COUNT, TYPE],
               [BUFFER, COUNTS, DISPLACEMENTS, TYPE] or [BUFFER, (COUNTS, DISPLACEMENTS), TYPE]
    block      the part of a message that belongs to one rank

Data travels as bytes: MPI packs a block, of whatever datatype, by sending it to this very process.
"""

# ruff: noqa: N802 - the methods have mpi4py's names

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import zerosim as zs
from zerosim.collectives import direct, naive, ring
from zerosim.worlds.mpi_communicator import MpiCommunicator

UFUNCS = [
    (MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum),
    (MPI.LAND, np.logical_and), (MPI.LOR, np.logical_or), (MPI.LXOR, np.logical_xor),
    (MPI.BAND, np.bitwise_and), (MPI.BOR, np.bitwise_or), (MPI.BXOR, np.bitwise_xor),
]


class Block(NamedTuple):
    """`count` elements at the start of `memory`: as it stands, a message for mpi4py."""

    memory: Any
    count: int
    datatype: MPI.Datatype

    def load(self) -> np.ndarray:
        packed = np.empty(self.count * self.datatype.size, np.uint8)
        MPI.COMM_SELF.Sendrecv(self, 0, 0, [packed, MPI.BYTE], 0, 0)
        return packed

    def numbers(self) -> np.ndarray:
        return self.load().view(self.datatype.typestr)

    def store(self, values: np.ndarray) -> None:
        MPI.COMM_SELF.Sendrecv([values.view(np.uint8), MPI.BYTE], 0, 0, self, 0, 0)


def whole(message: Any) -> Block:
    """A message that is one block."""
    buffer, count, offset, datatype = parts(message)
    memory = memory_of(buffer)[(offset or 0) * datatype.extent :]
    return Block(memory, len(memory) // datatype.extent if count is None else count, datatype)


def blocks(message: Any, size: int) -> list[Block]:
    """A message with one block for each rank; without counts they are equal."""
    buffer, counts, displacements, datatypes = parts(message)
    memory = memory_of(buffer)
    unit = 1
    if isinstance(datatypes, MPI.Datatype):
        unit, datatypes = datatypes.extent, [datatypes] * size
    if counts is None:
        counts = len(memory) // unit // size
    if isinstance(counts, int):
        counts = [counts] * size
    if displacements is None:
        displacements = accumulate(counts[:-1], initial=0)
    elif isinstance(displacements, int):
        displacements = range(0, size * displacements, displacements)
    if memory is MPI.BOTTOM:
        return [Block(memory, *each) for each in zip(counts, datatypes, strict=True)]
    return [
        Block(memory[unit * first :], count, datatype)
        for first, count, datatype in zip(displacements, counts, datatypes, strict=True)
    ]


def parts(message: Any) -> tuple[Any, Any, Any, Any]:
    """Buffer, counts, displacements and datatype, as mpi4py reads them; None what is not given."""
    buffer, *given = message if isinstance(message, list | tuple) else [message]
    datatype = given.pop() if given and names_type(given[-1]) else datatype_of(buffer)
    if len(given) == 1 and isinstance(given[0], tuple):
        given = list(given[0])
    return buffer, *given, *[None] * (2 - len(given)), datatype


def names_type(given: Any) -> bool:
    first = given[0] if isinstance(given, Sequence) and given else given
    return isinstance(first, MPI.Datatype)


def datatype_of(buffer: Any) -> MPI.Datatype:
    if hasattr(buffer, "__cuda_array_interface__"):
        return MPI.Datatype.fromcode(buffer.__cuda_array_interface__["typestr"][1:])
    array = np.asarray(memoryview(buffer)) if is_buffer(buffer) else np.from_dlpack(buffer)
    return MPI.Datatype.fromcode(array.dtype.char)


def is_buffer(buffer: Any) -> bool:
    try:
        memoryview(buffer)
    except TypeError:
        return False
    return True


def memory_of(buffer: Any) -> Any:
    """The bytes of `buffer`, by their address: those of a device may be sent, but not sliced."""
    if buffer is MPI.BOTTOM:
        return buffer
    memory = MPI.buffer(buffer)
    return MPI.buffer.fromaddress(memory.address, memory.nbytes, memory.readonly)


def in_place(message: Any) -> bool:
    return message is None or message is MPI.IN_PLACE


def reduction(op: MPI.Op, datatype: MPI.Datatype) -> dict[str, Any]:
    """`reduce=` and `commutative=` for an operation of MPI's or of a user's."""
    for known, ufunc in UFUNCS:
        if op == known:
            return {"reduce": ufunc, "commutative": True}

    def reduce(arrived: np.ndarray, mine: np.ndarray) -> np.ndarray:
        total = mine.copy()
        op.Reduce_local([arrived, datatype], [total, datatype])
        return total

    return {"reduce": reduce, "commutative": op.Is_commutative()}


class ZerosimIntracomm(MPI.Intracomm):
    """The ranks of an mpi4py communicator and its methods, as in `ZerosimIntracomm(MPI.COMM_WORLD)`."""

    @functools.cached_property
    def private(self) -> MPI.Intracomm:
        """The same ranks, for zerosim's messages alone."""
        return self.Dup()

    @functools.cached_property
    def world(self) -> MpiCommunicator:
        return MpiCommunicator(self.private, timeout_seconds=300)

    def Free(self) -> None:
        if "world" in vars(self):
            self.world.close()
            self.private.Free()
        super().Free()

    def Barrier(self) -> None:
        zs.barrier(self.world)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        block = whole(buf)
        vector = zs.broadcast(self.world, block.load(), root)
        if self.rank != root:
            block.store(vector)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self.rank != root:
            zs.gather(self.world, whole(sendbuf).load(), root)
            return
        received = blocks(recvbuf, self.size)
        shard = received[root] if in_place(sendbuf) else whole(sendbuf)
        store_all(received, np.split(zs.gather(self.world, shard.load(), root), self.size))

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self.rank != root:
            naive.gather(self.world, {self.rank: whole(sendbuf).load()}, root)
            return
        received = blocks(recvbuf, self.size)
        chunks = load_all(received)
        if not in_place(sendbuf):
            chunks[root] = whole(sendbuf).load()
        naive.gather(self.world, chunks, root)
        store_all(received, chunks)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self.rank != root:
            received = whole(recvbuf)
            received.store(zs.scatter(self.world, np.tile(received.load(), self.size), root))
            return
        shard = zs.scatter(self.world, np.concatenate(load_all(blocks(sendbuf, self.size))), root)
        if not in_place(recvbuf):
            whole(recvbuf).store(shard)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        if self.rank == root:
            chunks = load_all(blocks(sendbuf, self.size))
            naive.scatter(self.world, chunks, root)
            if not in_place(recvbuf):
                whole(recvbuf).store(chunks[root])
            return
        received = whole(recvbuf)
        mine = received.load()
        naive.scatter(self.world, {self.rank: mine}, root)
        received.store(mine)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        received = blocks(recvbuf, self.size)
        shard = received[self.rank] if in_place(sendbuf) else whole(sendbuf)
        store_all(received, np.split(zs.all_gather(self.world, shard.load()), self.size))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        received = blocks(recvbuf, self.size)
        chunks = load_all(received)
        if not in_place(sendbuf):
            chunks[self.rank] = whole(sendbuf).load()
        ring.all_gather(self.world, chunks)
        store_all(received, chunks)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        received = blocks(recvbuf, self.size)
        sent = received if in_place(sendbuf) else blocks(sendbuf, self.size)
        arrived = zs.all_to_all(self.world, np.concatenate(load_all(sent)))
        store_all(received, np.split(arrived, self.size))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        received = blocks(recvbuf, self.size)
        sent = received if in_place(sendbuf) else blocks(sendbuf, self.size)
        chunks = load_all(received)
        direct.all_to_all(self.world, load_all(sent), chunks)
        store_all(received, chunks)

    Alltoallw = Alltoallv

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        mine = whole(recvbuf if in_place(sendbuf) else sendbuf)
        total = zs.reduce(self.world, mine.numbers(), root, **reduction(op, mine.datatype))
        if self.rank == root:
            whole(recvbuf).store(total)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        mine = whole(recvbuf if in_place(sendbuf) else sendbuf)
        total = zs.all_reduce(self.world, mine.numbers(), **reduction(op, mine.datatype))
        whole(recvbuf).store(total)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        mine = whole(recvbuf if in_place(sendbuf) else sendbuf)
        chunk = zs.reduce_scatter(self.world, mine.numbers(), **reduction(op, mine.datatype))
        whole(recvbuf)._replace(count=chunk.size).store(chunk)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """In rank order, which serves every operation."""
        mine = whole(recvbuf if in_place(sendbuf) else sendbuf)
        if recvcounts is None:
            recvcounts = zs.all_gather(self.world, [whole(recvbuf).count])
        chunks = np.split(mine.numbers(), np.cumsum(recvcounts)[:-1])
        direct.reduce_scatter(self.world, chunks, reduction(op, mine.datatype)["reduce"])
        whole(recvbuf)._replace(count=chunks[self.rank].size).store(chunks[self.rank])

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._scan(sendbuf, recvbuf, op, self.rank + 1)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        self._scan(sendbuf, recvbuf, op, self.rank)

    def _scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, ranks: int) -> None:
        """Leave in `recvbuf` the reduction over the first `ranks` ranks, if there are any."""
        mine = whole(recvbuf if in_place(sendbuf) else sendbuf)
        brought = np.split(zs.all_gather(self.world, mine.numbers()), self.size)
        if ranks:
            total = functools.reduce(reduction(op, mine.datatype)["reduce"], brought[:ranks])
            whole(recvbuf).store(total.astype(mine.datatype.typestr))


def load_all(every: list[Block]) -> list[np.ndarray]:
    return [block.load() for block in every]


def store_all(every: list[Block], values: Sequence[np.ndarray]) -> None:
    for block, chunk in zip(every, values, strict=True):
        block.store(chunk)
