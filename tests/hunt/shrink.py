"""A scenario with a fault, made smaller: keys are left out one by one for as long as the fault remains."""

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.hunt.draw import Document, Drawn

Path = tuple[Any, ...]
SECONDS = 60.0


def shrunk(drawn: Drawn, still: Callable[[Drawn], bool]) -> Drawn:
    """The smallest of the scenarios that come of leaving out whole sections, rows and keys while `still` holds."""
    deadline = time.monotonic() + SECONDS
    again = True
    while again:
        again = False
        for path in list(paths(drawn.document)):
            if time.monotonic() > deadline:
                return drawn
            smaller = without(drawn.document, path)
            if smaller is not None and still(drawn.saying(smaller)):
                drawn, again = drawn.saying(smaller), True
    return drawn


def paths(document: Document) -> Iterator[Path]:
    """Of everything that can be left out: sections, rows of a section, and then keys.

    >>> list(paths({"title": "a", "variant": [{"name": "b"}, {}]}))
    [('title',), ('variant',), ('variant', 1), ('variant', 0), ('variant', 0, 'name')]
    """
    yield from ((name,) for name in document if name != "kind")
    for name, section in document.items():
        if isinstance(section, list):
            yield from ((name, index) for index in reversed(range(len(section))))
    for name, section in document.items():
        numbered = enumerate(section) if isinstance(section, list) else [(None, section)]
        for index, each in numbered:
            if isinstance(each, dict):
                yield from ((name, key) if index is None else (name, index, key) for key in each)


def without(document: Document, path: Path) -> Document | None:
    """A copy of the document that lacks what is at `path`; None where that is gone already.

    >>> without({"world": {"ranks": 2}}, ("world", "ranks"))
    {'world': {}}
    """
    smaller = copy.deepcopy(document)
    there: Any = smaller
    try:
        for step in path[:-1]:
            there = there[step]
        del there[path[-1]]
    except (KeyError, IndexError):
        return None
    return smaller
