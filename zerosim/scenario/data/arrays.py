"""Samples as rows of features: the shipped digits, or a user's function, .npz or .csv file.

In a CSV file one column, the last unless a scenario names another, is y: whole numbers or words are labels, other
numbers values. All other columns are x. Nothing in a table is executed, and its size is bounded.
"""

import csv
import importlib.resources
import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import ScenarioError, error_line
from zerosim.core.parts import Named
from zerosim.scenario.data.dataset import DataFault, Dataset, data_file

ALLOWED = '"digits", the path of an .npz or .csv file, or FILE.py:NAME'


def rows_of_features(settings: Any, fault: DataFault, folder: Path) -> Dataset:
    """The data set `settings.source`: the digits, a user's function, or a file in `folder`.

    Samples of any shape are flattened.

    Raises `fault`'s error, with the array and the index of the first error.
    """
    source = settings.source
    if source == "digits":
        with (importlib.resources.files("zerosim.scenario.data") / "digits.npz").open("rb") as stream:
            return dataset(scaled(read_arrays(stream, fault)), fault)
    if isinstance(source, Named):
        return dataset(given(source, dict(settings.own), fault), fault)
    with data_file(folder, source, ALLOWED, fault) as stream:
        if Path(source).suffix.lower() == ".csv":
            return dataset(with_test(csv_arrays(stream, settings.target, fault), settings.test_every), fault)
        return dataset(read_arrays(stream, fault), fault)


def with_test(arrays: dict[str, Array], every: int) -> dict[str, Array]:
    """The arrays, split into training and test: each `every`-th sample is for the test; 0 means none.

    >>> {name: array.tolist() for name, array in with_test({"x": np.arange(4), "y": np.arange(4)}, 3).items()}
    {'x': [1, 2], 'y': [1, 2], 'x_test': [0, 3], 'y_test': [0, 3]}
    """
    if not every:
        return arrays
    tests = np.arange(len(arrays["x"])) % every == 0
    trains = {name: array[~tests] for name, array in arrays.items()}
    return trains | {f"{name}_test": array[tests] for name, array in arrays.items()}


def scaled(digits: dict[str, Array]) -> dict[str, Array]:
    """The digits with pixels scaled from 0–16 to 0–1, which is exact in float32."""
    return digits | {name: digits[name] / np.float32(16) for name in ("x", "x_test")}


