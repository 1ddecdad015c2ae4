"""Types of arguments that several commands take."""

import argparse
import re
from collections.abc import Callable

MOST_RANKS = 4096

NO_PYTHON = "refuse scenarios that name Python code, such as mine.py:lion"


def rank_counts(text: str) -> list[int]:
    """Numbers of ranks on a command line: one, a range, a list.

    >>> rank_counts("4"), rank_counts("2..5"), rank_counts("1,2,4..6")
    ([4], [2, 3, 4, 5], [1, 2, 4, 5, 6])
    """
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            low, high = int(first), int(last if dots else first)
        except ValueError:
            raise refused(text) from None
        if not 1 <= low <= high <= MOST_RANKS:
            raise refused(text)
        counts += range(low, high + 1)
    return counts


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flag for the number of ranks on a host."""
    parser.add_argument(
        "--ranks-per-host", type=whole_number(1, MOST_RANKS), metavar="P",
        help="ranks on each host, for two_level.* and two_hop.*; default 2")


def whole_numbers(least: int, most: int) -> Callable[[str], list[int]]:
    """A reader of lists of whole numbers from `least` to `most`, each kept once.

    >>> whole_numbers(1, 512)("8,64,8")
    [8, 64]
    """
    read = whole_number(least, most)
    return lambda text: list(dict.fromkeys(map(read, text.split(","))))


def refused(text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text!r}; give a number from 1 to {MOST_RANKS}, a range 2..9 or a list 2,4,8")


def steps_in_order(text: str) -> tuple[int, int]:
    """The first and the last step of a range.

    >>> steps_in_order("4"), steps_in_order("3..5")
    ((4, 4), (3, 5))
    """
    found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text, re.A)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise argparse.ArgumentTypeError(f"found {text!r}; give one step, counted from 1, or a range 3..5")
    return first, last


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`.

    >>> whole_number(1, 64)("8")
    8
    """

    def read(text: str) -> int:
        if re.fullmatch(r"\d{1,18}", text, re.A) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"found {text!r}; give a whole number from {least} to {most}")

    return read
