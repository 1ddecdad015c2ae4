"""Loading of a scenario's data set, and sequences of tokens.

A text has one token per character, and samples are windows of it. Generated tasks are sequences with one right answer:
digits, then the same digits sorted or reversed.
"""

import importlib.resources
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError
from zerosim.core.parts import Named
from zerosim.models import MODELS
from zerosim.scenario.data.arrays import given, rows_of_features
from zerosim.scenario.data.dataset import OTHER, Dataset, data_file
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Data

TASKS: dict[str, Callable[[Array], Array]] = {
    "sort": lambda digits: np.sort(digits, axis=1),
    "reverse": lambda digits: digits[:, ::-1],
}
"""The answers to digits (samples, n), row by row."""

TRAIN, TEST = 20_000, 1_000
DRAWN = 2 * (TRAIN + TEST)
LONGEST = 2048

SOURCE = ("data", "source")
SEQUENCE_OF_A_TEXT = 64
SEQUENCE_OF_A_TASK = 15


def load_dataset(scenario: Scenario) -> Dataset:
    """The data set of `data.source`: rows of features, or sequences of tokens for a transformer.

    The source is "digits", a user's file, folder or function, or for tokens "text", a task, a user's text file or
    function. Samples of any shape are flattened. Integer y are labels, and the largest label determines the number of
    classes; float y of shape (samples,) or (samples, outputs) are for regression. Raises `ScenarioError` at
    `data.source`, with the array and the index of the first error.

    >>> digits = load_dataset(Scenario())
    >>> digits.x.shape, digits.outputs, digits.loss
    ((1438, 64), 10, 'cross_entropy')
    """
    origin, model, source = scenario.origin, scenario.model, scenario.data.source
    tokens, folder, vocabulary = MODELS[model.kind].reads_tokens, origin.folder(SOURCE), model.vocabulary or None
    if tokens and vocabulary == 1:
        raise origin.error("model.vocabulary must be 0, the data's, or at least 2, found 1", ("model", "vocabulary"))
    if tokens and scenario.data == Data():
        planned = ", so it is for zerosim plan" if vocabulary and model.sequence else (
            ", and a plan without them needs model.vocabulary and model.sequence")
        raise origin.error(f"this scenario names no data of tokens{planned}; to run it, set data.source to {ALLOWED}",
                           ("model", "kind"))
    with origin.blaming(SOURCE, value=source):
        if not tokens and source in (*TASKS, "text"):
            raise UsageError(
                f'model.kind {model.kind} trains on rows of features; set it to "transformer", or this to "digits"')
        if not tokens:
            return rows_of_features(scenario.data, folder)
        if isinstance(source, Named):
            return tokens_given(given(source, dict(scenario.data.own)), vocabulary)
        length = model.sequence or (SEQUENCE_OF_A_TASK if source in TASKS else SEQUENCE_OF_A_TEXT)
        return sequences(source, length, vocabulary, folder)


ALLOWED = ", ".join(f'"{name}"' for name in ("text", *TASKS)) + " or the path of a text file"


def sequences(source: str, sequence: int, vocabulary: int | None, folder: Path) -> Dataset:
    """Samples of `sequence` tokens: "text" (Shakespeare), "sort", "reverse", or a user's UTF-8 file.

    A relative path starts in `folder`. `sequence` is at least 1. `vocabulary`, at least 2, is the number of classes;
    None uses the number in the data. `windows_of` documents the windows of a text, `task` the tasks "sort" and
    "reverse". Raises `UsageError`.

    >>> here = Path()
    >>> text = sequences("text", 64, None, here)
    >>> text.kind, text.classes, text.x.shape, text.x_test.shape
    ('tokens', 65, (15685, 64), (256, 64))
    >>> sequences("reverse", 15, 12, here).x.shape
    (20000, 15)
    """
    if source in TASKS:
        return task(source, sequence, vocabulary)
    if source == "digits" or source.endswith(".npz"):
        raise UsageError(f"these are rows of features, not tokens; it must be {ALLOWED}")
    return windows_of(shakespeare() if source == "text" else read_text(folder, source), sequence, vocabulary)


