"""Context parallelism in a model's code: each context rank has a piece of every sequence.

    "ring"         keys and values travel round the ring of context ranks; queries stay
    "all_to_all"   an all-to-all gives each rank whole sequences of some heads, another one takes them back

All weights are used on pieces, so their gradients are sums over the context ranks. Over one rank all functions return
their input, and attention is the ordinary one.

Sources: Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers" (2023); Jacobs et al., "DeepSpeed
Ulysses" (2023), section 3.
"""

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operations.attention import causal_attention, causal_self_attention
from zerosim.autograd.operations.shapes import reshape, transpose
from zerosim.autograd.ring_attention import ring_attention, ring_self_attention
from zerosim.autograd.tape_collectives import Direction, all_to_all, copy_to
from zerosim.models.model_parallel import ModelParallel


def on_pieces(w: Weights, group: Direction) -> Weights:
    """Weights that all ranks of a group have and use on different pieces: their gradients are sums over these ranks."""
    return {name: copy_to(each, group=group) for name, each in w.items()}


def self_attention(qkv: Variable, heads: int, parallel: ModelParallel) -> Variable:
    """`causal_self_attention` over whole sequences, for pieces of them."""
    context = parallel.context
    if context.alone:
        return causal_self_attention(qkv, heads=heads)
    if parallel.context_by == "ring":
        return ring_self_attention(qkv, group=context, heads=heads)
    return to_sequence(causal_self_attention(to_heads(qkv, context, parts=3), heads=context.of(heads)), context)


def attention(
    q: Variable, k: Variable, v: Variable, heads: int, key_value_heads: int, parallel: ModelParallel
) -> Variable:
    """`causal_attention` over whole sequences, for pieces of them."""
    context = parallel.context
    if context.alone:
        return causal_attention(q, k, v, heads=heads, key_value_heads=key_value_heads)
    if parallel.context_by == "ring":
        return ring_attention(q, k, v, group=context, heads=heads, key_value_heads=key_value_heads)
    q, k, v = (to_heads(each, context) for each in (q, k, v))
    found = causal_attention(q, k, v, heads=context.of(heads), key_value_heads=context.of(key_value_heads))
    return to_sequence(found, context)


def to_heads(x: Variable, context: Direction, *, parts: int = 1) -> Variable:
    """Whole sequences of this rank's heads, from pieces of sequences with all heads.

    (B, T / C, parts · H · s) becomes (B, T, parts · H / C · s); the heads of each part are cut.
    """
    samples, tokens, width = x.shape
    x = reshape(x, shape=(samples, tokens, parts, context.size, context.of(width // parts)))
    x = all_to_all(transpose(x, axes=(3, 0, 1, 2, 4)), group=context)
    return reshape(transpose(x, axes=(1, 0, 2, 3, 4)), shape=(samples, context.size * tokens, context.of(width)))


def to_sequence(x: Variable, context: Direction) -> Variable:
    """Pieces of sequences with all heads, from whole sequences of this rank's heads."""
    samples, tokens, width = x.shape
    x = reshape(x, shape=(samples, context.size, context.of(tokens), width))
    x = all_to_all(transpose(x, axes=(1, 0, 2, 3)), group=context)
    return reshape(transpose(x, axes=(1, 2, 0, 3)), shape=(samples, context.of(tokens), context.size * width))
