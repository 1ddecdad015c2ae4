"""What two runs of one training must have in common, as a rank records it. PyTorch is not needed to read it.

A matrix W has two projections: W·v has a number for each row, vᵀ·W one for each column, with pseudo-random factors v
that depend only on the position within a row, or within a column. Rows of W have the numbers of these rows, whoever
holds them and in whatever order; columns those of these columns. Where ranks are known to hold blocks or ranges of one
tensor, their contributions to its projections add up. An output has a number for each token, a row of its last axis.
"""

from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from zerosim.core.errors import UsageError
from zerosim.torch.check.record import Array, Key


@dataclass
class Entry:
    """Numbers of one tensor on one rank: `rows` of a matrix, tokens of an output, or values; `columns` of a matrix.

    `kind` is "input", "output", "loss", "output gradient", "weight", "gradient", "clipped", "norm", "updated"
    or, where a model draws random numbers, "random"; a file begins with "ranks", whose `shape` is their number, and
    ends with "end".
    """

    kind: str
    step: int
    name: str
    module: str = ""
    """The class of a module."""
    call: int = 0
    """Which of the step's calls of this module."""
    line: str = ""
    shape: tuple[int, ...] = ()
    """The shape of the whole tensor, of which this rank has `place`: a block, or a range of its flat elements."""
    place: Key = ()
    group: list[int] = field(default_factory=list)
    """The ranks that hold the tensor together."""
    aliases: list[str] = field(default_factory=list)
    """Further names of a tied parameter."""
    roundoff: float = 0.0
    added: bool = False
    """Whether the tensor is the sum of what its ranks have at this place."""
    rows: Array = field(default_factory=lambda: np.zeros(0))
    columns: Array = field(default_factory=lambda: np.zeros(0))


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns of a tensor as a matrix: the first axis, and all others.

    >>> matrix((4, 3, 2)), matrix((5,)), matrix(())
    ((4, 6), (5, 1), (1, 1))
    """
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def is_range(shape: tuple[int, ...], place: Key) -> bool:
    """Whether a part is a range of the flat tensor and no block of it."""
    return len(place) == 1 and len(shape) > 1


def span(shape: tuple[int, ...], place: Key) -> tuple[int, int, Array]:
    """The first row of a part, the row behind its last, and the positions of its columns in the whole matrix.

    >>> span((4, 3), ((1, 3), (0, 2)))
    (1, 3, array([0, 1]))
    >>> span((4, 3), ((2, 7),))
    (0, 3, array([0, 1, 2]))
    """
    rows, width = matrix(shape)
    if is_range(shape, place):
        (first, last), every = place[0], np.arange(width)
        return first // max(1, width), -(-last // max(1, width)), every
    if not place:
        return 0, rows, np.arange(width)
    columns = np.arange(width).reshape(shape[1:] or (1,))
    block = columns[tuple(slice(*bounds) for bounds in place[1:])] if len(shape) > 1 else columns
    return place[0][0], place[0][1], block.reshape(-1)


def write(entries: list[Entry], file: BinaryIO) -> None:
    """Append entries to a rank's file."""
    for entry in entries:
        packed = msgspec.msgpack.encode(entry, enc_hook=lambda array: array.astype("<f8").tobytes())
        file.write(len(packed).to_bytes(8, "little") + packed)
    file.flush()


def read(folder: Path) -> list[list[Entry]]:
    """The entries of each rank; empty if no records are there. Raises `UsageError` if one is cut or of another kind."""
    decoder, ranks = msgspec.msgpack.Decoder(Entry, dec_hook=lambda _, packed: np.frombuffer(packed, "<f8")), []
    for file in sorted(folder.glob("rank*.same")):
        content, at, entries = file.read_bytes(), 0, list[Entry]()
        try:
            while at < len(content):
                start, at = at + 8, at + 8 + int.from_bytes(content[at : at + 8], "little")
                entries.append(decoder.decode(content[start:at]))
        except (msgspec.MsgspecError, ValueError):
            entries = []
        if not entries or entries[-1].kind != "end":
            raise UsageError(f"{file} is cut: the run was stopped, or is still on; record it again")
        ranks.append(entries[:-1])
    return ranks