def tokens_given(arrays: dict[str, Array], vocabulary: int | None) -> Dataset:
    """Tokens from a user's function: integers (samples, sequence); y is the target after each token, −1 for none.

    >>> x = np.array([[0, 1, 2], [2, 1, 0]])
    >>> tokens_given({"x": x, "y": (x + 1) % 3}, None).classes
    3
    """
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
            raise UsageError(
                f"{name} must be integers of shape (samples, sequence), found {array.dtype} of {array.shape}")
    largest = max(int(array.max()) for array in arrays.values())
    classes = vocabulary or largest + 1
    for name, array in arrays.items():
        least = -1 if name.startswith("y") else 0
        if array.shape[1:] != arrays["x"].shape[1:] or len(array) != len(arrays[name.replace("y", "x", 1)]):
            raise UsageError(f"{name} has shape {array.shape}, and x {arrays['x'].shape}; they must agree")
        if array.min() < least or array.max() >= classes:
            raise UsageError(f"{name} has the token {int(array.max() if array.max() >= classes else array.min())}; "
                             f"with {classes} tokens they go from {least} to {classes - 1}")
        if name == "y_test" and (array == -1).all():
            raise UsageError("y_test has no target that counts, since all are -1")
    wide = {name: array.astype(np.int64) for name, array in arrays.items()}
    return Dataset(wide["x"], wide["y"], wide.get("x_test"), wide.get("y_test"), classes)


TEST_TOKENS = 2**14


@cache
def shakespeare() -> str:
    """The shipped text: 1,115,394 characters, 65 different ones.

    >>> shakespeare()[:29]
    'First Citizen:\\nBefore we proc'
    """
    packed = (importlib.resources.files("zerosim.scenario.data") / "shakespeare.txt.xz").read_bytes()
    return lzma.decompress(packed).decode()


def read_text(folder: Path, source: str) -> str:
    """The characters of a user's UTF-8 file, unchanged."""
    with data_file(folder, source, ALLOWED) as stream:
        content = stream.read()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        byte = f"byte {error.start:,} is 0x{content[error.start]:02x}"
        raise UsageError(f"this is no UTF-8 text, {byte}; save it as UTF-8") from None


