"""Sequences with one right answer: digits, then the same digits sorted or reversed."""

from collections.abc import Callable

import numpy as np

from zerosim.allocation import Array
from zerosim.data.dataset import DataFault, Dataset

TASKS: dict[str, Callable[[Array], Array]] = {
    "sort": lambda digits: np.sort(digits, axis=1),
    "reverse": lambda digits: digits[:, ::-1],
}
"""The answers to digits (samples, n), row by row."""

TRAIN, TEST = 20_000, 1_000
DRAWN = 2 * (TRAIN + TEST)
LONGEST = 2048
SEED = 0


def task(name: str, sequence: int, vocabulary: int | None, fault: DataFault) -> Dataset:
    """Tasks of n digits d with their answer s, n = (sequence + 1) // 2, as in minGPT's demo of sorting:

        x   d1 d2 … dn s1 … s(n-1)
        y   -1 …… -1   s1 s2 …… sn      (n - 1 times -1: no target before all digits are known)

    An even sequence has one more position at the end, with token 0 in x and -1 in y. A vocabulary smaller than 10
    leaves the digits 0 to vocabulary - 1; a larger one has unused tokens. There are 20,000 training and 1,000 test
    samples, no two of them with the same digits. Short sequences have fewer different digits; then a tenth of them are
    test samples, at most 1,000. The samples depend on n and the digits only and are always the same. Raises `fault`'s
    error for a sequence longer than 2,048.

    >>> sorting = task("sort", 6, None, ValueError)
    >>> sorting.x[0].tolist(), sorting.y[0].tolist()
    ([6, 1, 2, 1, 2, 0], [-1, -1, 1, 2, 6, -1])
    """
    if sequence > LONGEST:
        raise fault(f"sequences may be {LONGEST:,} long, found model.sequence = {sequence:,}; set it lower")
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
    source = np.random.PCG64(SEED)
    if base**n <= DRAWN:
        numbers = np.argsort(source.random_raw(base**n), kind="stable")
        rows = numbers[:, None] // base ** np.arange(n)[::-1] % base
    else:
        drawn = np.column_stack([(source.random_raw(DRAWN) % base).astype(np.int8) for _ in range(n)])
        _, places = np.unique(drawn, axis=0, return_index=True)
        rows = drawn[np.sort(places)]
    return rows[: TRAIN + TEST].astype(np.int8)
