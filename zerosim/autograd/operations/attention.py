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
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from zerosim.allocation import Array
from zerosim.autograd.operation import Empty, Operation, Shape
from zerosim.autograd.operations.shapes import elements, refuse
from zerosim.autograd.tape_collectives import Direction, TapeGroup

WHOLE = Direction("context")
"""The group of whole sequences."""
CACHED = 2**15
"""The scores that stay in a core's cache."""


def softmax_forward(x: Array, *, out: Array, empty: Empty) -> None:
    """y = exp x / Σ exp x, of each row, the last dimension; the largest of a row is subtracted first.

    x is (…, n).

    >>> y = np.empty(2)
    >>> softmax_forward(np.log([1.0, 3.0]), out=y, empty=np.empty)
    >>> y
    array([0.25, 0.75])
    """
    np.subtract(x, np.max(x, axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= np.sum(out, axis=-1, keepdims=True)


def softmax_backward(upstream: Array, into: dict[str, Array], *, empty: Empty, y: Array) -> None:
    """∂L/∂x = y · (upstream − Σ upstream · y), the sum over a row."""
    work = np.multiply(upstream, y, out=empty(y.shape, y.dtype))
    total = np.sum(work, axis=-1, keepdims=True)
    np.subtract(upstream, total, out=into["x"])
    into["x"] *= y


def softmax_shape(x: Shape) -> Shape:
    """The shape of x. Raises `ZerosimError` if x is a single number, which has no rows."""
    if not x:
        raise refuse("softmax", "x (…, n)", x)
    return x


def causal_attention_forward(
    q: Array, k: Array, v: Array, *, out: Array, empty: Empty, heads: int, key_value_heads: int
) -> Array:
    """y = softmax(q kᵀ / √s + mask) v, of each head, where the mask hides later tokens; returns the softmax.

    y is (B, T, H·v), the softmax (B, H, T, T). Each of the K heads of keys and values serves H/K heads of queries.
    Vaswani et al., "Attention is all you need" (2017), section 3.2; Ainslie et al., "GQA" (2023), section 2.

    >>> q, k, v, y = np.zeros((1, 2, 1)), np.zeros((1, 2, 1)), np.array([[[1.0], [3.0]]]), np.empty((1, 2, 1))
    >>> causal_attention_forward(q, k, v, out=y, empty=np.empty, heads=1, key_value_heads=1)
    array([[[[1. , 0. ],
             [0.5, 0.5]]]])
    >>> y.tolist()
    [[[1.0], [2.0]]]
    """
    chances = empty((len(q), heads, q.shape[1], q.shape[1]), q.dtype)
    attend(q, k, v, out, chances, heads, key_value_heads)
    return chances


def causal_attention_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, saved: Array,
    q: Array | None = None, k: Array | None = None, v: Array | None = None, heads: int, key_value_heads: int,
) -> None:
    """∂L/∂v = pᵀ upstream;  ∂L/∂q = ∂s k / √s and ∂L/∂k = ∂sᵀ q / √s, where ∂s is softmax's backward of upstream vᵀ.
    The gradients of queries' heads that share a key are added, first to last."""
    found = Attended(into.get("q"), into.get("k"), into.get("v"))
    attend_backward(upstream, Attended(q, k, v), saved, found, empty, heads, key_value_heads)


def causal_self_attention_forward(qkv: Array, *, out: Array, empty: Empty, heads: int) -> Array:
    """`causal_attention` of queries, keys and values side by side in one array: (B, T, 3·H·s), as GPT-2 has them.

    >>> y = np.empty((1, 2, 1))
    >>> qkv = np.array([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])
    >>> _ = causal_self_attention_forward(qkv, out=y, empty=np.empty, heads=1)
    >>> y.tolist()
    [[[1.0], [2.0]]]
    """
    chances = empty((len(qkv), heads, qkv.shape[1], qkv.shape[1]), qkv.dtype)
    attend(*thirds(qkv), out, chances, heads, heads)
    return chances


def causal_self_attention_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, saved: Array, qkv: Array, heads: int
) -> None:
    """The gradients of `causal_attention`, each in its third of ∂L/∂x."""
    inputs, found = Attended(*thirds(qkv)), Attended(*thirds(into["qkv"]))
    attend_backward(upstream, inputs, saved, found, empty, heads, heads)


