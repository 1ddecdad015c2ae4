"""The common interface of objects returned at the prompt: HTML, JSON, a file."""

import json
from abc import ABC, abstractmethod
from html import escape
from pathlib import Path
from typing import Any

from zerosim.errors import UsageError
from zerosim.files import write_text
from zerosim.notebook.display import Page


class Shown(ABC):
    """An object that displays itself: `repr` of a screen at most, `rows()`, `to_json()`, `page()`, `save(FILE)`."""

    @property
    @abstractmethod
    def document(self) -> dict[str, Any]:
        """The document in JSON's own types, as the command line writes it."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Plain dicts, for `pandas.DataFrame`."""

    def page(self) -> Page:
        """The object as one page."""
        html = f"<!doctype html><meta charset=utf-8><title>zerosim</title>{self._repr_html_()}"
        return Page(html, repr(self).splitlines()[0])

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

    def _repr_html_(self) -> str:
        """The terminal output, for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"
