"""What PyTorch and zerosim are both asked of functions: losses and whole models.

An answer is a dictionary of arrays: the logits, the loss, and the gradient of each input or parameter, named
as its owner names it. `told` makes of each at most `KEPT` numbers: itself, or its products with fixed arrays of
signs, which every element moves. Nothing here knows zerosim or PyTorch.

    exact      the answers in float64
    distance   of each array of numbers of a different precision from the exact one: root mean square
    typical    a model's distances together, relative to its numbers: root mean square

Whoever computes in float32, or keeps 16 bits, is as near to the exact answer as its roundings let it. So zerosim must
be nearly as near to PyTorch's float64 as PyTorch itself, which rounds as often in other places and orders: at most
`AS_FAR` times as far, where an array's own distance may be small by luck, so that the typical one is permitted besides.
Perceptrons in 16 bits are rounded in the same places by both: their answers may be `ALIKE` times that distance apart.
"""

import os
import zlib
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import ClassVar

import numpy as np

RECORDED = Path(__file__).parent
ANSWERS = Path(os.environ.get("TORCH_ANSWERS", RECORDED))
"""The folder of the answers that zerosim's are held against."""
FILE = "torch_functions.npz"
KEPT = 32
AS_FAR = 3.0
ALIKE = 0.5
FORMULA = 1e-12
"""How far two float64 answers may be apart, relative to the numbers."""
NARROW = ("bfloat16", "float16")
PRECISIONS = ("float32", *NARROW)
UNCOUNTED = -1


def random_of(label):
    """A stream that NumPy has frozen, for whatever bears this label."""
    return np.random.RandomState(zlib.crc32(label.encode()))


def normals(label, shape):
    return random_of(label).standard_normal(shape).astype(np.float32)


def told(label, array):
    """At most `KEPT` numbers that tell of all elements, in float64."""
    flat = np.asarray(array, np.float64).ravel()
    if flat.size <= KEPT:
        return flat
    return random_of(label).choice([-1.0, 1.0], (KEPT, flat.size)) @ flat


@dataclass(frozen=True)
class Judged:
    """A loss of outputs of this shape, as the only part of its batch."""

    loss: str
    shape: tuple[int, ...]
    uncounted: int = 0
    """Places of each sequence, the first ones, that are not judged."""

    @property
    def name(self):
        return f"{self.loss} {self.shape} {self.uncounted}"

    def outputs(self):
        return 2 * normals(f"{self.name} outputs", self.shape)

    def targets(self):
        """Classes, −1 where they do not count, or numbers."""
        if self.loss == "mean_squared_error":
            return normals(f"{self.name} targets", self.shape)
        classes = random_of(self.name).randint(self.shape[-1], size=self.shape[:-1])
        classes[:, : self.uncounted] = UNCOUNTED
        return classes


JUDGED = [
    Judged("mean_squared_error", (9, 4)),
    Judged("cross_entropy", (9, 1, 7)), Judged("cross_entropy", (3, 8, 13)), Judged("cross_entropy", (3, 8, 13), 5),
]


@dataclass(frozen=True)
class Perceptron:
    """Linear maps with an activation between them, a loss, and a batch."""

    widths: tuple[int, ...]
    activation: str
    loss: str
    samples: int = 9

    @property
    def name(self):
        return f"{'-'.join(map(str, self.widths))} {self.activation} {self.loss}"

    def parameter(self, name, shape):
        """The numbers of a parameter, by which values keep their size from layer to layer."""
        return normals(f"{self.name} {name}", shape) * np.float32(1 / np.sqrt(shape[-1]))

    def batch(self):
        """Inputs, and classes or numbers."""
        inputs, outputs = self.widths[0], self.widths[-1]
        x = normals(f"{self.name} x", (self.samples, inputs))
        if self.loss == "mean_squared_error":
            return x, normals(f"{self.name} targets", (self.samples, outputs))
        return x, random_of(self.name).randint(outputs, size=self.samples)


PERCEPTRONS = [
    Perceptron(widths, activation, loss)
    for widths in ((5, 7, 3), (33, 19, 11, 4), (3, 17, 9, 13, 2))
    for activation in ("relu", "tanh", "gelu")
    for loss in ("cross_entropy", "mean_squared_error")
]


@dataclass(frozen=True)
class Language:
    """A transformer, and a batch of sequences with the tokens that follow."""

    loss: ClassVar[str] = "cross_entropy"
    family: str
    layers: int
    width: int
    heads: int
    key_value_heads: int
    inner: int
    vocabulary: int
    sequence: int
    tied_embeddings: bool
    samples: int = 3
    uncounted: int = 0

    @property
    def name(self):
        return " ".join(map(str, vars(self).values()))

    def parameter(self, name, shape):
        """The numbers of a parameter, large enough that each matters: norms about 1, matrices of no small gain."""
        numbers = normals(f"{self.name} {name}", shape)
        if len(shape) == 1:
            return np.float32(0.2) * numbers + np.float32(name.endswith("weight"))
        return numbers * np.float32(1.5 / np.sqrt(self.width))

    def batch(self):
        """Tokens and what is to be predicted: (samples, sequence)."""
        tokens = random_of(self.name).randint(self.vocabulary, size=(self.samples, self.sequence + 1))
        targets = tokens[:, 1:].copy()
        targets[:, : self.uncounted] = UNCOUNTED
        return tokens[:, :-1].copy(), targets


