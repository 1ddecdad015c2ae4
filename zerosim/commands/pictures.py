"""Single pictures of a page, for lessons, slides and papers."""

import argparse
from collections.abc import Sequence

from zerosim.errors import UsageError
from zerosim.show.page.drawings import Drawings
from zerosim.show.page.vega import svg
from zerosim.show.shown import Picture


def name_and_file(words: str) -> tuple[str, str]:
    """
    >>> name_and_file("step-3=stage3.svg")
    ('step-3', 'stage3.svg')
    """
    name, equals, path = words.partition("=")
    if not equals or not path.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"{words!r}: write NAME=FILE, where FILE ends in .svg or .png")
    return name, path


def pictured(wanted: Sequence[tuple[str, str]], drawings: Drawings) -> list[tuple[str, Picture]]:
    """The file of each requested picture, and the picture; `UsageError` for an unknown name."""
    specs = dict(drawings.files())
    for name, _ in wanted:
        if name not in specs:
            raise UsageError(f"--picture: there is no picture {name!r}; there are {', '.join(specs)}")
    return [(path, Picture(svg(specs[name]), name)) for name, path in wanted]
