"""Samples from the rows of a table: a CSV file.

One column, the last unless a scenario names another, is y: whole numbers or words are labels, other numbers values.
All other columns are x. Nothing in a table is executed, and its size is bounded.
"""

import csv
import io
from collections.abc import Sequence
from typing import IO

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault

MOST_BYTES = 1 << 30
MOST_CELLS = 10**8
MISSING = ("na", "n/a", "null", "none", "?", "-")
"""Words for a missing value, in small letters."""


def csv_arrays(stream: IO[bytes], target: str, fault: DataFault) -> dict[str, Array]:
    """x and y of a CSV file in UTF-8 with column names in the first row; errors name the row and the column.

    >>> found = csv_arrays(io.BytesIO(b"height,width,kind\\n1,2,cat\\n3,4.5,dog\\n"), "", ValueError)
    >>> found["x"].tolist(), found["y"].tolist()
    ([[1.0, 2.0], [3.0, 4.5]], [0, 1])
    """
    content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise fault(f"a CSV may have {MOST_BYTES:,} bytes; give fewer rows")
    if content.count(b",") > MOST_CELLS:
        raise fault(f"a CSV may have {MOST_CELLS:,} cells; give fewer rows")
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise fault(f"this is not a CSV in UTF-8: {error}") from None
    head, body = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    if len(head) < 2 or not body:
        separator = next((each for each in ";\t|" if head and each in head[0]), "")
        mend = f"; the first row has {separator!r}: separate cells by commas" if separator else ""
        raise fault(f"a CSV has a first row with the names of two columns or more, and a row for each sample{mend}")
    if all(map(is_number, head)):
        raise fault(f"the first row is {','.join(head)[:40]!r}; put a row with the names of the columns before it")
    for number, row in enumerate(body, start=2):
        if len(row) != len(head):
            raise fault(f"row {number} has {len(row)} cells, and the first row {len(head)}; they must agree")
    return split_off(head, list(zip(*body, strict=True)), target, fault)


def split_off(
    names: Sequence[str], columns: Sequence[Sequence[str]], target: str, fault: DataFault
) -> dict[str, Array]:
    """The column `target`, or the last one, as y, and the others as x."""
    if target and list(names).count(target) > 1:
        raise fault(f"there are two columns {target!r}; rename one")
    if target and target not in names:
        raise fault(f"there is no column {target!r}; there are {', '.join(names)[:200]}")
    at = list(names).index(target) if target else len(names) - 1
    x = [numbers(name, column, fault) for place, (name, column) in enumerate(zip(names, columns, strict=True))
         if place != at]
    return {"x": np.stack(x, axis=1), "y": answers(columns[at])}


def numbers(name: str, column: Sequence[str], fault: DataFault) -> Array:
    """A column of numbers as float64."""
    found = np.empty(len(column))
    for row, cell in enumerate(column):
        try:
            found[row] = float(cell)
        except ValueError:
            raise fault(f"column {name!r}, row {row + 2} {no_number(cell)}") from None
    return found


def no_number(cell: str) -> str:
    """The reason why a cell is no number, and the remedy.

    >>> no_number("N/A"), no_number("1,5")
    ("is missing ('N/A'); fill it or delete the row", "is '1,5'; write a point before decimals: 1.5")
    """
    if not cell.strip():
        return "is empty; fill it or delete the row"
    if cell.strip().lower() in MISSING:
        return f"is missing ({cell!r}); fill it or delete the row"
    if is_number(pointed := cell.replace(",", ".", 1)):
        return f"is {cell[:40]!r}; write a point before decimals: {pointed.strip()[:40]}"
    return (f"is {cell[:40]!r}; give a number: only the target may hold words, so replace a column of categories by "
            "one of 0 and 1 for each category")


def is_number(cell: str) -> bool:
    """Whether a cell can be read as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def answers(column: Sequence[str]) -> Array:
    """Numbers unchanged; words as the indices of the sorted different words.

    >>> answers(["b", "a", "b"]).tolist(), answers(["1.5", "2"]).tolist(), answers(["1", "0"]).tolist()
    ([1, 0, 1], [1.5, 2.0], [1, 0])
    """
    try:
        return np.array([int(each) for each in column])
    except ValueError:
        pass
    try:
        return np.array([float(each) for each in column])
    except ValueError:
        return np.unique(np.array(column), return_inverse=True)[1].ravel().astype(np.int64)
