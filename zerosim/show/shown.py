"""The result of a function of `zs`: an object that displays itself in a notebook and prints well at the prompt.

Every result is a `Shown`: its subject, and functions for all that differs between results. Pictures and pages share no
name and no style with the rest of a notebook.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from zerosim.core.errors import UsageError
from zerosim.core.files import write_bytes, write_text
from zerosim.show.pictures import pixels

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

    @property
    def frame(self) -> str:
        """The HTML of a frame with the page in it."""
        return (f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="{escape(self.about)}" '
                f'style="width: 100%; height: {self.height}px; border: 0"></iframe>')

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": repr(self), "text/html": self.frame}


def printed(show: Callable[[Console], None], width: int = 100) -> str:
    """The output of `show` to a console of `width` columns, without colours.

    >>> printed(lambda console: console.print("PASSED", style="bold green"))
    'PASSED'
    """
    written = io.StringIO()
    show(Console(file=written, width=width, force_terminal=False, force_jupyter=False, highlight=False, emoji=False))
    return written.getvalue().rstrip("\n")


@dataclass(frozen=True, repr=False)
class Shown:
    """A result that displays itself: `repr` of a few lines, `print` as on the command line, `rows()`, `save(FILE)`."""

    subject: Any
    """The result itself."""
    passed: bool
    """Whether every check of it held."""
    verdict: str
    """The verdict in a sentence."""
    about: str
    """The result in a line or a short table: its `repr`."""
    show: Callable[[Console], None]
    """Prints it as the command line does."""
    make_document: Callable[[], dict[str, Any]]
    rows_of: Callable[[dict[str, Any]], list[dict[str, Any]]]
    """Plain dicts made from the document."""
    draw: Callable[[], Picture] | None = None
    drawn_in_cells: bool = False
    """Whether a notebook displays its picture."""
    excerpt: Callable[[], str] | None = None
    """The HTML that a notebook displays; otherwise the printed form."""
    make_page: Callable[[], Page] | None = None
    width: int = 100
    """The columns of the printed form."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document in JSON's own types, as the command line writes it."""
        return self.make_document()

    def rows(self) -> list[dict[str, Any]]:
        """Plain dicts, for `pandas.DataFrame`; `docs/outcome.md` has the keys."""
        return self.rows_of(self.document)

    def picture(self) -> Picture:
        """The whole as one picture; `UsageError` if there is none, or if it has too many cells."""
        if self.draw is None:
            raise UsageError(f"{self.about.splitlines()[0]} has no picture; print it, or call page()")
        return self.draw()

    def page(self) -> Page:
        """The object as one page."""
        if self.make_page is not None:
            return self.make_page()
        html = f"<!doctype html><meta charset=utf-8><title>zerosim</title>{self._repr_html_()}"
        return Page(html, self.about.splitlines()[0])

    def to_json(self) -> str:
        """The document as a JSON string."""
        return json.dumps(self.document, indent=2, ensure_ascii=False)

    def save(self, path: str) -> None:
        """Write it as `.json`, `.html` or `.txt`, according to the file's name; `UsageError` for another name."""
        match Path(path).suffix:
            case ".json":
                write_text(path, self.to_json() + "\n")
            case ".html":
                self.page().save(path)
            case ".txt":
                write_text(path, f"{self}\n")
            case _:
                raise UsageError(f"{path}: give a name that ends in .json, .html or .txt")

    def __str__(self) -> str:
        return printed(self.show, self.width)

    def __repr__(self) -> str:
        return self.about

    def _repr_html_(self) -> str:
        return self.excerpt() if self.excerpt is not None else f"<pre>{escape(str(self))}</pre>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        drawn = {"image/svg+xml": self.picture().svg} if self.drawn_in_cells else {}
        html = {"text/html": self.excerpt()} if self.excerpt is not None else {}
        return {"text/plain": str(self)} | drawn | html
