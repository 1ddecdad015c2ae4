"""The order in which PyTorch's trainers add gradients over these collectives, as plain loops.

    brought     the contributions of all ranks: rank r's is `brought[r]`
    DDP         each rank multiplies by 1/N; if gradients are views of the bucket already, it divides by N. A bucket
                is one vector, cut into N chunks; chunk c is ((g[c+1] + g[c+2]) + …) + g[c]. In the first reduction all
                parameters are one bucket, in their own order; from the second on in the order in which gradients became
                ready.
    FSDP2       each parameter is cut along its first axis into N pieces of ⌈rows/N⌉ rows. Rank c keeps piece c,
                which is (((g[c+1] + g[c+2]) + …) + g[c]) / N. On one rank nothing is added or divided.
    HSDP        the same within each row of the mesh. Then the pieces of a unit's parameters are one vector for the
                column, cut into as many chunks as it has ranks, and added and divided as such.

No collective is called here.
"""

from collections.abc import Sequence

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.sharding import bounds


def in_ring_order(parts: Sequence[Array], chunk: int) -> Array:
    """((parts[chunk+1] + parts[chunk+2]) + …) + parts[chunk], indices modulo their number.

    >>> in_ring_order([np.array(["a"], object), np.array(["b"], object), np.array(["c"], object)], 0)
    array(['bca'], dtype=object)
    """
    total = parts[(chunk + 1) % len(parts)].copy()
    for step in range(2, len(parts) + 1):
        total = total + parts[(chunk + step) % len(parts)]
    return total


def all_reduced(parts: Sequence[Array], start: int, length: int) -> Array:
    """The ring's sum of equal parts of longer vectors: they begin at `start` of a vector of `length` elements.

    >>> all_reduced([np.array([2, 3]), np.array([20, 30])], 1, 3)
    array([22, 33])
    """
    total = np.empty_like(parts[0])
    for chunk, (first, last) in enumerate(bounds(length, len(parts))):
        low, high = max(first - start, 0), min(last - start, len(total))
        if low < high:
            total[low:high] = in_ring_order([part[low:high] for part in parts], chunk)
    return total


def over_mesh(rows: Sequence[Sequence[Array]], shard: int, start: int, length: int) -> Array:
    """The mean of one shard as FSDP2 and HSDP compute it: within each row of the mesh, then within the column.

    `start` and `length` say where the shard stands in the vector of its unit.
    """
    of_rows = [np.divide(total, total.dtype.type(len(row))) if len(row) > 1 else total
               for row in rows for total in [in_ring_order(row, shard)]]
    return all_reduced(of_rows, start, length) / of_rows[0].dtype.type(len(rows)) if len(rows) > 1 else of_rows[0]
