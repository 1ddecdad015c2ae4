"""The displays of notebook cells: pictures, pages in a frame, and terminal output."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from zerosim.errors import UsageError
from zerosim.files import write_bytes, write_text
from zerosim.report.page.vega import pixels

Bundle = dict[str, Any]
"""One object in several forms, by MIME type: a front end displays the richest form that it supports."""


@dataclass(frozen=True)
class Picture:
    """A picture as SVG, and its description in words."""

    svg: str
    about: str

    def save(self, path: str) -> None:
        """Write it as SVG or PNG, according to the file's name."""
        form = Path(path).suffix
        if form == ".svg":
            write_text(path, self.svg)
        elif form == ".png":
            write_bytes(path, pixels(self.svg))
        else:
            raise UsageError(f"{path}: a picture is written as .svg or .png")

    def __repr__(self) -> str:
        return f"<picture: {self.about}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": repr(self), "image/svg+xml": self.svg}


@dataclass(frozen=True)
class Page:
    """A page of HTML that needs no network, displayed in a frame."""

    html: str
    about: str
    height: int = 640
    """The height of the frame in pixels."""

    def save(self, path: str) -> None:
        """Write it to a file for any browser."""
        write_text(path, self.html)

    def __repr__(self) -> str:
        return f"<page: {self.about}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        frame = (f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="{escape(self.about)}" '
                 f'style="width: 100%; height: {self.height}px; border: 0"></iframe>')
        return {"text/plain": repr(self), "text/html": frame}


def printed(show: Callable[[Console], None], width: int = 80) -> str:
    """The output of `show` to a console of `width` columns, without colours.

    >>> printed(lambda console: console.print("PASSED", style="bold green"))
    'PASSED'
    """
    written = io.StringIO()
    show(Console(file=written, width=width, force_terminal=False, force_jupyter=False, highlight=False, emoji=False))
    return written.getvalue().rstrip("\n")
