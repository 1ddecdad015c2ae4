"""Causal attention, softmax, rotary positions, and heads side by side.

    B, T     samples and tokens of each
    H, K     heads of queries, and of keys and values; H is a multiple of K
    q, k, v  queries, keys and values: (B, T, H·s), (B, T, K·s), (B, T, K·v), for heads of s numbers and of v in values

Attention is one operation that computes few samples at a time, so that their scores stay in a core's cache.
It keeps the softmax for backward (T² numbers a head) instead of recomputing it as FlashAttention does: that is
simpler, and a run's activations then have the term that published formulas count. Two or four heads at a time, and
row maxima by halves, were not faster. The masked half of the scores is computed and discarded; leaving it out would
change the bits of the products.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Shape, refuse
from zerosim.autograd.tape_collectives import Direction, TapeGroup
from zerosim.core.allocation import Array

WHOLE = Direction("context")
"""The group of whole sequences."""
CACHED = 2**15
"""The scores that stay in a core's cache."""


def softmax_forward(x: Array, *, empty: Empty) -> Array:
    """y = exp x / Σ exp x, of each row, the last dimension; the largest of a row is subtracted first.

    x is (…, n).

    >>> softmax_forward(np.log([1.0, 3.0]), empty=np.empty)
    array([0.25, 0.75])
    """
    if not x.shape:
        raise refuse("softmax", "x (…, n)", x.shape)
    y = empty(x.shape, x.dtype)
    np.subtract(x, np.max(x, axis=-1, keepdims=True), out=y)
    np.exp(y, out=y)
    y /= np.sum(y, axis=-1, keepdims=True)
    return y


def softmax_backward(upstream: Array, into: Into, *, empty: Empty, y: Array) -> None:
    """∂L/∂x = y · (upstream − Σ upstream · y), the sum over a row."""
    gradient = into["x"]
    np.multiply(upstream, y, out=gradient)
    np.subtract(upstream, np.sum(gradient, axis=-1, keepdims=True), out=gradient)
    gradient *= y