LANGUAGES = [
    Language("gpt2", 1, 6, 1, 1, 24, 5, 3, tied_embeddings=True),
    Language("gpt2", 2, 15, 3, 3, 23, 11, 7, tied_embeddings=False, uncounted=3),
    Language("gpt2", 3, 40, 5, 5, 160, 67, 33, tied_embeddings=True),
    Language("llama", 1, 6, 3, 1, 10, 5, 4, tied_embeddings=False),
    Language("llama", 2, 18, 3, 3, 25, 11, 7, tied_embeddings=True, uncounted=2),
    Language("llama", 3, 48, 6, 2, 70, 67, 33, tied_embeddings=False),
    Language("llama", 2, 40, 4, 1, 31, 29, 17, tied_embeddings=True),
]


PERCEPTRON_NAMES = {case.name for case in PERCEPTRONS}
MODELS = [*PERCEPTRONS, *LANGUAGES]
TRAINED = [each for each in LANGUAGES if each.vocabulary > 65]
"""Those that have room for the characters of a text."""


# Answers, stored and compared.


def in_numbers(answers):
    """{case: {array: array}} as {case: {array: at most `KEPT` numbers}}."""
    return {
        case: {name: told(f"{case} {name}", array) for name, array in arrays.items()}
        for case, arrays in answers.items()
    }


def distance(found, exact):
    return float(np.sqrt(np.mean(np.square(found - exact))))


def stored(exact, others):
    """What the file holds: names of cases and arrays, all exact numbers, and of each precision all distances.

    Besides, of perceptrons in 16 bits, the numbers.
    """
    pairs = [(case, name) for case, arrays in exact.items() for name in arrays]
    answers = {"names": np.array(["|".join(pair) for pair in pairs])}
    answers["lengths"] = np.array([len(exact[case][name]) for case, name in pairs], np.int16)
    answers["exact"] = np.concatenate([exact[case][name] for case, name in pairs])
    for precision, found in others.items():
        distances = [distance(found[case][name], exact[case][name]) for case, name in pairs]
        answers[precision] = np.array(distances, np.float32)
    for precision in NARROW:
        numbers = [others[precision][case][name] for case, name in pairs if case in PERCEPTRON_NAMES]
        answers[f"{precision} numbers"] = np.concatenate(numbers).astype(np.float32)
    return answers


@dataclass(frozen=True)
class Recorded:
    """What PyTorch answered: exact numbers by case and array, and of each precision how far it was from them.

    `numbers`: of 16 bits the answers themselves, for perceptrons.
    """

    exact: dict[str, dict[str, np.ndarray]]
    distances: dict[str, dict[str, dict[str, float]]]
    numbers: dict[str, dict[str, dict[str, np.ndarray]]]


def read(folder=ANSWERS):
    with np.load(folder / FILE) as file:
        kept = dict(file)
    pairs, lengths = [name.split("|") for name in kept["names"].tolist()], kept["lengths"]
    alike = [pair[0] in PERCEPTRON_NAMES for pair in pairs]
    return Recorded(
        nested(pairs, parted(kept["exact"], lengths)),
        {precision: nested(pairs, kept[precision].tolist()) for precision in PRECISIONS},
        {precision: nested(compress(pairs, alike), parted(kept[f"{precision} numbers"], lengths[alike]))
         for precision in NARROW},
    )


def parted(numbers, lengths):
    return np.split(numbers, np.cumsum(lengths)[:-1])


def nested(pairs, values):
    found = {}
    for (case, name), value in zip(pairs, values, strict=True):
        found.setdefault(case, {})[name] = value
    return found


def size(numbers):
    return distance(numbers, 0.0)


def typical(distances, exact):
    """Relative to the numbers, over the arrays of a case."""
    ratios = [distances[name] / size(numbers) for name, numbers in exact.items() if size(numbers) > 0]
    return float(np.sqrt(np.mean(np.square(ratios))))


def disagreements(precision, found, recorded):
    """{"case|array": how many times as far from PyTorch's answer as is permitted}, where it is more than once."""
    wrong = {}
    for case, exact in recorded.exact.items():
        if set(found[case]) != set(exact):
            wrong[case] = np.inf
            continue
        for name, numbers in exact.items():
            due, permitted = numbers, FORMULA * size(numbers) + 1e-300
            if precision != "float64":
                own = recorded.distances[precision][case]
                alike = recorded.numbers.get(precision, {}).get(case)
                due = alike[name] if alike else numbers
                permitted += (ALIKE if alike else AS_FAR) * max(own[name], typical(own, exact) * size(numbers))
            ratio = distance(found[case][name], due) / permitted
            if not ratio <= 1.0:
                wrong[f"{case}|{name}"] = ratio
    return wrong
