"""What a cell of a notebook shows: pictures, pages in a frame, and what a terminal would show."""

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
"""One thing in several forms, by MIME type: a front end takes the richest that it can show."""


@dataclass(frozen=True)
class Picture:
    """A picture as SVG, and in words what it shows."""

    svg: str
    about: str

    def save(self, path: str) -> None:
        """Write it as SVG or PNG, as the file's name says."""
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
    """A page of HTML that needs no network, shown in a frame of its own."""

    html: str
    about: str
    height: int = 640
    """Pixels of the frame."""

    def save(self, path: str) -> None:
        """Write it to a file that any browser opens."""
        write_text(path, self.html)

    def __repr__(self) -> str:
        return f"<page: {self.about}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        frame = (f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="{escape(self.about)}" '
                 f'style="width: 100%; height: {self.height}px; border: 0"></iframe>')
        return {"text/plain": repr(self), "text/html": frame}


def printed(show: Callable[[Console], None], width: int = 80) -> str:
    """What `show` prints to a console of that many columns, without colours.

    >>> printed(lambda console: console.print("PASSED", style="bold green"))
    'PASSED'
    """
    written = io.StringIO()
    show(Console(file=written, width=width, force_terminal=False, force_jupyter=False, highlight=False, emoji=False))
    return written.getvalue().rstrip("\n")
