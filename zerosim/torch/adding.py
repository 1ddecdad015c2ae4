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

from zerosim.allocation import Array
from zerosim.sharding import bounds


def in_ring_order(parts: Sequence[Array], chunk: int) -> Array:
    """((parts[chunk+1] + parts[chunk+2]) + …) + parts[chunk], indices modulo their number.

    >>> in_ring_order([np.array(["a"], object), np.array(["b"], object), np.array(["c"], object)], 0)
    array(['bca'], dtype=object)
    """
    total = parts[(chunk + 1) % len(parts)].copy()
    for step in range(2, len(parts) + 1):
        total = total + parts[(chunk + step) % len(parts)]
    return total


def all_reduced(brought: Sequence[Array]) -> Array:
    """The result of a ring all-reduce of flat vectors on every rank.

    >>> all_reduced([np.array([1, 2, 3]), np.array([10, 20, 30])])
    array([11, 22, 33])
    """
    total = np.empty_like(brought[0])
    for chunk, (first, last) in enumerate(bounds(len(total), len(brought))):
        total[first:last] = in_ring_order([vector[first:last] for vector in brought], chunk)
    return total


def divided(total: Array, by: int) -> Array:
    """The quotient, in the precision of the sum."""
    found: Array = np.divide(total, total.dtype.type(by))
    return found


def pieces(gradient: Array, ranks: int) -> list[Array]:
    """The pieces into which FSDP2 cuts a parameter's gradient: ⌈rows/ranks⌉ rows for each rank, padded with zeros,
    flat.

    >>> [each.tolist() for each in pieces(np.arange(6).reshape(3, 2), 2)]
    [[0, 1, 2, 3], [4, 5, 0, 0]]
    """
    rows = -(-len(gradient) // ranks)
    whole = np.zeros((rows * ranks, *gradient.shape[1:]), gradient.dtype)
    whole[: len(gradient)] = gradient
    return [whole[rank * rows : (rank + 1) * rows].reshape(-1) for rank in range(ranks)]


def sharded_sum(brought: Sequence[Sequence[Array]], replicas: int) -> list[Array]:
    """The mean of a unit's gradients in FSDP2's order: `brought[r]` has the gradients of its parameters on rank r.

    With several `replicas`, ranks r·S … (r+1)·S − 1 are a row of the mesh, which shard; ranks of equal number in their
    rows replicate.
    """
    ranks = len(brought)
    shards = ranks // replicas
    cut = [[pieces(gradient, shards) for gradient in of_rank] for of_rank in brought]
    found = []
    for shard in range(shards):
        rows = []
        for replica in range(replicas):
            members = range(replica * shards, (replica + 1) * shards)
            vectors = [np.concatenate([of_parameter[shard] for of_parameter in cut[rank]]) for rank in members]
            total = in_ring_order(vectors, shard)
            rows.append(divided(total, shards) if shards > 1 else total)
        total = all_reduced(rows)
        found.append(divided(total, replicas) if replicas > 1 else total)
    return put_together(found, [gradient.shape for gradient in brought[0]])


def put_together(vectors: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Whole parameters of these shapes, from the vectors of all ranks that shard them."""
    found, start = [], 0
    for shape in shapes:
        rows = -(-shape[0] // len(vectors))
        length = rows * int(np.prod(shape[1:]))
        whole = np.concatenate([vector[start : start + length] for vector in vectors])
        found.append(whole.reshape(-1, *shape[1:])[: shape[0]].copy())
        start += length
    return found