def dataset(arrays: dict[str, Array], fault: DataFault) -> Dataset:
    for name, array in arrays.items():
        check_samples(name, array, fault)
    for split in ("", "_test")[: len(arrays) // 2]:
        samples, answers = len(arrays[f"x{split}"]), len(arrays[f"y{split}"])
        if samples != answers:
            raise fault(f"x{split} has {samples} samples, y{split} has {answers}; they must agree")

    x, y = rows("x", arrays["x"], fault), arrays["y"]
    classes = None
    if y.dtype.kind != "f":
        check_labels("y", y, len(y), "samples", fault)
        classes = int(y.max()) + 1
    y = targets("y", y, classes, fault)
    if "x_test" not in arrays:
        return Dataset(x, y, None, None, classes)

    x_test = rows("x_test", arrays["x_test"], fault)
    y_test = targets("y_test", arrays["y_test"], classes, fault)
    for name, tested, trained in (("x_test", x_test, x), ("y_test", y_test, y)):
        if tested.shape[1:] != trained.shape[1:]:
            wanted, width = trained[0].size, tested[0].size
            raise fault(f"{name} must have {wanted} values per sample, as in training, not {width}")
    return Dataset(x, y, x_test, y_test, classes)


def check_samples(name: str, array: Array, fault: DataFault) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        dtype = getattr(array, "dtype", "no array")
        raise fault(f"{name} must hold real numbers, found {dtype}")
    if array.ndim == 0 or array.size == 0:
        raise fault(f"{name} must hold at least one sample, found shape {array.shape}")


def rows(name: str, array: Array, fault: DataFault) -> Array:
    """`array` as float32 (samples, values), all finite."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(rounded).all():
        index = first(~np.isfinite(rounded))
        element = array[index]
        reason = "is too large for float32" if np.isfinite(element) else "is not finite"
        raise fault(f"{at(name, index)} is {element}, which {reason}")
    return rounded.reshape(len(rounded), -1)


def targets(name: str, y: Array, classes: int | None, fault: DataFault) -> Array:
    if classes is None:
        if y.dtype.kind != "f" or y.ndim > 2:
            raise fault(f"{name} must be floats of shape (samples, outputs), found {described(y)}")
        return rows(name, y, fault)
    check_labels(name, y, classes, "classes", fault)
    return y.astype(np.int64)


def check_labels(name: str, y: Array, below: int, of: str, fault: DataFault) -> None:
    if y.dtype.kind == "f" or y.ndim > 1:
        raise fault(f"{name} must be integers of shape (samples,), found {described(y)}")
    wrong = (y < 0) | (y >= below)
    if wrong.any():
        index = first(wrong)
        allowed = f"with {below} {of} labels go from 0 to {below - 1}"
        raise fault(f"{at(name, index)} is {y[index]}; {allowed}")


def first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))


def at(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"


def described(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"


NAMES = ("x", "y", "x_test", "y_test")
FORM = "return x, y or x, y, x_test, y_test, as arrays, or a dict of these"


def given(name: Named, keys: dict[str, Any], fault: DataFault) -> dict[str, Array]:
    """The function's arrays by name. Raises `fault`'s error if it fails or if they change from call to call.

    Samples that change could not be resumed from a checkpoint, and would differ from rank to rank.
    """
    once, again = (called(name, keys, fault) for _ in range(2))
    for what, array in once.items():
        if again.keys() != once.keys() or array.tobytes() != again[what].tobytes():
            raise fault(f"its {what} changes from call to call; seed its random numbers, as in "
                        f"np.random.default_rng(0)")
    return once


def called(name: Named, keys: dict[str, Any], fault: DataFault) -> dict[str, Array]:
    """The arrays of one call."""
    function = name.part.function
    try:
        arrays = function(**keys)
    except Exception as error:
        raise fault(error_line(error, function)) from error
    if isinstance(arrays, tuple | list) and len(arrays) in (2, 4):
        arrays = dict(zip(NAMES, arrays, strict=False))
    if not isinstance(arrays, dict) or not set(arrays) <= set(NAMES):
        kind = f"a dict of {', '.join(map(str, arrays))}" if isinstance(arrays, dict) else f"a {type(arrays).__name__}"
        raise fault(f"it returned {kind}; {FORM}")
    for what, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise fault(f"its {what} is a {type(array).__name__}; {FORM}")
    return {what: arrays[what] for what in required(list(arrays), fault)}


def read_arrays(stream: IO[bytes], fault: DataFault) -> dict[str, Array]:
    """The arrays x, y, x_test and y_test of an .npz, by name; nothing is unpickled.

    Raises `fault`'s error if `stream` is no .npz, or is damaged.
    """
    try:
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it is one array")
        return {name: archive[name] for name in required(archive.files, fault)}
    except ScenarioError:
        raise
    except Exception as error:  # zipfile, zlib, tokenize and ast have exceptions of their own for forged files
        words = str(error).split(".")[0].split(":")[0][:100]
        raise fault(f"it cannot be read as .npz ({words}); np.savez(path, x=x, y=y) with numeric arrays writes one"
                    ) from None


def required(names: Sequence[str], fault: DataFault) -> list[str]:
    for name in ("x", "y"):
        if name not in names:
            raise fault(f"there is no array {name}, found {', '.join(names) or 'none'}")
    test = [name for name in ("x_test", "y_test") if name in names]
    if len(test) == 1:
        raise fault(f"give both x_test and y_test or neither, found {test[0]} alone")
    return ["x", "y", *test]


def csv_arrays(stream: IO[bytes], target: str, fault: DataFault) -> dict[str, Array]:
    """x and y of a CSV file in UTF-8 with column names in the first row; errors name the row and the column.

    >>> found = csv_arrays(io.BytesIO(b"height,width,kind\\n1,2,cat\\n3,4.5,dog\\n"), "", ValueError)
    >>> found["x"].tolist(), found["y"].tolist()
    ([[1.0, 2.0], [3.0, 4.5]], [0, 1])
    """
    try:
        rows = list(csv.reader(io.StringIO(stream.read().decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise fault(f"this is not a CSV in UTF-8: {error}") from None
    head, body = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    if len(head) < 2 or not body:
        raise fault("a CSV has a first row with the names of two columns or more, separated by commas, and a row for "
                    f"each sample; found {','.join(head)[:40]!r}")
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
    for name, column in zip(names, columns, strict=True):
        for row, cell in enumerate(column, start=2):
            if column is not columns[at] and not is_number(cell):
                raise fault(f"column {name!r}, row {row} is {missing(cell)}; give a number with a decimal point, "
                            "as only the target may hold words")
    words = [(row, cell) for row, cell in enumerate(columns[at], start=2) if not is_number(cell)]
    numbers = len(columns[at]) - len(words)
    for row, cell in words:
        if not cell.strip() or (numbers > len(words) and cell.strip().lower() in MISSING):
            raise fault(f"column {names[at]!r}, row {row} is {missing(cell)}; fill it in, or leave the row out")
    x = [[float(cell) for cell in column] for column in columns if column is not columns[at]]
    return {"x": np.array(x).T, "y": answers(columns[at])}


MISSING = ("na", "n/a", "null", "none", "-", "?")
"""Words for a missing number, where most targets are numbers; `nan` is refused as not finite."""


def missing(cell: str) -> str:
    """A cell that is no number, in words."""
    return "missing" if not cell.strip() else repr(cell[:40])


def is_number(cell: str) -> bool:
    """Whether a cell is a number: one that Python reads, without its underscores."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def answers(column: Sequence[str]) -> Array:
    """Numbers unchanged; words as the indices of the sorted different words.

    >>> answers(["b", "a", "b"]).tolist(), answers(["1.5", "2"]).tolist(), answers(["1", "0"]).tolist()
    ([1, 0, 1], [1.5, 2.0], [1, 0])
    """
    if not all(map(is_number, column)):
        return np.unique(np.array(column), return_inverse=True)[1].ravel().astype(np.int64)
    try:
        return np.array([int(cell) for cell in column])
    except ValueError:
        return np.array([float(cell) for cell in column])
