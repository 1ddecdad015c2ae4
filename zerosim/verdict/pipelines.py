"""The bubble of a pipeline and the activations that its ranks hold: measured from recorded passes, and by formula.

    p   ranks of the pipeline            m   micro-batches of a rank            v   model chunks of a rank

    schedule            a rank waits             of           micro-batches held by rank i, in chunks
    gpipe               p − 1                    m + p − 1    m
    1f1b                p − 1                    m + p − 1    p − i, at most m
    interleaved_1f1b    p − 1                    v m + p − 1  2 (p − 1 − i) + (v − 1) p + 1, at most v m
    zb_h1               p − 1, for m ≥ p         3 m + p − 1  p, at most m

The measured bubble is the idle share of all ranks if every pass takes one unit of time and messages take none: the
recorded passes of each rank, in their order, begin as soon as what they need has been computed. A backward pass takes
longer than a forward pass; in the formulas of schedules that do not split it that cancels, as bubble and work are
multiples of their sum. Split, it is two passes, and a micro-batch is held until the second. With other times of F, B
and W a rank of `zb_h1` waits (p − 1)(F + B − W), if W is at most as long as F and as B.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
sections 2.2.1 and 2.2.2; Qi et al., "Zero bubble pipeline parallelism" (2023), section 2.3, which has m ≥ p; with fewer
micro-batches a rank of `zb_h1` waits p − m longer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate

from zerosim.core.errors import ZerosimError
from zerosim.stages.schedules import Slot
from zerosim.training.config import Config

Passes = Sequence[Sequence[Slot]]
"""The passes of each rank of one pipeline in a step, in order."""


def bubble_due(ranks: int, micro_batches: int, chunks: int = 1, schedule: str = "") -> Fraction:
    """The idle share of a pipeline's ranks by formula.

    >>> bubble_due(4, 8), bubble_due(4, 8, chunks=2), bubble_due(4, 8, schedule="zb_h1")
    (Fraction(3, 11), Fraction(3, 19), Fraction(1, 9))
    """
    if schedule == "zb_h1":
        idle = ranks - 1 + max(ranks - micro_batches, 0)
        return Fraction(idle, 3 * micro_batches + idle)
    return Fraction(ranks - 1, chunks * micro_batches + ranks - 1)


def held_due(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> int:
    """The most activations of micro-batches in chunks that a rank holds at once, by formula.

    >>> [[held_due(schedule, rank, 4, 8) for rank in range(4)] for schedule in ("gpipe", "1f1b")]
    [[8, 8, 8, 8], [4, 3, 2, 1]]
    """
    after = ranks - 1 - rank
    most = {"gpipe": micro_batches, "1f1b": after + 1, "interleaved_1f1b": 2 * after + (chunks - 1) * ranks + 1,
            "zb_h1": ranks}
    return min(most[schedule], chunks * micro_batches)


def held(passes: Sequence[Slot]) -> int:
    """The most activations of micro-batches in chunks that a rank holds at once, by its passes.

    >>> held([Slot("F", 0, 0), Slot("F", 1, 0), Slot("B", 0, 0), Slot("B", 1, 0)])
    2
    """
    frees = "W" if any(slot.what == "W" for slot in passes) else "B"
    return max(accumulate((slot.what == "F") - (slot.what == frees) for slot in passes), default=0)


UNITS = {"F": 1, "B": 1, "W": 1}
"""The time of each kind of pass, unless others are given."""


@dataclass
class RankTimes:
    """The times of a rank: the beginning of each pass, and the end of the last one."""

    began: list[int] = field(default_factory=list)
    ended: int = 0
    idle: int = 0
    """Waiting for passes of other ranks: the bubble."""
    exposed: int = 0
    """Waiting for their results on the way."""
    messages: list[tuple[Slot, int, int, int]] = field(default_factory=list)
    """The passes that send their result: when it leaves and arrives, and its bytes."""


def times_of(
    passes: Passes, lasting: Callable[[int, Slot], tuple[int, int]],
    travels: Callable[[int, Slot], tuple[int, int]] = lambda rank, slot: (0, 0),
) -> list[RankTimes]:
    """The times of all ranks: a pass begins when its rank is free and what it needs has arrived.

    `lasting(rank, slot)` is the time of a pass, and of its part up to the sending of the result; `travels(rank, slot)`
    the time and the bytes of that message. Messages of a rank each way follow one another. Raises `ZerosimError` if the
    ranks wait for each other.
    """
    ranks, all_times = len(passes), [RankTimes() for _ in passes]
    sent, free = dict[tuple[str, int, int], tuple[int, int]](), Counter[tuple[int, str]]()
    last, left = max((slot.chunk for slots in passes for slot in slots), default=0) * ranks + ranks - 1, True
    while left:
        before, left = len(sent), False
        for rank, (times, slots) in enumerate(zip(all_times, passes, strict=True)):
            for slot in slots[len(times.began) :]:
                what, micro_batch, piece = slot.what, slot.micro_batch, slot.chunk * ranks + rank
                needed = {"F": ("F", piece - 1), "W": ("B", piece),
                          "B": ("B", piece + 1) if piece < last else ("F", piece)}[what]
                if needed[1] >= 0:
                    if (*needed, micro_batch) not in sent:
                        left = True
                        break
                    ended, arrives = sent[*needed, micro_batch]
                    times.idle += max(ended - times.ended, 0)
                    times.exposed += max(arrives - max(ended, times.ended), 0)
                    times.ended = max(arrives, times.ended)
                whole, part = lasting(rank, slot)
                times.began.append(times.ended)
                ended = arrives = times.ended + part
                times.ended += whole
                if (what == "F" and piece < last) or (what == "B" and piece > 0):
                    begins, (ns, count) = max(ended, free[rank, what]), travels(rank, slot)
                    arrives = free[rank, what] = begins + ns
                    times.messages.append((slot, begins, arrives, count))
                sent[what, piece, micro_batch] = ended, arrives
        if left and len(sent) == before:
            raise ZerosimError(f"the ranks of the pipeline wait for each other after {before} passes")
    return all_times


def in_lockstep(passes: Passes, lasting: Mapping[str, int] = UNITS) -> list[list[int]]:
    """The time at which each pass begins, if messages take none. Raises `ZerosimError` as `times_of` does.

    >>> in_lockstep([[Slot("F", 0, 0), Slot("B", 0, 0)], [Slot("F", 0, 0), Slot("B", 0, 0)]])
    [[0, 3], [1, 2]]
    """
    return [times.began for times in times_of(passes, lambda _, slot: (lasting[slot.what],) * 2)]


def bubble(passes: Passes, lasting: Mapping[str, int] = UNITS) -> Fraction:
    """The idle share of a pipeline's ranks by their passes."""
    length = max((times.ended for times in times_of(passes, lambda _, slot: (lasting[slot.what],) * 2)), default=0)
    busy = sum(lasting[slot.what] for slots in passes for slot in slots)
    return 1 - Fraction(busy, length * len(passes)) if length else Fraction()


