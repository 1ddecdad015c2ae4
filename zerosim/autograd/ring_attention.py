"""Causal attention over a sequence that is cut over a ring of ranks: queries stay, keys and values travel.

    C, T, K    ranks of the ring, tokens of each, heads of keys and values
    block      the keys and values of one rank
    top        the largest score of each row so far
    total      Σ exp(score − top) of each row so far

In step n a rank has the block of the rank n places before it. Blocks of later ranks are hidden and not computed, but
counted as products: the last rank computes all, and the others wait for it. Forward saves log Σ exp of each row, from
which backward computes the softmax again. There the gradients of a block travel with it: its owner is the last to add,
so forward sends (C − 1)/C of all keys and values, backward twice as much.

Arrays of 16 bits travel as such, also sums of gradients between ranks; scores have 32 bits. Whole samples are computed
at once, in contrast to `causal_attention`: a block's scores have 1/C² of the size.

Sources: Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers" (2023), section 3; Dao et al.,
"FlashAttention" (2022), appendix B.
"""

import math
from typing import Any

import numpy as np

from zerosim.autograd.operation import Empty, Into, Operation, Shape, copy_of
from zerosim.autograd.operations.attention import by_heads, check_attended, hidden, of_packed, products
from zerosim.autograd.tape_collectives import TapeGroup
from zerosim.core.allocation import Array


def ring_attention_forward(
    q: Array, k: Array, v: Array, *, empty: Empty, group: TapeGroup, heads: int, key_value_heads: int
) -> tuple[Array, Array]:
    """`causal_attention` of this rank's queries over all keys and values of the group; saves log Σ exp of each row.

    q and y are (B, T, H·s), k and v (B, T, K·s), of which each rank has its piece along T.

    >>> from zerosim.autograd.tape_collectives import Direction
    >>> q, k, v = np.zeros((1, 2, 1)), np.zeros((1, 2, 1)), np.array([[[1.0], [3.0]]])
    >>> alone = Direction("context")
    >>> ring_attention_forward(q, k, v, empty=np.empty, group=alone, heads=1, key_value_heads=1)[0].tolist()
    [[[1.0], [2.0]]]
    """
    check_attended(q.shape, k.shape, v.shape, heads, key_value_heads, alike=True)
    queries, block = by_heads(widened(q, empty), key_value_heads, heads // key_value_heads), travelling(k, v, empty)
    rows = (*queries.shape[:-1], 1)
    mixed, top, total = (empty(shape, queries.dtype) for shape in (queries.shape, rows, rows))
    scores = empty((*queries.shape[:-1], q.shape[1]), queries.dtype)
    mixed[...], top[...], total[...] = 0.0, -np.inf, 0.0
    for step in range(group.size):
        if step:
            group.shift(block.reshape(-1), 1)
        if step > group.place:
            continue
        keys, values = (by_heads(widened(x, empty), queries.shape[1], 1) for x in block)
        scored(queries, keys, scores, own=step == 0)
        higher = np.maximum(top, np.max(scores, axis=-1, keepdims=True))
        scores -= higher
        np.exp(scores, out=scores)
        top -= higher
        np.exp(top, out=top)    # what was added before is rescaled for the new `top`
        mixed *= top
        mixed += np.matmul(scores, values)
        total *= top
        total += np.sum(scores, axis=-1, keepdims=True)
        top[...] = higher
        del keys, values
    mixed /= total
    y = empty(q.shape, q.dtype)
    by_heads(y, *queries.shape[1:3])[...] = mixed
    top += np.log(total, out=total)
    return y, top


def ring_attention_backward(
    upstream: Array, into: Into, *, empty: Empty, q: Array, k: Array, v: Array, y: Array, saved: Array,
    group: TapeGroup, heads: int, key_value_heads: int,
) -> None:
    """The gradients of `causal_attention`; those of keys and values are sums over the ranks that see them: first those
    of the other ranks' blocks, which travel home, then of one's own."""
    groups = saved.shape[2]
    queries, g = (by_heads(widened(x, empty), key_value_heads, groups) for x in (q, upstream))
    delta = np.sum(np.multiply(g, by_heads(y, key_value_heads, groups)), axis=-1, keepdims=True)
    block, gradients = travelling(k, v, empty), empty((2, *k.shape), k.dtype)
    of_queries = empty(queries.shape, queries.dtype)
    scratch = [empty((*queries.shape[:-1], q.shape[1]), queries.dtype) for _ in range(2)]
    gradients[...], of_queries[...] = 0.0, 0.0
    for step in range(1, group.size):
        group.shift(block.reshape(-1), 1)
        if step > 1:
            group.shift(gradients.reshape(-1), 1)
        if step <= group.place:
            add_gradients(queries, g, block, saved, delta, scratch, of_queries, gradients, empty, own=False)
    group.shift(gradients.reshape(-1), 1)
    block[0], block[1] = k, v
    add_gradients(queries, g, block, saved, delta, scratch, of_queries, gradients, empty, own=True)
    if "q" in into:
        by_heads(into["q"], key_value_heads, groups)[...] = of_queries
    for name, gradient in zip("kv", gradients, strict=True):
        if name in into:
            into[name][...] = gradient


def add_gradients(
    queries: Array, g: Array, block: Array, saved: Array, delta: Array, scratch: list[Array], of_queries: Array,
    gradients: Array, empty: Empty, *, own: bool,
) -> None:
    """Add the gradients of one block: p = exp(score − saved), ∂s = p (g vᵀ − delta) / √s."""
    keys, values = (by_heads(widened(x, empty), queries.shape[1], 1) for x in block)
    p, s = scratch
    scored(queries, keys, p, own=own)
    p -= saved
    np.exp(p, out=p)
    np.matmul(g, values.transpose(0, 1, 2, 4, 3), out=s)
    s -= delta
    s *= p
    s *= 1.0 / math.sqrt(queries.shape[-1])
    of_queries += np.matmul(s, keys)
    for gradient, left, right in zip(gradients, (s, p), (queries, g), strict=True):
        total = by_heads(gradient, queries.shape[1], 1)
        total[...] = total + np.sum(np.matmul(left.transpose(0, 1, 2, 4, 3), right), axis=2, keepdims=True)


def scored(queries: Array, keys: Array, scores: Array, *, own: bool) -> None:
    """Write q kᵀ / √s to `scores`, and −∞ where a token would see a later one of its own block."""
    np.matmul(queries, keys.transpose(0, 1, 2, 4, 3), out=scores)
    scores *= 1.0 / math.sqrt(queries.shape[-1])
    if own and isinstance(scores, np.ndarray):
        scores += hidden(scores.shape[-1], scores.dtype.name)


def travelling(k: Array, v: Array, empty: Empty) -> Array:
    """Keys and values in one array, which is one message."""
    block = empty((2, *k.shape), k.dtype)
    block[0], block[1] = k, v
    return block


def widened(x: Array, empty: Empty) -> Array:
    """x in at least 32 bits: itself if it has them, else a copy."""
    return x if x.dtype.itemsize >= np.dtype(np.float32).itemsize else copy_of(x, empty, np.float32)


def products_around(y: Shape, *inputs: Shape, group: TapeGroup, **_: Any) -> int:
    """Multiplications of q kᵀ and of p v, over the tokens of all ranks."""
    return group.size * products(y, *inputs)


ring_attention = Operation(
    ring_attention_forward, ring_attention_backward, sends=True, multiplications=products_around,
    backward_products={"q": 1.0, "k": 0.75, "v": 0.75},
)
ring_self_attention = of_packed(ring_attention, "ring_self_attention")
