"""Tensor and sequence parallelism in a model's code: inputs of column-parallel products, outputs of row-parallel ones.

    x -> column_input -> product whose outputs are cut -> … -> product whose inputs are cut -> row_output -> x

A pair of products needs one sum in forward and one in backward. With `sequence`, each tensor rank has a piece of the
sequence between such pairs: the sum becomes a reduce-scatter, and the next pair begins with an all-gather; together
they send the same bytes. Over one rank all functions return their input.

Sources: Shoeybi et al., "Megatron-LM" (2019), section 3; Korthikanti et al., "Reducing activation recomputation in
large transformer models" (2022), section 4.2.2.
"""

from collections.abc import Callable, Iterable

from zerosim.autograd.graph import Variable
from zerosim.autograd.operations.embedding import embedding
from zerosim.autograd.operations.routing import gather_rows
from zerosim.autograd.tape_collectives import (
    copy_to,
    gather_from,
    join_from,
    own_rows,
    own_samples,
    reduce_from,
    scatter_sum_to,
    scatter_to,
)
from zerosim.models.model_parallel import ModelParallel

SAMPLES, SEQUENCE = 0, 1
"""The dimensions of samples and of a sequence in (samples, sequence, width)."""


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


def looked_up(tokens: Variable, weight: Variable, parallel: ModelParallel) -> Variable:
    """The embeddings of this rank's share of the samples.

    With `vocabulary` each tensor rank has a piece of the rows, and gives zeros for others.
    """
    tokens = own_samples(tokens, group=parallel.expert, axis=SAMPLES)
    if not parallel.vocabulary:
        return embedding(tokens, weight)
    mine = own_rows(tokens, group=parallel.tensor, count=weight.shape[0])
    return reduce_from(gather_rows(weight, mine), group=parallel.tensor)


def head_input(
    x: Variable, norm: Callable[..., Variable], weights: Iterable[Variable], parallel: ModelParallel
) -> Variable:
    """The last norm of x, for outputs of all tokens of the vocabulary, or with `vocabulary` of this rank's."""
    if not parallel.vocabulary:
        return norm(from_pieces(x, parallel), *weights)
    return column_input(norm(x, *(of_pieces(each, parallel) for each in weights)), parallel)


def of_pieces(weight: Variable, parallel: ModelParallel) -> Variable:
    """A weight that all tensor ranks have, for use on pieces of the sequence: its gradient is the sum over them."""
    return copy_to(weight, group=parallel.tensor) if parallel.sequence else weight


def to_pieces(x: Variable, parallel: ModelParallel) -> Variable:
    """This rank's piece of the sequence of x, which all ranks have: over the context ranks, with `sequence` over the
    tensor ranks as well."""
    x = scatter_to(x, group=parallel.context, axis=SEQUENCE)
    return scatter_to(x, group=parallel.tensor, axis=SEQUENCE) if parallel.sequence else x


def from_pieces(x: Variable, parallel: ModelParallel) -> Variable:
    """The whole sequence of x, for what all tensor ranks compute alike; x itself without `sequence`."""
    return join_from(x, group=parallel.tensor, axis=SEQUENCE) if parallel.sequence else x