BRACKETS = {"F": "{}", "B": "({})", "W": "[{}]"}


def pass_lines(passes: Passes) -> list[str]:
    """A line for each rank, a column for each unit of time: the number of the micro-batch, backward in brackets, and
    backward of the weights in square ones.

    >>> print(*pass_lines([[Slot("F", 0, 0), Slot("B", 0, 0)], [Slot("F", 0, 0), Slot("B", 0, 0)]]), sep="\\n")
     0   .   .  (0)
     .   0  (0)  .
    """
    times = in_lockstep(passes)
    length = 1 + max((begun[-1] for begun in times if begun), default=-1)
    lines = []
    for begun, slots in zip(times, passes, strict=True):
        words = {at: BRACKETS[slot.what].format(slot.micro_batch) for at, slot in zip(begun, slots, strict=True)}
        lines.append("".join(f"{words.get(at, '.'):^4}" for at in range(length)).rstrip())
    return lines


def faults(config: Config, passes: Sequence[Passes]) -> Iterator[str]:
    """The differences between the passes of each pipeline and the formulas, in words."""
    ranks, parallel = config.directions.pipeline, config.parallel
    for first, pipeline in enumerate(passes if config.steps_here else ()):
        due = bubble_due(ranks, config.block, parallel.model_chunks, parallel.schedule)
        if (measured := bubble(pipeline)) != due:
            yield f"the bubble of rank {first}'s pipeline is not the formula's: {measured}; expected {due}"
        for number, slots in enumerate(pipeline):
            most = held_due(parallel.schedule, number, ranks, config.block, parallel.model_chunks)
            if held(slots) != most:
                yield (f"activations held are not the formula's: rank {first + number * len(passes)} holds those of "
                       f"{held(slots)} micro-batches; expected {most}")