def attend(q: Array, k: Array, v: Array, out: Array, chances: Array, heads: int, key_value_heads: int) -> None:
    """Compute attention of as many samples at a time as have scores that stay in a core's cache. Arrays without numbers
    need no mask."""
    tokens, size = q.shape[1], q.shape[2] // heads
    later = hidden(tokens, q.dtype.name) if isinstance(q, np.ndarray) else 0.0
    scale = 1.0 / math.sqrt(size)
    together = max(1, CACHED // (heads * tokens * tokens))
    for start in range(0, len(q), together):
        samples = slice(start, start + together)
        queries, keys, values, y = (
            by_head(each[samples], count) for each, count in
            ((q, heads), (k, key_value_heads), (v, key_value_heads), (out, heads))
        )
        p = grouped(chances[samples], key_value_heads)
        np.matmul(grouped(queries, key_value_heads), keys[:, :, np.newaxis].transpose(0, 1, 2, 4, 3), out=p)
        p *= scale
        p += later
        p -= np.max(p, axis=-1, keepdims=True)
        np.exp(p, out=p)
        p /= np.sum(p, axis=-1, keepdims=True)
        np.matmul(p, values[:, :, np.newaxis], out=grouped(y, key_value_heads))


class Attended(NamedTuple):
    """Queries, keys and values, or their gradients; None for those that are not computed."""

    q: Array | None
    k: Array | None
    v: Array | None


def attend_backward(
    upstream: Array, inputs: Attended, chances: Array, into: Attended, empty: Empty, heads: int, key_value_heads: int
) -> None:
    """Write the gradients in `into`, from the `inputs` that they need, one sample at a time."""
    q, k, v = inputs
    groups, scale = heads // key_value_heads, 1.0
    for array, count in ((q, heads), (k, key_value_heads)):
        if array is not None:
            scale = 1.0 / math.sqrt(array.shape[2] // count)
    room, other = empty(chances.shape[1:], chances.dtype), empty(chances.shape[1:], chances.dtype)
    s, work = grouped(room, key_value_heads), grouped(other, key_value_heads)
    for sample in range(len(upstream)):
        p, g = (grouped(each, key_value_heads) for each in (chances[sample], by_head(upstream[sample], heads)))
        if into.v is not None:
            add_groups(p.transpose(0, 1, 3, 2), g, by_head(into.v[sample], key_value_heads), groups)
        if v is None:
            continue
        np.matmul(g, by_head(v[sample], key_value_heads)[:, np.newaxis].transpose(0, 1, 3, 2), out=s)
        np.multiply(s, p, out=work)
        s -= np.sum(work, axis=-1, keepdims=True)
        s *= p
        s *= scale
        if into.q is not None:
            assert k is not None
            mine = grouped(by_head(into.q[sample], heads), key_value_heads)
            np.matmul(s, by_head(k[sample], key_value_heads)[:, np.newaxis], out=mine)
        if into.k is not None:
            assert q is not None
            queries = grouped(by_head(q[sample], heads), key_value_heads)
            add_groups(s.transpose(0, 1, 3, 2), queries, by_head(into.k[sample], key_value_heads), groups)


def add_groups(left: Array, right: Array, out: Array, groups: int) -> None:
    """The products of all heads of queries that share a key, added first to last: (K, H/K, …) into (K, …)."""
    np.matmul(left[:, 0], right[:, 0], out=out)
    for group in range(1, groups):
        out += np.matmul(left[:, group], right[:, group])


def by_head(array: Array, heads: int) -> Array:
    """(…, T, heads·s) seen as (…, heads, T, s)."""
    *samples, tokens, width = array.shape
    lead = len(samples)
    return array.reshape(*samples, tokens, heads, width // heads).transpose(*range(lead), lead + 1, lead, lead + 2)


def grouped(by_heads: Array, key_value_heads: int) -> Array:
    """(…, H, T, n) seen as (…, K, H/K, T, n)."""
    *samples, heads, rows, columns = by_heads.shape
    return by_heads.reshape(*samples, key_value_heads, heads // key_value_heads, rows, columns)


def thirds(qkv: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values as views of one array."""
    width = qkv.shape[-1] // 3
    return qkv[..., :width], qkv[..., width : 2 * width], qkv[..., 2 * width :]


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


def attention_shape(
    q: Shape, k: Shape, v: Shape, *, heads: int, key_value_heads: int, group: TapeGroup = WHOLE
) -> Shape:
    """The shape (B, T, H·v). Raises `ZerosimError` unless heads divide the widths, K divides H, and B, T and s agree;
    and if keys and values travel round a ring in one message, unless they have one shape."""
    size = q[-1] // heads if len(q) == 3 and q[-1] % heads == 0 else 0
    wrong = not size or heads % key_value_heads or k != (*q[:-1], key_value_heads * size)
    if wrong or v[:-1] != k[:-1] or v[-1] % key_value_heads or (v != k and group is not WHOLE):
        wants = f"q (B, T, {heads}·s), k (B, T, {key_value_heads}·s), v (B, T, {key_value_heads}·v)"
        raise refuse("causal_attention", f"{wants}, heads a multiple of key-value heads", q, k, v)
    return (*q[:-1], heads * (v[-1] // key_value_heads))


def self_attention_shape(qkv: Shape, *, heads: int, group: TapeGroup = WHOLE) -> Shape:
    """The shape (B, T, H·s). Raises `ZerosimError` unless the last dimension has three equal parts for each head."""
    if len(qkv) != 3 or qkv[-1] % (3 * heads):
        raise refuse("causal_self_attention", f"(B, T, 3·{heads}·s)", qkv)
    return (*qkv[:-1], qkv[-1] // 3)


def products(y: Shape, q: Shape, *keys_and_values: Shape, **_: Any) -> int:
    """Multiplications of q kᵀ and of p v: each number of q and of y once for each token."""
    return (elements(q if keys_and_values else y) + elements(y)) * y[1]


def rotary_forward(
    x: Array, *, out: Array, empty: Empty, size: int, base: float, group: TapeGroup = WHOLE
) -> None:
    """Each head's numbers i and i + s/2 of token t turned by the angle t · base^(−2i/s); x is (B, T, heads·s).

    With `group`, x is this rank's piece of a sequence, and t counts from the beginning of the whole.
    Su et al., "RoFormer" (2021), section 3.4.2, with halves beside each other as in Llama.

    >>> y = np.empty((1, 2, 2))
    >>> rotary_forward(np.array([[[1.0, 0.0], [1.0, 0.0]]]), out=y, empty=np.empty, size=2, base=10000.0)
    >>> y.round(2).tolist()
    [[[1.0, 0.0], [0.54, 0.84]]]
    """
    turn(x, out, empty, size, base, group, 1.0)


def rotary_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, size: int, base: float, group: TapeGroup = WHOLE
) -> None:
    """∂L/∂x: upstream turned back."""
    turn(upstream, into["x"], empty, size, base, group, -1.0)


def turn(x: Array, out: Array, empty: Empty, size: int, base: float, group: TapeGroup, direction: float) -> None:
    samples, tokens, width = x.shape
    shape, half = (samples, tokens, width // size, size), size // 2
    mine = slice(group.place * tokens, (group.place + 1) * tokens)
    cosine, sine = (each[mine] for each in angles(group.size * tokens, size, base, x.dtype.name))
    pairs, turned, work = x.reshape(shape), out.reshape(shape), empty(shape, x.dtype)
    np.multiply(pairs, sine * direction, out=work)
    np.multiply(pairs, cosine, out=turned)
    turned[..., :half] -= work[..., half:]
    turned[..., half:] += work[..., :half]


@cache
def angles(tokens: int, size: int, base: float, dtype: str) -> tuple[Array, Array]:
    """cos and sin of each token's angles, (T, 1, s), the s/2 angles twice."""
    frequency = base ** (-np.arange(0, size, 2) / size)
    angle = np.tile(np.outer(np.arange(tokens), frequency), 2)[:, np.newaxis]
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def rotary_shape(x: Shape, *, size: int, base: float, group: TapeGroup = WHOLE) -> Shape:
    """The shape of x. Raises `ZerosimError` if `size` is odd, or x is not (B, T, heads·size)."""
    if size % 2 or len(x) != 3 or x[-1] % size:
        raise refuse("rotary", f"(B, T, heads·{size}) with an even number for each head", x)
    return x


def beside_forward(x: Array, other: Array, *, out: Array, empty: Empty, heads: int, other_heads: int) -> None:
    """Each head's numbers of x, then those of `other`: x (B, T, H·s), other (B, T, K·r), y (B, T, H·(s + r)).

    Each of the K heads of `other` stands beside H/K heads of x.

    >>> y = np.empty((1, 1, 6))
    >>> x, other = np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[5.0]]])
    >>> beside_forward(x, other, out=y, empty=np.empty, heads=2, other_heads=1)
    >>> y.tolist()
    [[[1.0, 2.0, 5.0, 3.0, 4.0, 5.0]]]
    """
    y, size = in_groups(out, heads, other_heads), x.shape[2] // heads
    y[..., :size] = in_groups(x, heads, other_heads)
    y[..., size:] = in_groups(other, other_heads, other_heads)


def beside_backward(
    upstream: Array, into: dict[str, Array], *, empty: Empty, heads: int, other_heads: int
) -> None:
    """∂L/∂x and ∂L/∂other: the parts of upstream; those of heads with one head of `other` are added, first to last."""
    parts = in_groups(upstream, heads, other_heads)
    if "x" in into:
        found = in_groups(into["x"], heads, other_heads)
        found[...] = parts[..., : found.shape[-1]]
    if "other" in into:
        found = in_groups(into["other"], other_heads, other_heads)[..., 0, :]
        mine = parts[..., parts.shape[-1] - found.shape[-1] :]
        found[...] = mine[..., 0, :]
        for group in range(1, heads // other_heads):
            found += mine[..., group, :]


def in_groups(array: Array, heads: int, other_heads: int) -> Array:
    """(B, T, H·s) seen as (B, T, K, H/K, s)."""
    samples, tokens, width = array.shape
    return array.reshape(samples, tokens, other_heads, heads // other_heads, width // heads)


def beside_shape(x: Shape, other: Shape, *, heads: int, other_heads: int) -> Shape:
    """The shape (B, T, H·(s + r)). Raises `ZerosimError` unless heads divide the widths, and K divides H."""
    if len(x) != 3 or x[:-1] != other[:-1] or x[-1] % heads or other[-1] % other_heads or heads % other_heads:
        raise refuse("beside", f"x (B, T, {heads}·s), other (B, T, {other_heads}·r), heads a multiple of others",
                     x, other)
    return (*x[:-1], x[-1] + heads * (other[-1] // other_heads))


softmax = Operation(
    softmax_forward, softmax_backward, softmax_shape, {"x": ("y",)}, over="x", over_upstream="x"
)
causal_attention = Operation(
    causal_attention_forward, causal_attention_backward, attention_shape,
    {"q": ("k", "v"), "k": ("q", "v"), "v": ()},
    multiplications=products, backward_products={"q": 0.75, "k": 0.75, "v": 0.5},
)
causal_self_attention = Operation(
    causal_self_attention_forward, causal_self_attention_backward, self_attention_shape, {"qkv": ("qkv",)},
    multiplications=products, backward_products={"qkv": 2.0},
)
rotary = Operation(rotary_forward, rotary_backward, rotary_shape, {"x": ()}, over="x", over_upstream="x")
beside = Operation(beside_forward, beside_backward, beside_shape, {"x": (), "other": ()}, moves=True)
