"""The result of a function of `zs`: an object that displays itself in a notebook and prints well at the prompt.

Every result is a `Shown`: its subject, and functions for all that differs between results. Pictures and pages share no
name and no style with the rest of a notebook.
"""

import io
from collections.abc import Callable
from contextlib import suppress
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

    def save(self, path: str) -> None:
        """Write it to a file for any browser."""
        write_text(path, self.html)

    def __repr__(self) -> str:
        return f"<page: {self.about}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": repr(self), "text/html":
                f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="{escape(self.about)}" '
                'style="width: 100%; height: 640px; border: 0"></iframe>'}


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
    """A result that displays itself: `repr` of a few lines, `print` as on the command line, `rows()`, `page()`."""

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
        raise UsageError("there is no picture of this: print it, or make a page")

    def page(self) -> Page:
        """The object as one page; `UsageError` if there is none."""
        if self.make_page is None:
            raise UsageError("there is no page of this: print it")
        return self.make_page()

    def __str__(self) -> str:
        return printed(self.show, self.width)

    def __repr__(self) -> str:
        return self.about

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        forms = {"text/plain": str(self)}
        with suppress(UsageError):  # without a picture, or too large to be drawn
            forms["image/svg+xml"] = self.picture().svg
        return forms
