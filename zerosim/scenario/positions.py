"""The position of each key and each value of a TOML text, which tomllib does not report.

    path       the keys and indices from the whole document to a value: ("train", "betas", 1)
    position   the place of the path's key and the place of its value
    place      line and column, both from 1, columns counted in characters

The scanner relies on tomllib's having accepted the text, and examines only what distinguishes one token from
the next.
"""

import re
import tomllib
from bisect import bisect_right
from typing import NamedTuple

KeyPath = tuple[str | int, ...]

BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
KEY = re.compile(r''' " (?:\\.|[^"\\])* " | ' [^']* ' | [A-Za-z0-9_-]+ ''', re.VERBOSE)
SCALAR = re.compile(
    r'''
    """ (?:\\.|[^\\])*? "{3,5}    # up to two more quotes may stand before the closing three
  | \'\'\' .*? '{3,5}
  | " (?:\\.|[^"\\])* "
  | ' [^']* '
  | [^,\]}\#\r\n]+                # numbers, booleans, and dates, which may hold a space
    ''',
    re.VERBOSE | re.DOTALL,
)


class TextPlace(NamedTuple):
    """A line and a column, both from 1."""

    line: int
    column: int


class Position(NamedTuple):
    """The places where a key and its value begin: one place for an array's element or a `[table]`."""

    key: TextPlace
    value: TextPlace


def place(text: str, offset: int) -> TextPlace:
    """The line and column of the character at `offset`.

    >>> place("a = 1\\nb = 2", 10)
    TextPlace(line=2, column=5)
    """
    return TextPlace(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def positions(text: str) -> dict[KeyPath, Position]:
    """The position of everything in `text`, in the order in which it is first named.

    Tables are there too, also those that only a dotted key or a longer header implies. `text` must
    be a document that `tomllib.loads` accepts.

    >>> positions("[train]\\nsteps = 20")[("train", "steps")]
    Position(key=TextPlace(line=2, column=1), value=TextPlace(line=2, column=9))
    """
    scanner = Scanner(text)
    scanner.document()
    return scanner.found


class Scanner:
    """One pass over a text; every method starts at `offset` and moves it behind the text that it read."""

    def __init__(self, text: str) -> None:
        self.text, self.offset = text, 0
        self.lines = [0, *(newline.end() for newline in re.finditer("\n", text))]
        self.found: dict[KeyPath, Position] = {}
        self.lengths: dict[KeyPath, int] = {}  # of the arrays of tables read so far

    def document(self) -> None:
        table: KeyPath = ()
        while self.next():
            if self.take("[["):
                table = self.element(self.here(), of=self.key(()))
                self.take("]]")
            elif self.take("["):
                table = self.key(())
                self.take("]")
            else:
                self.pair(table)

    def element(self, header: TextPlace, *, of: KeyPath) -> KeyPath:
        """One more table of an array of tables."""
        self.lengths[of] = self.lengths.get(of, 0) + 1
        table = self.latest(of)
        self.found[table] = Position(header, header)
        return table

    def latest(self, path: KeyPath) -> KeyPath:
        """The table to which a header refers by the name of an array of tables: its last one."""
        return (*path, self.lengths[path] - 1) if path in self.lengths else path

    def pair(self, table: KeyPath) -> None:
        path = self.key(table)
        self.take("=")
        self.value(path, self.found[path].key)

    def key(self, path: KeyPath) -> KeyPath:
        """A dotted key below `path`; the position of an implied table is its first mention."""
        while True:
            here = self.here()
            path = (*self.latest(path), unquoted(self.match(KEY)))
            self.found.setdefault(path, Position(here, here))
            if not self.take("."):
                return path

    def value(self, path: KeyPath, key: TextPlace | None = None) -> None:
        here = self.here()
        self.found[path] = Position(key or here, here)
        if self.take("["):
            index = 0
            while not self.take("]"):
                self.value((*path, index))
                self.take(",")
                index += 1
        elif self.take("{"):
            while not self.take("}"):
                self.pair(path)
                self.take(",")
        else:
            self.match(SCALAR)

    def here(self) -> TextPlace:
        self.next()
        line = bisect_right(self.lines, self.offset)
        return TextPlace(line, self.offset - self.lines[line - 1] + 1)

    def next(self) -> str:
        """The next character that is neither blank nor comment; empty at the end of the text."""
        self.match(BLANK)
        return self.text[self.offset : self.offset + 1]

    def take(self, mark: str) -> bool:
        self.next()
        there = self.text.startswith(mark, self.offset)
        self.offset += len(mark) * there
        return there

    def match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.offset)
        assert found, f"tomllib would not have accepted {self.text[self.offset :]!r}"
        self.offset = found.end()
        return found.group()


def unquoted(key: str) -> str:
    """The name that a bare or quoted key stands for.

    >>> unquoted('"learning\\u005frate"')
    'learning_rate'
    """
    return next(iter(tomllib.loads(f"{key} = 0"))) if key[0] in "\"'" else key
