"""How a model's code is split over ranks that share a micro-batch: tensor, sequence and context parallelism.

    x -> column_input -> product whose outputs are cut -> … -> product whose inputs are cut -> row_output -> x

A pair of products needs one sum in forward and one in backward. With `sequence`, each tensor rank has a piece of the
sequence between such pairs: the sum becomes a reduce-scatter, and the next pair begins with an all-gather; together
they send the same bytes.

Each context rank has a piece of every sequence, so all weights are used on pieces, and their gradients are sums over
the context ranks. Attention over pieces is

    "ring"         keys and values travel round the ring of context ranks; queries stay
    "all_to_all"   an all-to-all gives each rank whole sequences of some heads, another one takes them back

Over one rank all functions return their input, and attention is the ordinary one.

Sources: Shoeybi et al., "Megatron-LM" (2019), section 3; Korthikanti et al., "Reducing activation recomputation in
large transformer models" (2022), section 4.2.2; Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers"
(2023); Jacobs et al., "DeepSpeed Ulysses" (2023), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zerosim.autograd.graph import Variable, Weights
from zerosim.autograd.operations.attention import causal_attention, causal_self_attention
from zerosim.autograd.operations.shapes import reshape, transpose
from zerosim.autograd.ring_attention import ring_attention, ring_self_attention
from zerosim.autograd.tape_collectives import (
    Direction,
    all_to_all,
    copy_to,
    gather_from,
    joint,
    reduce_from,
    scatter_sum_to,
)

SAMPLES, SEQUENCE = 0, 1
"""The dimensions of samples and of a sequence in (samples, sequence, width)."""


@dataclass(frozen=True)
class ModelParallel:
    """The directions of the mesh over which ranks share a micro-batch, for a model's code."""

    tensor: Direction = Direction("tensor")
    context: Direction = Direction("context")
    expert: Direction = Direction("expert")
    sequence: bool = False
    """Whether the tensor ranks have a piece of the sequence each, where they would compute the same."""
    vocabulary: bool = False
    """Whether the tensor ranks have a piece of the vocabulary each, in the embedding and in the outputs."""
    context_by: str = "ring"
    """The attention over pieces of sequences, `ring` or `all_to_all`."""

    @property
    def pieces(self) -> Direction:
        """The ranks that have pieces of sequences or of samples, and use all weights but those of experts on them."""
        return joint(self.context, self.expert)

    @property
    def tokens(self) -> Direction:
        """All ranks that have tokens of their own: with `sequence` the tensor ranks too."""
        return joint(self.tensor, self.context, self.expert) if self.sequence else self.pieces

    @property
    def places(self) -> int:
        """The number of ranks that share a micro-batch."""
        return self.tensor.size * self.context.size * self.expert.size

    def unused(self, *used: str) -> str:
        """The first key of [parallel] that splits a model and is set, but not among `used`; empty if there is none."""
        keys = [f"{direction.name}_ranks" for direction in (self.tensor, self.context, self.expert)
                if not direction.alone]
        keys += ["sequence_parallel"] * self.sequence + ["vocabulary_parallel"] * self.vocabulary
        return next((key for key in keys if key not in used), "")


IN_ONE_PIECE = ModelParallel()
"""No ranks share a micro-batch."""


def column_input(x: Variable, parallel: ModelParallel) -> Variable:
    """x for products whose outputs are cut, on all tensor ranks."""
    if parallel.sequence:
        return gather_from(x, group=parallel.tensor, axis=SEQUENCE)
    return copy_to(x, group=parallel.tensor)


def row_output(x: Variable, parallel: ModelParallel) -> Variable:
    """The sum over the tensor ranks of products whose inputs are cut."""
    if parallel.sequence:
        return scatter_sum_to(x, group=parallel.tensor, axis=SEQUENCE)
    return reduce_from(x, group=parallel.tensor)


def of_pieces(weight: Variable, parallel: ModelParallel) -> Variable:
    """A weight that all tensor ranks have, for use on pieces of the sequence: its gradient is the sum over them."""
    return copy_to(weight, group=parallel.tensor) if parallel.sequence else weight


def on_pieces(w: Weights, group: Direction) -> Weights:
    """Weights that all ranks of a group have and use on different pieces: their gradients are sums over these ranks."""
    return {name: copy_to(weight, group=group) for name, weight in w.items()}


def attention(
    inputs: Sequence[Variable], heads: int, key_value_heads: int, parallel: ModelParallel
) -> Variable:
    """Causal attention over whole sequences, for pieces of them; of q, k and v, or of one array that has all three."""
    context, packed = parallel.context, len(inputs) == 1
    plain, ring = (causal_self_attention, ring_self_attention) if packed else (causal_attention, ring_attention)
    counts = {"heads": heads} if packed else {"heads": heads, "key_value_heads": key_value_heads}
    if context.alone:
        return plain(*inputs, **counts)
    if parallel.context_by == "ring":
        return ring(*inputs, group=context, **counts)
    of_heads = [to_heads(x, context, parts=3 if packed else 1) for x in inputs]
    return to_sequence(plain(*of_heads, **{name: context.of(count) for name, count in counts.items()}), context)


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
