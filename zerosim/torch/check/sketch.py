"""Sketches of tensors: few numbers that are linear in the elements, so that sketches of parts and of terms add up.

A sketch cuts a tensor into buckets of consecutive elements, and has for each bucket the sum of the elements with random
signs. A tensor of at most `LEAST` elements is its own sketch. The sketch of a mean of gradients is the mean of their
sketches, and that of a whole parameter the sum over its shards, whatever their layout. So a trainer that should compute
a mean can be judged by sketches alone, without a copy of the model and without a gradient of another rank.

Signs are random, and do not depend on the gradients, for two reasons. Gradients have structure: those of a softmax add
up to zero over the classes. And rounding errors then add up like a random walk:

Theorem 1. Let t[1] … t[n] be the terms of a sum: the gradient of each micro-batch of each rank. A trainer adds them in
some order, with scalings and casts at any place between, and returns s instead of the exact sum S times the exact
product c of the scalings. If no term passes more than m roundings of unit roundoff u, and m·u < 1, then

    |s − c·S| ≤ γ · |c| · Σ|t[i]|,    γ = m·u / (1 − m·u).

Proof. Each operation on a term's way multiplies it by 1 + δ with |δ| ≤ u, so s = Σ c·t[i]·(1 + θ[i]), where 1 + θ[i] is
a product of at most m such factors, and |θ[i]| ≤ γ (Higham, Accuracy and Stability, lemma 3.1). The order was not used.

Theorem 2. Let each element s of a sum be within e of the exact c·S, with e = γ |c| Σ|t[i]|. By Hoeffding's
inequality the signed sum of a bucket is within SURE · √(Σ e²) of the exact one, except with probability
2 exp(−SURE²/2), which is 3·10⁻¹⁴; and always within Σ e ≤ √n · √(Σ e²) for n elements. By Minkowski's inequality
√(Σ e²) is at most γ times the sum over the terms of their norms in the bucket. A sketch therefore also has the sums of
squares.

So a fault is seen if its norm in some bucket exceeds 8γ norms of the gradients there, whatever the size of the tensor.

The signs are those of a counter-based hash of an element's place in its bucket: the theorem needs independent signs
within a bucket only. A whole tensor is then a matrix with a row for each bucket, and its sketch a product with one
vector. Everything stays on the tensor's device; no function here waits for it.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any

import torch

from zerosim.torch.check.record import Key, bucket_length

PIECES = {"cpu": 1 << 16}
"""About as many elements of a tensor are sketched at once: those that fit a cache, elsewhere 2²⁴."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LAST = 16
"""The vectors of signs and factors that are kept, each as long as a bucket."""


def whole(shape: Any) -> Key:
    """The place of a whole tensor."""
    return tuple((0, size) for size in shape)


def hashed(numbers: Any) -> Any:
    """Pseudo-random 64-bit numbers, one for each of these (the finalizer of splitmix64)."""
    numbers = (numbers + 1) * -7046029254386353131
    numbers = (numbers ^ (numbers >> 30)) * -4658895280553007687
    numbers = (numbers ^ (numbers >> 27)) * -7723592293110705685
    return numbers ^ (numbers >> 31)


@lru_cache(LAST)
def signs(length: int, device: Any) -> Any:
    """The sign of each place in a bucket, as float64."""
    return 1.0 - 2.0 * (hashed(torch.arange(length, device=device)) >> 17 & 1)


@lru_cache(LAST)
def factors(length: int, dtype: Any, device: Any) -> Any:
    """An odd number for each place in a bucket."""
    return hashed(torch.arange(length, device=device)).to(dtype) | 1


def sketch(values: Any, shape: Any, key: Key) -> Any:
    """Two rows of a float64 tensor: the signed sums of each bucket, and the sums of squares.

    >>> vector = torch.tensor([1.0, 2.0, 3.0])
    >>> halves = sketch(vector[:2], (3,), ((0, 2),)) + sketch(vector[2:], (3,), ((2, 3),))
    >>> bool((halves == sketch(vector, (3,), ((0, 3),))).all())
    True
    """
    size = max(1, prod(shape))
    length = bucket_length(size)
    buckets = torch.zeros(2, -(-size // length), dtype=torch.float64, device=values.device)
    sign = signs(length, values.device)
    for first, block in blocks(values, shape, key, length):
        plain, rows = block.double(), slice(first, first + len(block))
        buckets[0, rows] += (plain * sign).sum(1)
        buckets[1, rows] += torch.linalg.vector_norm(plain, dim=1).square_()
    return buckets


def digest(values: Any, shape: Any, key: Key) -> Any:
    """A 64-bit integer tensor that depends on every bit; those of the parts of a tensor add up to that of the whole."""
    if values.is_complex():
        values, shape, key = torch.view_as_real(values), (*shape, 2), (*key, (0, 2))
    values = values.detach().contiguous().view(INTEGERS[values.element_size()])
    wide = values.dtype if values.element_size() >= 4 else torch.int32
    size = max(1, prod(shape))
    length = bucket_length(size)
    sums = torch.zeros(-(-size // length), dtype=torch.int64, device=values.device)
    odd = factors(length, wide, values.device)
    for first, block in blocks(values, shape, key, length):
        sums[first : first + len(block)] += (block.to(wide) * odd).sum(1)  # products wrap around, and are one to one
    return (sums * factors(len(sums), torch.int64, values.device)).sum()


def blocks(values: Any, shape: Any, key: Key, length: int) -> Iterator[tuple[int, Any]]:
    """The elements of a part as matrices with a row for each bucket, and the first bucket of each matrix.

    What lies in a bucket and not in the part is 0. A part that is not in one piece, such as some columns of a matrix,
    is put into a matrix of zeros first.
    """
    flat, start = values.detach().reshape(-1), beginning(shape, key)
    if start is None and flat.numel():
        first, last = key[0]
        plane = values.new_zeros(last - first, *shape[1:])
        plane[tuple(slice(0, stop - begin) if axis == 0 else slice(begin, stop)
                    for axis, (begin, stop) in enumerate(key))] = values.detach()
        flat, start = plane.reshape(-1), first * prod(shape[1:])
    position, end = start or 0, (start or 0) + flat.numel()
    most = PIECES.get(values.device.type, 1 << 24)
    while position < end:
        base = position - position % length
        stop = min(end, base + max(1, most // length) * length)
        rows, piece = -(-(stop - base) // length), flat[position - (start or 0) : stop - (start or 0)]
        if piece.numel() < rows * length:
            piece = torch.nn.functional.pad(piece, (position - base, base + rows * length - stop))
        yield base // length, piece.view(rows, length)
        position = stop


def beginning(shape: Any, key: Key) -> int | None:
    """The position of a part's first element, if its elements follow each other in the whole tensor.

    >>> beginning((4, 3), ((1, 3), (0, 3))), beginning((4, 3), ((2, 3), (1, 2))), beginning((4, 3), ((0, 4), (0, 2)))
    (3, 7, None)
    """
    start, single = 0, True
    for size, (first, last) in zip(shape, key, strict=True):
        if not single and (first, last) != (0, size):
            return None
        single = single and last - first == 1
        start = start * size + first
    return start
