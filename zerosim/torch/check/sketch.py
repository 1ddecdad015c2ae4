"""Sketches of tensors: few numbers that are linear in the elements, so that sketches of parts and of terms add up.

A sketch cuts a tensor into buckets of consecutive elements, and has for each bucket the sum of the elements with random
signs. A tensor of at most `BUCKETS` elements is its own sketch. The sketch of a mean of gradients is the mean of their
sketches, and that of a whole parameter the sum over its shards, whatever their layout. So a trainer that should compute
a mean can be judged by sketches alone, without a copy of the model and without a gradient of another rank.

Signs are random, and do not depend on the gradients, for two reasons. Gradients have structure: those of a softmax add
up to zero over the classes. And rounding errors then add up like a random walk:

Theorem 1. Let t[1] … t[n] be the terms of a sum: the gradient of each micro-batch of each rank. A trainer adds them in
some order, with scalings and casts at any place between, and returns s instead of the exact sum S times the exact
product c of the scalings. If no term passes more than m roundings of unit roundoff u, and m·u < 1, then

    |s − c·S| ≤ γ · |c| · Σ|t[i]|,    γ = m·u / (1 − m·u).

Proof. Each operation on a term's way multiplies it by 1 + δ with |δ| ≤ u, so s = Σ c·t[i]·(1 + θ[i]), where 1 + θ[i] is a
product of at most m such factors, and |θ[i]| ≤ γ (Higham, Accuracy and Stability, lemma 3.1). The order was not used.

Theorem 2. Let each element s of a sum be within e of the exact c·S, with e = γ |c| Σ|t[i]|. By Hoeffding's
inequality the signed sum of a bucket is within SURE · √(Σ e²) of the exact one, except with probability 2 exp(−SURE²/2),
which is 3·10⁻¹⁴; and always within Σ e ≤ √n · √(Σ e²) for n elements. By Minkowski's inequality √(Σ e²) is at most γ
times the sum over the terms of their norms in the bucket. A sketch therefore also has the squares of its elements.

So a fault is seen if its norm in some bucket exceeds 8γ norms of the gradients there, whatever the size of the tensor.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

BUCKETS = 128
"""The buckets of a parameter with more elements than that."""
SURE = 8.0
PIECE = 1 << 20
"""The elements of a tensor that are sketched at once."""


class Part(NamedTuple):
    """What a rank has of a tensor of `shape`: a slice along each axis."""

    shape: tuple[int, ...]
    where: tuple[slice, ...]

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        return tuple((each.start, each.stop) for each in self.where)


def whole(shape: Any) -> Part:
    return Part(tuple(shape), tuple(slice(0, size) for size in shape))


def places(part: Part, numbers: Any) -> Any:
    """The positions in the whole tensor, as a vector, of the elements with these numbers in a part.

    >>> places(Part((2, 3), (slice(1, 2), slice(0, 2))), torch.arange(2))
    tensor([3, 4])
    """
    found, stride = torch.zeros_like(numbers), 1
    for size, along in zip(reversed(part.shape), reversed(part.where), strict=True):
        width = along.stop - along.start
        found += (numbers % width + along.start) * stride
        numbers, stride = numbers // width, stride * size
    return found


def mixed(numbers: Any) -> Any:
    """Pseudo-random 64-bit numbers, one for each position."""
    numbers = (numbers + 1) * -7046029254386353131
    return (numbers ^ (numbers >> 29)) * -4658895280553007687


def sketch(values: Any, part: Part) -> Any:
    """Three rows of a float64 tensor: signed sums, sums of squares, and the number of elements in each bucket.

    >>> halves = [Part((3,), (slice(0, 2),)), Part((3,), (slice(2, 3),))]
    >>> vector = torch.tensor([1.0, 2.0, 3.0])
    >>> bool((sketch(vector[:2], halves[0]) + sketch(vector[2:], halves[1]) == sketch(vector, whole((3,)))).all())
    True
    """
    size = max(1, torch.Size(part.shape).numel())
    found = torch.zeros(3, min(size, BUCKETS), dtype=torch.float64, device=values.device)
    for at, piece in pieces(values.detach(), part):
        plain = piece.double()
        signs = 1.0 - 2.0 * ((mixed(at) >> 40) & 1)
        rows = torch.stack([plain * signs, plain.square(), torch.ones_like(plain)])
        found.index_add_(1, at * found.shape[1] // size, rows)
    return found


def pieces(values: Any, part: Part) -> Iterator[tuple[Any, Any]]:
    """A part's elements, and their positions, in pieces that need little memory."""
    for first, piece in enumerate(values.reshape(-1).split(PIECE)):
        yield places(part, torch.arange(len(piece), device=values.device) + first * PIECE), piece


INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(values: Any, part: Part) -> int:
    """A number of 64 bits that depends on every bit; those of the parts of a tensor add up to that of the whole."""
    found = 0
    for at, piece in pieces(values.detach(), part) if values.numel() else ():
        bits = piece.contiguous().view(INTEGERS[values.element_size()]).to(torch.int64)
        found += int(((bits + 1) * (mixed(at) | 1)).sum())
    return found % 2**64
