"""How far a mean of gradients can be from the exact one, in any order of addition.

Theorem. Let t[1] … t[n] be the terms that enter a sum: the gradient of each micro-batch of each rank. A trainer adds
them in some order, with scalings and casts at any place between, and returns s instead of the exact sum S of the terms
times the exact product c of the scalings. If no term passes more than m roundings of unit roundoff u, and m·u < 1,

    |s − c·S| ≤ γ(m) · |c| · Σ|t[i]|,    γ(m) = m·u / (1 − m·u).

Proof. A rounded operation returns the exact result times (1 + δ) with |δ| ≤ u (addition, multiplication, division, cast
to a narrower dtype; a cast to a wider one has δ = 0). Follow one term to the result: each operation on its way
multiplies it by one such factor, so s = Σ c·t[i]·(1 + θ[i]), where 1 + θ[i] is a product of at most m factors. By
induction on m, |θ[i]| ≤ γ(m) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1). A term that
arrives more than once, in parts with factors that add up to c, has a weighted mean of such θ, which obeys the same
bound. The triangle inequality ends the proof. The order of addition was not used.

Factors of two dtypes multiply: 1 + γ = (1 + γ₁)(1 + γ₂). Results below the smallest normal number lose relative
precision, or become zero where the processor flushes them. Each operation then adds at most that number, which `tiny`
counts. An overflow is outside the theorem, and is not judged.
"""

from typing import Any

import torch


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number of `dtype`.

    >>> unit_roundoff(torch.float32) == 2.0 ** -24, unit_roundoff(torch.bfloat16) == 2.0 ** -8
    (True, True)
    """
    return float(torch.finfo(dtype).eps) / 2


def gamma(*roundings: tuple[int, Any]) -> float:
    """γ of a path with `count` roundings in each dtype, as pairs (count, dtype); infinite if m·u reaches 1.

    >>> gamma((3, torch.float32)) == 3 * 2.0**-24 / (1 - 3 * 2.0**-24)
    True
    """
    product = 1.0
    for count, dtype in roundings:
        share = count * unit_roundoff(dtype)
        if share >= 1:
            return float("inf")
        product *= 1 + share / (1 - share)
    return product - 1 if len(roundings) > 1 else share / (1 - share)


def tiny(count: int, *dtypes: Any) -> float:
    """The most that `count` operations lose to underflow in the narrowest range among `dtypes`."""
    return count * max(float(torch.finfo(dtype).tiny) for dtype in dtypes)


def ulps(one: Any, other: Any) -> int:
    """The largest distance of two tensors of equal dtype, in units in the last place of the larger element.

    >>> one = torch.tensor([1.0, -2.0])
    >>> ulps(one, torch.tensor([1.0 + 2**-23, -2.0]))
    1
    """
    if one.numel() == 0:
        return 0
    here, there = one.detach(), other.detach().to(one.dtype)
    size = torch.maximum(here.abs(), there.abs())
    unit = torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 1) * torch.finfo(one.dtype).eps
    apart = (here.double() - there.double()).abs() / unit.double().clamp_min(torch.finfo(one.dtype).tiny)
    apart = torch.where(here == there, 0.0, apart).nan_to_num(0.0, 0.0, 0.0)
    return int(apart.max())
