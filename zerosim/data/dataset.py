"""The samples a scenario trains on, as arrays ready to use, and in which order steps take them."""

import importlib.resources
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.errors import ScenarioError
from zerosim.scenario.rules import shown
from zerosim.scenario.schema import Scenario

Fault = Callable[[str], ScenarioError]

SOURCE = ("data", "source")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in rows, C-contiguous; the test split is there as a whole or not at all.

        x, x_test   float32 (samples, inputs)
        y, y_test   int64 (samples,), labels below `classes`;
                    for regression float32 (samples, outputs), and `classes` is None
    """

    x: Array
    y: Array
    x_test: Array | None
    y_test: Array | None
    classes: int | None

    @property
    def arrays(self) -> list[Array]:
        """All that there are."""
        return [array for array in (self.x, self.y, self.x_test, self.y_test) if array is not None]

    @property
    def inputs(self) -> int:
        return int(self.x.shape[1])

    @property
    def outputs(self) -> int:
        return self.classes or int(self.y.shape[1])

    @property
    def loss(self) -> Literal["cross_entropy", "mean_squared_error"]:
        return "cross_entropy" if self.classes else "mean_squared_error"


def load_dataset(scenario: Scenario) -> Dataset:
    """What `data.source` names: "digits", or an .npz with x, y and perhaps x_test, y_test.

    Samples of any shape are flattened. Integer y are labels, and the largest says how many classes
    there are; float y of shape (samples,) or (samples, outputs) are for regression. Raises
    `ScenarioError`, which blames `data.source` and names the array and the first index at fault.

    >>> digits = load_dataset(Scenario())
    >>> digits.x.shape, digits.outputs, digits.loss
    ((1438, 64), 10, 'cross_entropy')
    """
    source = scenario.data.source

    def fault(message: str) -> ScenarioError:
        return scenario.origin.error(f"data.source {shown(source)}: {message}", SOURCE)

    if source == "digits":
        with (importlib.resources.files("zerosim.data") / "digits.npz").open("rb") as stream:
            return dataset(scaled(read_arrays(stream, fault)), fault)
    if "\0" in source:
        raise fault("a path has no NUL byte in it")
    try:
        with open(scenario.origin.folder(SOURCE) / source, "rb") as stream:
            return dataset(read_arrays(stream, fault), fault)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise fault(f'{reason}; it must be "digits" or the path of an .npz file') from None


def scaled(digits: dict[str, Array]) -> dict[str, Array]:
    """The digits with their pixels, 0 to 16, brought to 0 to 1; in float32 this is exact."""
    return digits | {name: digits[name] / np.float32(16) for name in ("x", "x_test")}


def read_arrays(stream: IO[bytes], fault: Fault) -> dict[str, Array]:
    """Those of x, y, x_test and y_test that an .npz has."""
    if not zipfile.is_zipfile(stream):
        raise fault("this is not an .npz file; np.savez(path, x=x, y=y) writes one")
    stream.seek(0)
    try:
        with np.load(stream, allow_pickle=False) as npz:
            return {name: npz[name] for name in required(npz.files, fault)}
    except BROKEN as error:
        raise fault(f"this .npz cannot be read: {' '.join(str(error).split())}") from None


BROKEN = (ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def required(names: list[str], fault: Fault) -> list[str]:
    for name in ("x", "y"):
        if name not in names:
            raise fault(f"there is no array {name}, found {', '.join(names) or 'none'}")
    test = [name for name in ("x_test", "y_test") if name in names]
    if len(test) == 1:
        raise fault(f"x_test and y_test come together, found {test[0]} alone")
    return ["x", "y", *test]


def dataset(arrays: dict[str, Array], fault: Fault) -> Dataset:
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


def check_samples(name: str, array: Array, fault: Fault) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        found = getattr(array, "dtype", "no array")
        raise fault(f"{name} must hold real numbers, found {found}")
    if array.ndim == 0 or array.size == 0:
        raise fault(f"{name} must hold at least one sample, found shape {array.shape}")


def rows(name: str, array: Array, fault: Fault) -> Array:
    """`array` as float32 (samples, values), all finite."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(rounded).all():
        index = first(~np.isfinite(rounded))
        found = array[index]
        reason = "is too large for float32" if np.isfinite(found) else "is not finite"
        raise fault(f"{at(name, index)} is {found}, which {reason}")
    return rounded.reshape(len(rounded), -1)


def count_classes(y: Array, fault: Fault) -> int:
    """One more than the largest label, which no label as large as the number of samples can be."""
    check_labels("y", y, len(y), "samples", fault)
    return int(y.max()) + 1


def targets(name: str, y: Array, classes: int | None, fault: Fault) -> Array:
    if classes is None:
        if y.dtype.kind != "f" or y.ndim > 2:
            raise fault(f"{name} must be floats of shape (samples, outputs), found {described(y)}")
        return rows(name, y, fault)
    check_labels(name, y, classes, "classes", fault)
    return y.astype(np.int64)


def check_labels(name: str, y: Array, below: int, of: str, fault: Fault) -> None:
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


def sample_order(samples: int, step: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Which samples step `step` takes: `count` indices below `samples`, in order.

    Steps read on in one endless stream: a permutation of all samples for epoch 0, another one for
    epoch 1, …, each drawn by NumPy's default generator from (seed, epoch). A step may begin in one
    epoch and end in a later one.

    >>> sorted(sample_order(6, 0, 3, seed=7).tolist() + sample_order(6, 1, 3, seed=7).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    epoch, start = divmod(step * count, samples)
    epochs = range(epoch, epoch + -(-(start + count) // samples))
    stream = [np.random.default_rng([seed, each]).permutation(samples) for each in epochs]
    return np.concatenate(stream)[start : start + count]
