"""The bubble of a pipeline and the activations that its ranks hold: measured from recorded passes, and by formula.

    p   ranks of the pipeline            m   micro-batches of a rank            v   model chunks of a rank

    schedule            bubble                   micro-batches held by rank i, in chunks
    gpipe               (p − 1)/(m + p − 1)      m
    1f1b                (p − 1)/(m + p − 1)      p − i, at most m
    interleaved_1f1b    (p − 1)/(v m + p − 1)    2 (p − 1 − i) + (v − 1) p + 1, at most v m

The measured bubble is the idle share of all ranks if every pass takes one unit of time and messages take none: the
recorded passes of each rank, in their order, begin as soon as what they need has been computed. A backward pass takes
longer than a forward pass; in the source's formulas that cancels, as bubble and work are multiples of their sum.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
sections 2.2.1 and 2.2.2.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate

from zerosim.errors import ZerosimError
from zerosim.stages.pipeline import Slot
from zerosim.training.config import Config

Passes = Sequence[Sequence[Slot]]
"""The passes of each rank of one pipeline in a step, in order."""


def bubble_due(ranks: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """The idle share of a pipeline's ranks by formula.

    >>> bubble_due(4, 8), bubble_due(4, 8, chunks=2)
    (Fraction(3, 11), Fraction(3, 19))
    """
    return Fraction(ranks - 1, chunks * micro_batches + ranks - 1)


def held_due(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> int:
    """The most activations of micro-batches in chunks that a rank holds at once, by formula.

    >>> [[held_due(schedule, rank, 4, 8) for rank in range(4)] for schedule in ("gpipe", "1f1b")]
    [[8, 8, 8, 8], [4, 3, 2, 1]]
    """
    after = ranks - 1 - rank
    most = {"gpipe": micro_batches, "1f1b": after + 1, "interleaved_1f1b": 2 * after + (chunks - 1) * ranks + 1}
    return min(most[schedule], chunks * micro_batches)


def held(passes: Sequence[Slot]) -> int:
    """The most activations of micro-batches in chunks that a rank holds at once, by its passes.

    >>> held([Slot("F", 0, 0), Slot("F", 1, 0), Slot("B", 0, 0), Slot("B", 1, 0)])
    2
    """
    return max(accumulate(1 if each.what == "F" else -1 for each in passes), default=0)


def in_lockstep(passes: Passes) -> list[list[int]]:
    """The time at which each pass begins. Raises `ZerosimError` if the ranks wait for each other.

    >>> in_lockstep([[Slot("F", 0, 0), Slot("B", 0, 0)], [Slot("F", 0, 0), Slot("B", 0, 0)]])
    [[0, 3], [1, 2]]
    """
    ranks, ends = len(passes), dict[tuple[str, int, int], int]()
    last = max((each.chunk for mine in passes for each in mine), default=0) * ranks + ranks - 1
    found: list[list[int]] = [[] for _ in passes]
    while any(len(begun) < len(mine) for begun, mine in zip(found, passes, strict=True)):
        before = len(ends)
        for rank, (begun, mine) in enumerate(zip(found, passes, strict=True)):
            for what, micro_batch, chunk in mine[len(begun) :]:
                piece = chunk * ranks + rank
                other = piece - 1 if what == "F" else piece + 1
                needed = ("F", micro_batch, piece) if what == "B" and piece == last else (what, micro_batch, other)
                if other >= 0 and needed not in ends:
                    break
                begun.append(max(begun[-1] + 1 if begun else 0, ends.get(needed, 0)))
                ends[what, micro_batch, piece] = begun[-1] + 1
        if len(ends) == before:
            raise ZerosimError(f"the ranks of the pipeline wait for each other after {before} passes")
    return found


def bubble(passes: Passes) -> Fraction:
    """The idle share of a pipeline's ranks by their passes."""
    slots = sum(map(len, passes))
    length = 1 + max((begun[-1] for begun in in_lockstep(passes) if begun), default=-1)
    return 1 - Fraction(slots, length * len(passes)) if length else Fraction()


def pass_lines(passes: Passes) -> list[str]:
    """A line for each rank, a column for each unit of time: the number of the micro-batch, backward in brackets.

    >>> print(*pass_lines([[Slot("F", 0, 0), Slot("B", 0, 0)], [Slot("F", 0, 0), Slot("B", 0, 0)]]), sep="\\n")
     0   .   .  (0)
     .   0  (0)  .
    """
    times = in_lockstep(passes)
    length = 1 + max((begun[-1] for begun in times if begun), default=-1)
    lines = []
    for begun, mine in zip(times, passes, strict=True):
        words = {at: f"({each.micro_batch})" if each.what == "B" else f"{each.micro_batch}"
                 for at, each in zip(begun, mine, strict=True)}
        lines.append("".join(f"{words.get(at, '.'):^4}" for at in range(length)).rstrip())
    return lines


def faults(config: Config, passes: Sequence[Passes]) -> Iterator[str]:
    """The differences between the passes of each pipeline and the formulas, in words."""
    ranks, parallel = config.directions.pipeline, config.row.parallel
    for first, mine in enumerate(passes if config.steps_here else ()):
        due = bubble_due(ranks, config.block, parallel.model_chunks)
        if (found := bubble(mine)) != due:
            yield f"the bubble of rank {first}'s pipeline is not the formula's: {found}; expected {due}"
        for number, each in enumerate(mine):
            most = held_due(parallel.schedule, number, ranks, config.block, parallel.model_chunks)
            if held(each) != most:
                yield (f"activations held are not the formula's: rank {first + number * len(passes)} holds those of "
                       f"{held(each)} micro-batches; expected {most}")
