"""The schedules of a pipeline: which pass of which micro-batch a rank runs when, as a list for each rank.

    F    forward of a micro-batch through a model chunk
    B    its backward or, in a schedule that splits backward, that of the input: ∂L/∂input, which the rank before needs
    W    backward of the weights: ∂L/∂weights, which only the update needs

`pipeline.py` receives the input of a pass and sends its result on. All schedules run backward in the order of
micro-batches, so gradients add up left to right, as without a pipeline, and all have the same bits. A bubble is the
share of the time in which a rank waits, for p ranks, m micro-batches and v chunks on each rank.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import NamedTuple


class Slot(NamedTuple):
    """A pass of a micro-batch through a model chunk, as a rank runs them in a step."""

    what: str
    micro_batch: int
    chunk: int


RankSchedule = Callable[[int, int, int, int], list[Slot]]
"""`schedule(rank, ranks, micro_batches, chunks)` has all passes of a rank in a step, in order."""


def in_turn(forwards: Iterable[Slot], backwards: Iterable[Slot], ahead: int) -> list[Slot]:
    """`ahead` forwards as warm-up, then one forward and one backward in turn, then the remaining backwards.

    >>> [slot.what for slot in in_turn([Slot("F", number, 0) for number in range(3)], [Slot("B", 0, 0)] * 3, 1)]
    ['F', 'F', 'B', 'F', 'B', 'B']
    """
    all_forwards, later = [*forwards], iter(backwards)
    steady = [slot for forward in all_forwards[ahead:] for slot in (forward, next(later))]
    return [*all_forwards[:ahead], *steady, *later]


def gpipe(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Slot]:
    """All micro-batches forward, then all backward.

    Rank i of p waits i forwards at the beginning and p − 1 − i at the end of all forwards, and as long in backward: of
    m + p − 1 slots each way, p − 1 are a bubble. Every rank holds the activations of all m micro-batches.

    Source: Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism" (2019). There
    backward runs from the last micro-batch to the first.
    """
    return [Slot(what, number, 0) for what in "FB" for number in range(micro_batches)]


def one_f_one_b(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Slot]:
    """One forward for each rank after this one; then one forward and one backward in turn.

    The bubble is that of GPipe, (p − 1)/(m + p − 1). Rank i holds the activations of at most p − i micro-batches.

    Source: Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training" (2019); with a flush at the
    end of each step, so that all micro-batches use the same weights: Narayanan et al., "Efficient large-scale language
    model training on GPU clusters using Megatron-LM" (2021), section 2.2.1.
    """
    forwards, backwards = ([Slot(what, number, 0) for number in range(micro_batches)] for what in "FB")
    return in_turn(forwards, backwards, ranks - 1 - rank)


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Slot]:
    """1F1B with v chunks: p micro-batches run through a chunk before the next one. m must be a multiple of p.

    The warm-up has two forwards for each rank after this one, and p for each chunk but the last. A slot has 1/v of the
    layers, so the bubble shrinks by v: (p − 1)/(v m + p − 1). There are v p − 1 cuts instead of p − 1.

    Source: Narayanan et al. (2021), section 2.2.2.
    """
    rounds = [range(first, min(first + ranks, micro_batches)) for first in range(0, micro_batches, ranks)]
    forwards = [Slot("F", number, chunk) for some in rounds for chunk in range(chunks) for number in some]
    backwards = [Slot("B", number, chunk) for some in rounds for chunk in reversed(range(chunks)) for number in some]
    return in_turn(forwards, backwards, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)


def zero_bubble(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Slot]:
    """ZB-H1: 1F1B whose backward is split, and on rank i the weights' is that of the micro-batch i before.

    The result of B is sent before any W, so a rank waits (p − 1)(F + B − W), and not (p − 1)(F + B + W) as in 1F1B. A
    rank has at most p micro-batches between F and W. On rank i, p − i of them are before B and keep all activations, as
    in 1F1B; the others keep only inputs and ∂L/∂output of operations with weights.

    Source: Qi et al., "Zero bubble pipeline parallelism" (2023), section 2.1.
    """
    weights = [Slot("W", number, 0) for number in range(micro_batches)]
    after = {slot.micro_batch + rank: slot for slot in weights}
    split = [[slot, after.pop(slot.micro_batch, None) if slot.what == "B" else None]
             for slot in one_f_one_b(rank, ranks, micro_batches, chunks)]
    return [slot for slot in chain(*split, after.values()) if slot is not None]


SCHEDULES: Mapping[str, RankSchedule] = {
    "gpipe": gpipe, "1f1b": one_f_one_b, "interleaved_1f1b": interleaved, "zb_h1": zero_bubble}
"""The schedules by the name that scenarios use."""
