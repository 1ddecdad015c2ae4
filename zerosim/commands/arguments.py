"""Types of arguments that several commands take."""

import argparse
import re
from collections.abc import Callable

from zerosim.collectives.kinds import COLLECTIVES

MOST_LISTED = 4096
NO_PYTHON = "refuse scenarios that name Python code, such as mine.py:lion"


def add_collective(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of a collective: the ranks on a host, and what a user's function implements."""
    parser.add_argument(
        "--ranks-per-host", type=whole_number(1, MOST_LISTED), metavar="P",
        help="ranks on each host, for two_level.* and two_hop.*; default 2")
    parser.add_argument(
        "--as", choices=COLLECTIVES, dest="collective",
        help="the collective that the function implements, if its name does not say")


def whole_numbers(least: int, most: int) -> Callable[[str], list[int]]:
    """A reader of whole numbers from `least` to `most`: one, a range, a list; each is kept once.

    >>> whole_numbers(1, 512)("8,64,8"), whole_numbers(1, 9)("2..5"), whole_numbers(1, 9)("1,2,4..6")
    ([8, 64], [2, 3, 4, 5], [1, 2, 4, 5, 6])
    """
    read = whole_number(least, most)

    def numbers(text: str) -> list[int]:
        counts: dict[int, None] = {}
        for part in text.split(","):
            first, dots, last = part.partition("..")
            stretch = range(read(first), read(last if dots else first) + 1)
            if not 0 < len(stretch) <= MOST_LISTED:
                raise argparse.ArgumentTypeError(
                    f"{part!r}; give a number, a range 2..9 or a list 2,4,8, of at most {MOST_LISTED} numbers")
            counts |= dict.fromkeys(stretch)
        return list(counts)

    return numbers


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`.

    >>> whole_number(1, 64)("8")
    8
    """

    def read(text: str) -> int:
        if re.fullmatch(r"\d{1,18}", text, re.A) and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"found {text!r}; give a whole number from {least} to {most}")

    return read
