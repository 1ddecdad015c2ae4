"""Text as tokens, one per character, and windows of it."""

import importlib.resources
import lzma
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zerosim.allocation import Array
from zerosim.data.dataset import OTHER, DataFault, Dataset, regular_file

LARGEST_FILE = 64 * 2**20
TEST_TOKENS = 2**14
BLOCK = 2**20


@cache
def shakespeare() -> str:
    """The shipped text: 1,115,394 characters, 65 different ones.

    >>> shakespeare()[:29]
    'First Citizen:\\nBefore we proc'
    """
    packed = (importlib.resources.files("zerosim.data") / "shakespeare.txt.xz").read_bytes()
    return lzma.decompress(packed).decode()


def read_text(folder: Path, source: str, allowed: str, fault: DataFault) -> str:
    """The characters of a user's UTF-8 file, unchanged, of at most 64 MiB."""
    with regular_file(folder, source, allowed, fault) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > LARGEST_FILE:
            raise fault(f"this file has {size:,} bytes; a text may have {LARGEST_FILE:,}; give a shorter one")
        content = stream.read(LARGEST_FILE)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        found = f"byte {error.start:,} is 0x{content[error.start]:02x}"
        raise fault(f"this is no UTF-8 text, {found}; save it as UTF-8") from None


def windows_of(text: str, sequence: int, vocabulary: int | None, fault: DataFault) -> Dataset:
    """Windows of `sequence` characters without overlap; y has the character after each.

    The first 90% of the text are for training, the last 10% for the test, and no window reaches into both. The
    remainder at the end of either part is not used. The test has as many windows as hold 16,384 tokens (at least one),
    spread evenly, so that it is cheap. Raises `fault`'s error if either part is shorter than a window and the
    character after it.

    >>> counting = windows_of("0123456789" * 4, 3, None, ValueError)
    >>> counting.decode(counting.x[1]), counting.decode(counting.y[1]), counting.x.shape, counting.x_test.shape
    ('345', '456', (11, 3), (1, 3))
    """
    least = 10 * sequence + 1
    if len(text) < least:
        raise fault(
            f"{len(text):,} characters are too few for model.sequence = {sequence:,}: the last tenth is the test "
            f"split and must hold a window and the next character; give {least:,}, or set model.sequence lower"
        )
    tokens, alphabet = tokenised(text, vocabulary)
    cut = len(tokens) * 9 // 10
    x, y = windows(tokens[:cut], sequence)
    x_test, y_test = (part[spread(len(part), sequence)].astype(np.int64) for part in windows(tokens[cut:], sequence))
    return Dataset(x, y, x_test, y_test, vocabulary or len(alphabet), alphabet)


def windows(tokens: Array, sequence: int) -> tuple[Array, Array]:
    """Views of `tokens`: all whole windows, and the same windows one token later."""
    used = (len(tokens) - 1) // sequence * sequence
    return tokens[:used].reshape(-1, sequence), tokens[1 : used + 1].reshape(-1, sequence)


def spread(count: int, sequence: int) -> npt.NDArray[np.int64]:
    chosen = min(count, max(1, TEST_TOKENS // sequence))
    return np.arange(chosen) * count // chosen


def tokenised(text: str, vocabulary: int | None = None) -> tuple[Array, str]:
    """The text as tokens, in the smallest unsigned dtype that can hold them, and the character of each token.

    Tokens number the different characters by code point. If `vocabulary` is smaller than the number of characters, the
    most frequent ones have a token (ties go to lower code points), and all others share the last one.

    >>> tokens, alphabet = tokenised("abracadabra!", 3)
    >>> tokens.tolist(), alphabet
    ([0, 1, 2, 0, 2, 0, 2, 0, 1, 2, 0, 2], 'ab\ufffd')
    """
    number = 1 + max(int(points.max()) for points in code_points(text))
    counts = np.zeros(number, np.int64)
    for points in code_points(text):
        counts += np.bincount(points, minlength=number)
    kept, rest = np.flatnonzero(counts), ""
    if vocabulary is not None and vocabulary < len(kept):
        by_frequency = np.argsort(-counts[kept], kind="stable")
        kept, rest = np.sort(kept[by_frequency[: vocabulary - 1]]), OTHER
    alphabet = "".join(map(chr, kept)) + rest
    last = len(alphabet) - 1
    token_of = np.full(number, last, np.min_scalar_type(last))
    token_of[kept] = np.arange(len(kept))
    return np.concatenate([token_of[points] for points in code_points(text)]), alphabet


def code_points(text: str) -> Iterator[npt.NDArray[np.uint32]]:
    """The code points of `text` block by block, so that a large text does not need four bytes per character at once."""
    for start in range(0, len(text), BLOCK):
        yield np.frombuffer(text[start : start + BLOCK].encode("utf-32-le"), "<u4")
