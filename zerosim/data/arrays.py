"""Samples as rows of features: the shipped digits, or a user's function or file."""

import importlib.resources
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault, Dataset, regular_file
from zerosim.data.npz import read_arrays
from zerosim.data.tables import csv_arrays
from zerosim.parts import Named
from zerosim.parts.users_code import error_line

ALLOWED = '"digits", the path of an .npz or .csv file, or FILE.py:NAME'


def rows_of_features(settings: Any, fault: DataFault, folder: Path) -> Dataset:
    """The data set `settings.source`: the digits, a user's function, or a file in `folder`.

    Samples of any shape are flattened.

    Raises `fault`'s error, with the array and the index of the first error.
    """
    source = settings.source
    if source == "digits":
        with (importlib.resources.files("zerosim.data") / "digits.npz").open("rb") as stream:
            return dataset(scaled(read_arrays(stream, fault)), fault)
    if isinstance(source, Named):
        return dataset(given(source, dict(settings.own), fault), fault)
    with regular_file(folder, source, ALLOWED, fault) as stream:
        if Path(source).suffix.lower() == ".csv":
            return dataset(with_test(csv_arrays(stream, settings.target, fault), settings.test_every), fault)
        return dataset(read_arrays(stream, fault), fault)


def with_test(arrays: dict[str, Array], every: int) -> dict[str, Array]:
    """The arrays, split into training and test: each `every`-th sample is for the test; 0 means none.

    >>> {name: each.tolist() for name, each in with_test({"x": np.arange(4), "y": np.arange(4)}, 3).items()}
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
    classes = None if y.dtype.kind == "f" else count_classes(y, fault)
    y = targets("y", y, classes, fault)
    if "x_test" not in arrays:
        return Dataset(x, y, None, None, classes)

    x_test = rows("x_test", arrays["x_test"], fault)
    y_test = targets("y_test", arrays["y_test"], classes, fault)
    for name, found, trained in (("x_test", x_test, x), ("y_test", y_test, y)):
        if found.shape[1:] != trained.shape[1:]:
            wanted, width = trained[0].size, found[0].size
            raise fault(f"{name} must have {wanted} values per sample, as in training, not {width}")
    return Dataset(x, y, x_test, y_test, classes)


def check_samples(name: str, array: Array, fault: DataFault) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        found = getattr(array, "dtype", "no array")
        raise fault(f"{name} must hold real numbers, found {found}")
    if array.ndim == 0 or array.size == 0:
        raise fault(f"{name} must hold at least one sample, found shape {array.shape}")


def rows(name: str, array: Array, fault: DataFault) -> Array:
    """`array` as float32 (samples, values), all finite."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(rounded).all():
        index = first(~np.isfinite(rounded))
        found = array[index]
        reason = "is too large for float32" if np.isfinite(found) else "is not finite"
        raise fault(f"{at(name, index)} is {found}, which {reason}")
    return rounded.reshape(len(rounded), -1)


def count_classes(y: Array, fault: DataFault) -> int:
    """The largest label plus one; labels must be below the number of samples."""
    check_labels("y", y, len(y), "samples", fault)
    return int(y.max()) + 1


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
        found = function(**keys)
    except Exception as error:
        raise fault(error_line(error, function)) from error
    if isinstance(found, tuple | list) and len(found) in (2, 4):
        found = dict(zip(NAMES, found, strict=False))
    if not isinstance(found, dict) or not {"x", "y"} <= set(found) <= set(NAMES):
        said = f"a dict of {', '.join(map(str, found))}" if isinstance(found, dict) else f"a {type(found).__name__}"
        if isinstance(found, tuple | list):
            said += f" of {len(found)}"
        raise fault(f"it returned {said}; {FORM}")
    if len(found) == 3:
        raise fault(f"it returned {', '.join(found)}; x_test and y_test come together")
    wrong = next((what for what, array in found.items() if not isinstance(array, np.ndarray)), None)
    if wrong is not None:
        raise fault(f"its {wrong} is a {type(found[wrong]).__name__}; {FORM}")
    return {what: found[what] for what in NAMES if what in found}
