"""Single pictures of a page, for lessons, slides and papers."""

import argparse

from zerosim.commands.output import write_bytes, write_text
from zerosim.errors import UsageError
from zerosim.report.page.drawings import Drawings
from zerosim.report.page.vega import png, svg


def name_and_file(words: str) -> tuple[str, str]:
    """
    >>> name_and_file("step-3=stage3.svg")
    ('step-3', 'stage3.svg')
    """
    name, equals, path = words.partition("=")
    if not equals or not path.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"{words!r}: write it as NAME=FILE, FILE ending in .svg or .png")
    return name, path


def write_picture(name: str, path: str, drawings: Drawings) -> None:
    """One picture of the page as SVG or PNG, as the file's name says."""
    specs = dict(drawings.files())
    if name not in specs:
        raise UsageError(f"--picture: there is no picture {name!r}; there are {', '.join(specs)}")
    if path.endswith(".svg"):
        write_text(path, svg(specs[name]))
    else:
        write_bytes(path, png(specs[name]))
