"""Samples as rows of features: the shipped digits, or a user's function or .npz file."""

import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError, error_line
from zerosim.core.parts import Named
from zerosim.scenario.data.dataset import Dataset, data_file

ALLOWED = '"digits", the path of an .npz file, or FILE.py:NAME'


def rows_of_features(settings: Any, folder: Path) -> Dataset:
    """The data set `settings.source`: the digits, a user's function, or a file in `folder`.

    Samples of any shape are flattened; the digits' pixels are scaled from 0–16 to 0–1, which is exact in float32.

    Raises `UsageError`, with the array and the index of the first error.
    """
    source = settings.source
    if source == "digits":
        with (importlib.resources.files("zerosim.scenario.data") / "digits.npz").open("rb") as stream:
            digits = read_arrays(stream)
        return dataset(digits | {name: digits[name] / np.float32(16) for name in ("x", "x_test")})
    if isinstance(source, Named):
        return dataset(given(source, dict(settings.own)))
    with data_file(folder, source, ALLOWED) as stream:
        return dataset(read_arrays(stream))


def dataset(arrays: dict[str, Array]) -> Dataset:
    """The data set of x, y and, if there is a test split, x_test and y_test; integer y are labels, float y values."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise UsageError(f"{name} must hold real numbers, found {getattr(array, 'dtype', 'no array')}")
        if array.ndim == 0 or array.size == 0:
            raise UsageError(f"{name} must hold at least one sample, found shape {array.shape}")
    for split in ("", "_test")[: len(arrays) // 2]:
        samples, answers = len(arrays[f"x{split}"]), len(arrays[f"y{split}"])
        if samples != answers:
            raise UsageError(f"x{split} has {samples} samples, y{split} has {answers}; they must agree")

    y, classes = arrays["y"], None
    if y.dtype.kind != "f":
        classes = int(labels("y", y, len(y), "samples").max()) + 1
    made = {}
    for name, array in arrays.items():
        if name.startswith("y") and classes is None and (array.dtype.kind != "f" or array.ndim > 2):
            raise UsageError(
                f"{name} must be floats of shape (samples, outputs), found {array.dtype} of shape {array.shape}")
        made[name] = rows(name, array) if name.startswith("x") or classes is None else labels(
            name, array, classes, "classes")
    for name in [*made][2:]:
        tested, trained = made[name], made[name.removesuffix("_test")]
        if tested.shape[1:] != trained.shape[1:]:
            raise UsageError(f"{name} must have {trained[0].size} values per sample, as in training, not "
                             f"{tested[0].size}")
    return Dataset(made["x"], made["y"], made.get("x_test"), made.get("y_test"), classes)


def rows(name: str, array: Array) -> Array:
    """`array` as float32 (samples, values), all finite."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(rounded).all():
        index = first(~np.isfinite(rounded))
        reason = "is too large for float32" if np.isfinite(array[index]) else "is not finite"
        raise UsageError(f"{name}{[*index]} is {array[index]}, which {reason}")
    return rounded.reshape(len(rounded), -1)


def labels(name: str, y: Array, below: int, of: str) -> Array:
    """`y` as int64, from 0 to `below` − 1."""
    if y.dtype.kind == "f" or y.ndim > 1:
        raise UsageError(f"{name} must be integers of shape (samples,), found {y.dtype} of shape {y.shape}")
    wrong = (y < 0) | (y >= below)
    if wrong.any():
        index = first(wrong)
        raise UsageError(f"{name}{[*index]} is {y[index]}; with {below} {of} labels go from 0 to {below - 1}")
    return y.astype(np.int64)


def first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))


NAMES = ("x", "y", "x_test", "y_test")
FORM = "return x, y or x, y, x_test, y_test, as arrays, or a dict of these"


def given(name: Named, keys: dict[str, Any]) -> dict[str, Array]:
    """The function's arrays by name. Raises `UsageError` if it fails or if they change from call to call.

    Samples that change could not be resumed from a checkpoint, and would differ from rank to rank.
    """
    once, again = (called(name, keys) for _ in range(2))
    for what, array in once.items():
        if again.keys() != once.keys() or array.tobytes() != again[what].tobytes():
            raise UsageError(f"its {what} changes from call to call; seed its random numbers, as in "
                             f"np.random.default_rng(0)")
    return once


def called(name: Named, keys: dict[str, Any]) -> dict[str, Array]:
    """The arrays of one call."""
    function = name.part.function
    try:
        arrays = function(**keys)
    except Exception as error:
        raise UsageError(error_line(error, function)) from error
    if isinstance(arrays, tuple | list) and len(arrays) in (2, 4):
        arrays = dict(zip(NAMES, arrays, strict=False))
    if not isinstance(arrays, dict) or not set(arrays) <= set(NAMES):
        kind = f"a dict of {', '.join(map(str, arrays))}" if isinstance(arrays, dict) else f"a {type(arrays).__name__}"
        raise UsageError(f"it returned {kind}; {FORM}")
    for what, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UsageError(f"its {what} is a {type(array).__name__}; {FORM}")
    return {what: arrays[what] for what in required(list(arrays))}


def read_arrays(stream: IO[bytes]) -> dict[str, Array]:
    """The arrays x, y, x_test and y_test of an .npz, by name; nothing is unpickled.

    Raises `UsageError` if `stream` is no .npz, or is damaged.
    """
    try:
        archive = np.lib.npyio.NpzFile(stream, allow_pickle=False)
        return {name: archive[name] for name in required(archive.files)}
    except UsageError:
        raise
    except Exception as error:  # zipfile, zlib, tokenize and ast have exceptions of their own for forged files
        words = str(error).split(".")[0].split(":")[0][:100]
        raise UsageError(f"it cannot be read as .npz ({words}); np.savez(path, x=x, y=y) with numeric arrays writes "
                         "one, and FILE.py:NAME is a function that reads other files") from None


def required(names: Sequence[str]) -> list[str]:
    for name in ("x", "y"):
        if name not in names:
            raise UsageError(f"there is no array {name}, found {', '.join(names) or 'none'}")
    test = [name for name in ("x_test", "y_test") if name in names]
    if len(test) == 1:
        raise UsageError(f"give both x_test and y_test or neither, found {test[0]} alone")
    return ["x", "y", *test]
