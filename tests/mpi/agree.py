"""Every collective of MPI beside ours, where the answer is exact whatever the order: equal bytes.

Whole numbers, all operations, all roots, `IN_PLACE`, and blocks of different lengths with gaps between them. Long
double is left out, since its padding is undefined. Unless WHOLE is set, each dtype has its first operation, and each
operation the first dtype that has it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from tests.mpi.intracomm import ZerosimIntracomm
from tests.small import WHOLE

MOVED = "bfD"  # what only travels is bytes: one dtype of each of three lengths
ARITHMETIC = [MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN]
LOGIC = [MPI.LAND, MPI.LOR, MPI.LXOR]
BITS = [MPI.BAND, MPI.BOR, MPI.BXOR]
REDUCED = [
    ("bilBHQ", ARITHMETIC + LOGIC + BITS),
    ("fd", ARITHMETIC),  # no long double: its bytes of padding are anybody's
    ("FD", [MPI.SUM, MPI.PROD]),
    ("?", LOGIC),
]


def agree(method: str, *arguments: Any) -> None:
    """Call `method` of both communicators on copies of the arrays, and compare what is left in them."""
    left = []
    for comm in (theirs, ours):
        copies = [copied(argument) for argument in arguments]
        getattr(comm, method)(*copies)
        left.append([array_of(copy).tobytes() for copy in copies if array_of(copy) is not None])
    assert left[0] == left[1], (method, arguments)


def copied(argument: Any) -> Any:
    if isinstance(argument, list) and isinstance(argument[0], np.ndarray):
        return [argument[0].copy(), *argument[1:]]
    return argument.copy() if isinstance(argument, np.ndarray) else argument


def array_of(argument: Any) -> np.ndarray | None:
    first = argument[0] if isinstance(argument, list) else argument
    return first if isinstance(first, np.ndarray) else None


def small(count: int, dtype: str) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact in every dtype, or wrap around."""
    return np.random.default_rng([rank, count]).integers(0, 3, count).astype(dtype)


def with_gaps(lengths: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Counts, displacements and total of blocks that lie in reverse order, one element apart."""
    starts, total = [], 0
    for length in reversed(lengths):
        starts.append(total)
        total += length + 1
    return list(lengths), starts[::-1], total


def reductions(count: int, dtype: str, op: MPI.Op, root: int) -> None:
    x, whole = small(count, dtype), small(size * count, dtype)
    agree("Reduce", x, np.zeros_like(x), op, root)
    agree("Reduce", MPI.IN_PLACE if rank == root else x, x, op, root)
    agree("Allreduce", x, np.zeros_like(x), op)
    agree("Allreduce", MPI.IN_PLACE, x, op)
    agree("Reduce_scatter_block", whole, np.zeros_like(x), op)
    agree("Reduce_scatter_block", MPI.IN_PLACE, whole, op)
    agree("Scan", x, np.zeros_like(x), op)
    agree("Exscan", x, np.zeros_like(x), op)
    uneven = [(3 * number + count) % 4 for number in range(size)]
    agree("Reduce_scatter", small(sum(uneven), dtype), np.zeros(uneven[rank], dtype), uneven, op)


def moves(count: int, dtype: str) -> None:
    x, whole = small(count, dtype), small(size * count, dtype)
    for root in range(size):
        at_root = rank == root
        agree("Bcast", x, root)
        agree("Gather", x, np.zeros_like(whole) if at_root else None, root)
        agree("Gather", MPI.IN_PLACE if at_root else x, whole if at_root else None, root)
        agree("Scatter", whole if at_root else None, np.zeros_like(x), root)
        agree("Scatter", whole if at_root else None, MPI.IN_PLACE if at_root else x, root)
    agree("Allgather", x, np.zeros_like(whole))
    agree("Allgather", MPI.IN_PLACE, whole)
    agree("Alltoall", whole, np.zeros_like(whole))
    agree("Alltoall", MPI.IN_PLACE, whole)


def uneven_moves(count: int, dtype: str) -> None:
    datatype = MPI.Datatype.fromcode(dtype)
    lengths = [(2 * number + count) % 5 for number in range(size)]
    counts, starts, total = with_gaps(lengths)
    gapped, x = small(total, dtype), small(lengths[rank], dtype)
    for root in range(size):
        message = [gapped, counts, starts, datatype] if rank == root else None
        agree("Gatherv", x, message, root)
        agree("Scatterv", message, x, root)
    agree("Allgatherv", x, [gapped, counts, starts, datatype])
    to_others = with_gaps([(rank + number) % 3 for number in range(size)])
    agree(
        "Alltoallv",
        [small(to_others[2], dtype), *to_others[:2], datatype],
        [np.zeros(to_others[2], dtype), *to_others[:2], datatype],
    )


theirs = MPI.COMM_WORLD
ours = ZerosimIntracomm(theirs)
rank, size = ours.rank, ours.size
for count in (0, size + 1):
    for dtypes, operations in REDUCED:
        for dtype in dtypes:
            for number, op in enumerate(operations):
                if WHOLE or number == 0 or dtype == dtypes[0]:
                    reductions(count, dtype, op, root=number % size)
    for dtype in MOVED:
        moves(count, dtype)
        uneven_moves(count, dtype)
ours.world.close()
if rank == 0:
    print(f"{size} ranks agree with {ours.world.library}")