def causal_attention_forward(
    q: Array, k: Array, v: Array, *, empty: Empty, heads: int, key_value_heads: int
) -> tuple[Array, Array]:
    """y = softmax(q kᵀ / √s + mask) v, of each head, where the mask hides later tokens; saves the softmax.

    y is (B, T, H·v), the softmax (B, H, T, T). Each of the K heads of keys and values serves H/K heads of queries.
    Vaswani et al., "Attention is all you need" (2017), section 3.2; Ainslie et al., "GQA" (2023), section 2.

    >>> q, k, v = np.zeros((1, 2, 1)), np.zeros((1, 2, 1)), np.array([[[1.0], [3.0]]])
    >>> y, saved = causal_attention_forward(q, k, v, empty=np.empty, heads=1, key_value_heads=1)
    >>> y.tolist(), saved.tolist()
    ([[[1.0], [2.0]]], [[[[1.0, 0.0], [0.5, 0.5]]]])
    """
    check_attended(q.shape, k.shape, v.shape, heads, key_value_heads)
    samples, tokens, groups = len(q), q.shape[1], heads // key_value_heads
    y = empty((*q.shape[:2], heads * (v.shape[2] // key_value_heads)), q.dtype)
    chances = empty((samples, heads, tokens, tokens), q.dtype)
    later = hidden(tokens, q.dtype.name) if isinstance(q, np.ndarray) else 0.0      # no numbers need no mask
    scale, together = 1.0 / math.sqrt(q.shape[2] // heads), max(1, CACHED // (heads * tokens * tokens))
    for start in range(0, samples, together):
        few = slice(start, start + together)
        queries, mixed = (by_heads(x[few], key_value_heads, groups) for x in (q, y))
        keys, values = (by_heads(x[few], key_value_heads, 1) for x in (k, v))
        p = chances[few].reshape(-1, key_value_heads, groups, tokens, tokens)
        np.matmul(queries, keys.transpose(0, 1, 2, 4, 3), out=p)
        p *= scale
        p += later
        p -= np.max(p, axis=-1, keepdims=True)
        np.exp(p, out=p)
        p /= np.sum(p, axis=-1, keepdims=True)
        np.matmul(p, values, out=mixed)
    return y, chances


def causal_attention_backward(
    upstream: Array, into: Into, *, empty: Empty, saved: Array,
    q: Array | None = None, k: Array | None = None, v: Array | None = None, heads: int, key_value_heads: int,
) -> None:
    """∂L/∂v = pᵀ upstream;  ∂L/∂q = ∂s k / √s and ∂L/∂k = ∂sᵀ q / √s, where ∂s is softmax's backward of upstream vᵀ.
    The gradients of queries' heads that share a key are added, first to last. Samples are computed one by one."""
    groups, scale = heads // key_value_heads, 1.0
    for array, count in ((q, heads), (k, key_value_heads)):
        if array is not None:
            scale = 1.0 / math.sqrt(array.shape[2] // count)
    of_q, of_k, of_v = into.get("q"), into.get("k"), into.get("v")
    shape = key_value_heads, groups, *saved.shape[2:]
    s, work = empty(shape, saved.dtype), empty(shape, saved.dtype)
    for sample in range(len(upstream)):
        p, g = saved[sample].reshape(shape), by_heads(upstream[sample], key_value_heads, groups)
        if of_v is not None:
            add_groups(p.transpose(0, 1, 3, 2), g, by_heads(of_v[sample], key_value_heads, 1))
        if v is None:
            continue
        np.matmul(g, by_heads(v[sample], key_value_heads, 1).transpose(0, 1, 3, 2), out=s)
        np.multiply(s, p, out=work)
        s -= np.sum(work, axis=-1, keepdims=True)
        s *= p
        s *= scale
        if of_q is not None and k is not None:
            np.matmul(s, by_heads(k[sample], key_value_heads, 1), out=by_heads(of_q[sample], key_value_heads, groups))
        if of_k is not None and q is not None:
            queries = by_heads(q[sample], key_value_heads, groups)
            add_groups(s.transpose(0, 1, 3, 2), queries, by_heads(of_k[sample], key_value_heads, 1))


def of_packed(attention: Operation, name: str) -> Operation:
    """Attention of queries, keys and values side by side in one array, qkv (B, T, 3·H·s), as GPT-2 has them.

    Their gradients are the thirds of ∂L/∂qkv.

    >>> qkv = np.array([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])
    >>> causal_self_attention.forward(qkv, empty=np.empty, heads=1)[0].tolist()
    [[[1.0], [2.0]]]
    """

    def forward(qkv: Array, *, empty: Empty, heads: int, **settings: Any) -> tuple[Array, Array]:
        if len(qkv.shape) != 3 or qkv.shape[-1] % (3 * heads):
            raise refuse(name, f"(B, T, 3·{heads}·s)", qkv.shape)
        y: tuple[Array, Array] = attention.forward(
            **thirds(qkv), empty=empty, heads=heads, key_value_heads=heads, **settings)
        return y

    def backward(
        upstream: Array, into: Into, *, empty: Empty, saved: Array, qkv: Array, heads: int, **settings: Any
    ) -> None:
        parts = thirds(into["qkv"])
        gradients = Into({part: array.shape for part, array in parts.items()}, parts.__getitem__)
        assert attention.backward is not None
        attention.backward(upstream, gradients, empty=empty, saved=saved, **thirds(qkv), heads=heads,
                           key_value_heads=heads, **settings)

    forward.__name__, forward.__doc__ = f"{name}_forward", of_packed.__doc__
    reads = ("qkv", "y") if any("y" in names for names in attention.needs.values()) else ("qkv",)
    return replace(attention, forward=forward, backward=backward, needs={"qkv": reads},
                   backward_products={"qkv": sum(attention.backward_products.values())})


def add_groups(left: Array, right: Array, out: Array) -> None:
    """The products of all heads of queries that share a key, added first to last: (K, H/K, …) into (K, 1, …)."""
    np.matmul(left[:, 0], right[:, 0], out=out[:, 0])
    for group in range(1, left.shape[1]):
        out[:, 0] += np.matmul(left[:, group], right[:, group])


def by_heads(array: Array, key_value_heads: int, groups: int) -> Array:
    """(…, T, K·groups·s) seen as (…, K, groups, T, s)."""
    *samples, tokens, width = array.shape
    lead, size = len(samples), width // (key_value_heads * groups)
    apart = array.reshape(*samples, tokens, key_value_heads, groups, size)
    return apart.transpose(*range(lead), lead + 1, lead + 2, lead, lead + 3)


def thirds(qkv: Array) -> dict[str, Array]:
    """Queries, keys and values as views of one array."""
    width = qkv.shape[-1] // 3
    return {name: qkv[..., place * width : (place + 1) * width] for place, name in enumerate("qkv")}


@cache
def hidden(tokens: int, dtype: str) -> Array:
    """The mask (T, T): −∞ where a token would see a later one, otherwise 0. Its rows share the memory of one.

    >>> hidden(3, "float32")
    array([[  0., -inf, -inf],
           [  0.,   0., -inf],
           [  0.,   0.,   0.]], dtype=float32)
    """
    row = np.zeros(2 * tokens - 1, dtype)
    row[tokens:] = -np.inf
    return np.lib.stride_tricks.sliding_window_view(row, tokens)[::-1]


def check_attended(
    q: Shape, k: Shape, v: Shape, heads: int, key_value_heads: int, *, alike: bool = False
) -> None:
    """Raise `ZerosimError` unless heads divide the widths, K divides H, and B, T and s agree; keys and values that must
    be `alike` have one shape."""
    size = q[-1] // heads if len(q) == 3 and q[-1] % heads == 0 else 0
    wrong = not size or heads % key_value_heads or k != (*q[:-1], key_value_heads * size)
    if wrong or v[:-1] != k[:-1] or v[-1] % key_value_heads or (alike and v != k):
        wants = f"q (B, T, {heads}·s), k (B, T, {key_value_heads}·s), v (B, T, {key_value_heads}·v)"
        raise refuse("causal_attention", f"{wants}, heads a multiple of key-value heads", q, k, v)


def products(y: Shape, q: Shape, *keys_and_values: Shape, **_: Any) -> int:
    """Multiplications of q kᵀ and of p v: each number of q and of y once for each token."""
    return (math.prod(q if keys_and_values else y) + math.prod(y)) * y[1]


def rotary_forward(x: Array, *, empty: Empty, size: int, base: float, group: TapeGroup = WHOLE) -> Array:
    """Each head's numbers i and i + s/2 of token t turned by the angle t · base^(−2i/s); x is (B, T, heads·s).

    With `group`, x is this rank's piece of a sequence, and t counts from the beginning of the whole.
    Su et al., "RoFormer" (2021), section 3.4.2, with halves beside each other as in Llama.

    >>> x = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    >>> rotary_forward(x, empty=np.empty, size=2, base=10000.0).round(2).tolist()
    [[[1.0, 0.0], [0.54, 0.84]]]
    """
    if size % 2 or len(x.shape) != 3 or x.shape[-1] % size:
        raise refuse("rotary", f"(B, T, heads·{size}) with an even number for each head", x.shape)
    turn(x, y := empty(x.shape, x.dtype), empty, size, base, group, 1.0)
    return y


def rotary_backward(
    upstream: Array, into: Into, *, empty: Empty, size: int, base: float, group: TapeGroup = WHOLE
) -> None:
    """∂L/∂x: upstream turned back."""
    turn(upstream, into["x"], empty, size, base, group, -1.0)


def turn(x: Array, out: Array, empty: Empty, size: int, base: float, group: TapeGroup, direction: float) -> None:
    samples, tokens, width = x.shape
    shape, half = (samples, tokens, width // size, size), size // 2
    own_tokens = slice(group.place * tokens, (group.place + 1) * tokens)
    cosine, sine = (angle[own_tokens] for angle in angles(group.size * tokens, size, base, x.dtype.name, direction))
    pairs, turned, work = x.reshape(shape), out.reshape(shape), empty(shape, x.dtype)
    np.multiply(pairs, sine, out=work)
    np.multiply(pairs, cosine, out=turned)
    turned[..., :half] -= work[..., half:]
    turned[..., half:] += work[..., :half]


@cache
def angles(tokens: int, size: int, base: float, dtype: str, direction: float) -> tuple[Array, Array]:
    """cos and sin of each token's angles, the sine times `direction`, (T, 1, s), the s/2 angles twice."""
    frequency = base ** (-np.arange(0, size, 2) / size)
    angle = np.tile(np.outer(np.arange(tokens), frequency), 2)[:, np.newaxis]
    return np.cos(angle).astype(dtype), (direction * np.sin(angle)).astype(dtype)


def join_heads_forward(x: Array, other: Array, *, empty: Empty, heads: int, other_heads: int) -> Array:
    """Each head's numbers of x, then those of `other`: x (B, T, H·s), other (B, T, K·r), y (B, T, H·(s + r)).

    Each of the K heads of `other` stands beside H/K heads of x.

    >>> x, other = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[5.0]]])
    >>> join_heads_forward(x, other, empty=np.empty, heads=2, other_heads=1).tolist()
    [[[1.0, 2.0, 5.0, 3.0, 4.0, 5.0]]]
    """
    if len(x.shape) != 3 or x.shape[:-1] != other.shape[:-1] or (
            x.shape[-1] % heads or other.shape[-1] % other_heads or heads % other_heads):
        raise refuse("join_heads", f"x (B, T, {heads}·s), other (B, T, {other_heads}·r), heads a multiple of others",
                     x.shape, other.shape)
    size = x.shape[2] // heads
    out = empty((*x.shape[:2], x.shape[2] + heads * (other.shape[2] // other_heads)), x.dtype)
    y = in_groups(out, heads, other_heads)
    y[..., :size] = in_groups(x, heads, other_heads)
    y[..., size:] = in_groups(other, other_heads, other_heads)
    return out


def join_heads_backward(upstream: Array, into: Into, *, empty: Empty, heads: int, other_heads: int) -> None:
    """∂L/∂x and ∂L/∂other: the parts of upstream; those of heads with one head of `other` are added, first to last."""
    parts = in_groups(upstream, heads, other_heads)
    if "x" in into:
        gradient = in_groups(into["x"], heads, other_heads)
        gradient[...] = parts[..., : gradient.shape[-1]]
    if "other" in into:
        gradient = in_groups(into["other"], other_heads, other_heads)[..., 0, :]
        terms = parts[..., parts.shape[-1] - gradient.shape[-1] :]
        gradient[...] = terms[..., 0, :]
        for group in range(1, heads // other_heads):
            gradient += terms[..., group, :]


def in_groups(array: Array, heads: int, other_heads: int) -> Array:
    """(B, T, H·s) seen as (B, T, K, H/K, s)."""
    samples, tokens, width = array.shape
    return array.reshape(samples, tokens, other_heads, heads // other_heads, width // heads)


softmax = Operation(softmax_forward, softmax_backward)
causal_attention = Operation(
    causal_attention_forward, causal_attention_backward, {"q": ("k", "v"), "k": ("q", "v"), "v": ()},
    multiplications=products, backward_products={"q": 0.75, "k": 0.75, "v": 0.5},
)
causal_self_attention = of_packed(causal_attention, "causal_self_attention")
rotary = Operation(rotary_forward, rotary_backward)
join_heads = Operation(join_heads_forward, join_heads_backward, moves=True)