def windows_of(text: str, sequence: int, vocabulary: int | None) -> Dataset:
    """Windows of `sequence` characters without overlap; y has the character after each.

    The first 90% of the text are for training, the last 10% for the test, and no window reaches into both. The
    remainder at the end of either part is not used. The test has as many windows as hold 16,384 tokens (at least one),
    spread evenly, so that it is cheap. Raises `UsageError` if either part is shorter than a window and the
    character after it.

    >>> counting = windows_of("0123456789" * 4, 3, None)
    >>> counting.decode(counting.x[1]), counting.decode(counting.y[1]), counting.x.shape, counting.x_test.shape
    ('345', '456', (11, 3), (1, 3))
    """
    least = 10 * sequence + 1
    if len(text) < least:
        raise UsageError(
            f"{len(text):,} characters are too few for model.sequence = {sequence:,}: the last tenth is the test "
            f"split and must hold a window and the next character; give {least:,}, or set model.sequence lower")
    tokens, alphabet = tokenised(text, vocabulary)
    cut = len(tokens) * 9 // 10
    x, y = windows(tokens[:cut], sequence)
    tests = windows(tokens[cut:], sequence)
    count = min(len(tests[0]), max(1, TEST_TOKENS // sequence))
    x_test, y_test = (part[np.arange(count) * len(part) // count].astype(np.int64) for part in tests)
    return Dataset(x, y, x_test, y_test, vocabulary or len(alphabet), alphabet)


def windows(tokens: Array, sequence: int) -> tuple[Array, Array]:
    """Views of `tokens`: all whole windows, and the same windows one token later."""
    used = (len(tokens) - 1) // sequence * sequence
    return tokens[:used].reshape(-1, sequence), tokens[1 : used + 1].reshape(-1, sequence)


def tokenised(text: str, vocabulary: int | None = None) -> tuple[Array, str]:
    """The text as tokens, in the smallest unsigned dtype that can hold them, and the character of each token.

    Tokens number the different characters by code point. If `vocabulary` is smaller than the number of characters, the
    most frequent ones have a token (ties go to lower code points), and all others share the last one.

    >>> tokens, alphabet = tokenised("abracadabra!", 3)
    >>> tokens.tolist(), alphabet
    ([0, 1, 2, 0, 2, 0, 2, 0, 1, 2, 0, 2], 'ab\ufffd')
    """
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    counts = np.bincount(points)
    kept, rest = np.flatnonzero(counts), ""
    if vocabulary is not None and vocabulary < len(kept):
        by_frequency = np.argsort(-counts[kept], kind="stable")
        kept, rest = np.sort(kept[by_frequency[: vocabulary - 1]]), OTHER
    alphabet = "".join(map(chr, kept)) + rest
    last = len(alphabet) - 1
    token_of = np.full(len(counts), last, np.min_scalar_type(last))
    token_of[kept] = np.arange(len(kept))
    return token_of[points], alphabet


def task(name: str, sequence: int, vocabulary: int | None) -> Dataset:
    """Tasks of n digits d with their answer s, n = (sequence + 1) // 2, as in minGPT's demo of sorting:

        x   d1 d2 … dn s1 … s(n-1)
        y   -1 …… -1   s1 s2 …… sn      (n - 1 times -1: no target before all digits are known)

    An even sequence has one more position at the end, with token 0 in x and -1 in y. A vocabulary smaller than 10
    leaves the digits 0 to vocabulary - 1; a larger one has unused tokens. There are 20,000 training and 1,000 test
    samples, no two of them with the same digits. Short sequences have fewer different digits; then a tenth of them are
    test samples, at most 1,000. The samples depend on n and the digits only and are always the same. Raises
    `UsageError` for a sequence longer than 2,048.

    >>> sorting = task("sort", 6, None)
    >>> sorting.x[0].tolist(), sorting.y[0].tolist()
    ([6, 1, 2, 1, 2, 0], [-1, -1, 1, 2, 6, -1])
    """
    if sequence > LONGEST:
        raise UsageError(f"sequences may be {LONGEST:,} long, found model.sequence = {sequence:,}; set it lower")
    base, n = min(vocabulary or 10, 10), (sequence + 1) // 2
    digits = distinct_digits(base, n)
    test = max(1, min(TEST, len(digits) // 10))
    answers = TASKS[name](digits)
    x = np.zeros((len(digits), sequence), np.int8)
    y = np.full_like(x, -1)
    x[:, :n] = digits
    x[:, n : 2 * n - 1] = answers[:, :-1]
    y[:, n - 1 : 2 * n - 1] = answers
    x_test, y_test = (part[:test].astype(np.int64) for part in (x, y))
    return Dataset(x[test:], y[test:], x_test, y_test, vocabulary or base, "0123456789"[:base], answers=True)


def distinct_digits(base: int, n: int) -> Array:
    """int8 (samples, n): rows of digits below `base`, no two equal, in pseudo-random order.

    There are 21,000 rows; if at most twice as many exist, all of them up to that number. They are made from the raw
    64-bit output of a PCG64, which NumPy keeps the same in all versions and on all machines.

    >>> distinct_digits(2, 2).tolist()
    [[1, 1], [1, 0], [0, 1], [0, 0]]
    """
    source = np.random.PCG64(0)
    if base**n <= DRAWN:
        numbers = np.argsort(source.random_raw(base**n), kind="stable")
        rows = numbers[:, None] // base ** np.arange(n)[::-1] % base
    else:
        drawn = np.column_stack([(source.random_raw(DRAWN) % base).astype(np.int8) for _ in range(n)])
        _, places = np.unique(drawn, axis=0, return_index=True)
        rows = drawn[np.sort(places)]
    return rows[: TRAIN + TEST].astype(np.int8)
