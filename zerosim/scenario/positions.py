"""The position of each key and each value of a TOML text, which tomllib does not report.

    path       the keys and indices from the whole document to a value: ("train", "betas", 1)
    position   the place of the path's key and the place of its value
    place      line and column, both from 1, columns counted in characters

The scanner relies on tomllib's having accepted the text, and examines only what distinguishes one token from
the next.

Before it, `check_bounds` scans the text once from left to right: no input may keep the TOML reader busy for long or
exhaust its stack. The reader's time grows with the square of a key's parts, and its stack with the nesting of brackets.
That text need not be TOML: up to its first error, tokens are found as the reader finds them, and the reader does not
read beyond that.
"""

import re
import tomllib
from bisect import bisect_right
from typing import Any, NamedTuple

from zerosim.errors import ScenarioError

MOST_BYTES = 250_000
MOST_PARTS = 8
"""The most parts of a key; the longest in a scenario, such as train.steps, has 2."""
MOST_DEPTH = 8
"""The deepest nesting of brackets; the deepest in a scenario, variant = [{units = [[0]]}], has 4."""

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


PART = r""" (?: " (?:\\[^\n]|[^"\\\n])*+ " | '[^'\n]*+' | [A-Za-z0-9_-]++ ) """
TOKEN = re.compile(
    rf'''
    (?P<skipped> \#[^\n]*+ | """ (?:\\.|[^\\])*? "{{3,5}} | \'\'\' .*? '{{3,5}} )
  | (?P<unended> """ | \'\'\' )
  | (?P<key> {PART} (?: [ \t]*+ \. [ \t]*+ {PART} )*+ )    # or another string, word or number: those are short of dots
  | (?P<open> [\[{{] )
  | (?P<close> [\]}}] )
  | (?P<quote> ["'] )
    ''',
    re.VERBOSE | re.DOTALL,
)
PARTS = re.compile(PART, re.VERBOSE)
COMPLAINT = re.compile(r"(.*?)( \(at (?:line (\d+), column (\d+)|end of document)\))?", re.DOTALL)
MOST_OF_A_COMPLAINT = 200
"""The most characters; a message may contain a whole key."""

Document = dict[str, Any]


class TextPlace(NamedTuple):
    """A line and a column, both from 1."""

    line: int
    column: int


class Position(NamedTuple):
    """The places where a key and its value begin: one place for an array's element or a `[table]`."""

    key: TextPlace
    value: TextPlace


Positions = dict[KeyPath, Position]


def place(text: str, offset: int) -> TextPlace:
    """The line and column of the character at `offset`.

    >>> place("a = 1\\nb = 2", 10)
    TextPlace(line=2, column=5)
    """
    return TextPlace(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def positions(text: str) -> Positions:
    """The position of everything in `text`, in the order in which it is first named.

    Tables are there too, also those that only a dotted key or a longer header implies. `text` must
    be a document that `tomllib.loads` accepts.

    >>> positions("[train]\\nsteps = 20")[("train", "steps")]
    Position(key=TextPlace(line=2, column=1), value=TextPlace(line=2, column=9))
    """
    scanner = Scanner(text)
    scanner.document()
    return scanner.found


def parse(text: str, file: str) -> tuple[Document, Positions]:
    check_bounds(text, file)
    try:
        return tomllib.loads(text), positions(text)
    except ValueError as error:
        message, (line, column) = explained(str(error), text)
        message = f"this is not TOML: {message}"
        raise ScenarioError(message, file=file, line=line, column=column) from None


def explained(complaint: str, text: str) -> tuple[str, TextPlace]:
    """tomllib's message, shortened, and the position in the words at its end.

    >>> explained("Invalid value (at line 3, column 9)", "")
    ('invalid value (strings need quotes)', TextPlace(line=3, column=9))
    """
    found = COMPLAINT.fullmatch(complaint)
    assert found
    what, placed, line, column = found.groups()
    what = shortened(what[:1].lower() + what[1:], MOST_OF_A_COMPLAINT)
    if what == "invalid value":
        what += " (strings need quotes)"
    if line:
        return what, TextPlace(int(line), int(column))
    return what, place(text, len(text)) if placed else TextPlace(1, 1)


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


def dotted(path: KeyPath) -> str:
    """
    >>> dotted(("model", "hidden", 1))
    'model.hidden[1]'
    """
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def check_size(size: int, file: str) -> None:
    """Refuse a text of too many bytes; for a stream `size` is a lower bound."""
    if size > MOST_BYTES:
        message = f"found {size:,} bytes; a scenario has at most {MOST_BYTES:,}, and put samples into an .npz file"
        raise ScenarioError(message, file=file)


def check_bounds(text: str, file: str) -> None:
    """Refuse a key of too many parts and brackets that are nested too deeply.

    >>> check_bounds("a.b.c = [{d = [1]}]", "a")
    >>> check_bounds("a = " + "[" * 9, "a")
    Traceback (most recent call last):
    zerosim.errors.ScenarioError: a:1:13: arrays or tables are nested too deeply: found 9 levels, at most 8 are allowed
    """
    depth = 0
    for token in TOKEN.finditer(text):
        match token.lastgroup:
            case "open":
                depth += 1
                if depth > MOST_DEPTH:
                    what = "arrays or tables are nested too deeply"
                    raise beyond(what, depth, "levels", MOST_DEPTH, place(text, token.start()), file)
            case "close":
                depth = max(depth - 1, 0)
            case "key" if "." in token.group():
                parts = len(PARTS.findall(token.group()))
                if parts > MOST_PARTS:
                    what = "a dotted key is too long"
                    raise beyond(what, parts, "parts", MOST_PARTS, place(text, token.start()), file)
            case "unended" | "quote":
                return


def beyond(what: str, found: int, unit: str, most: int, at: TextPlace, file: str) -> ScenarioError:
    message = f"{what}: found {found:,} {unit}, at most {most} are allowed"
    return ScenarioError(message, file=file, line=at.line, column=at.column)


def shortened(words: str, most: int = 60) -> str:
    """
    >>> shortened("a" * 99, most=3)
    'aaa...'
    """
    return words if len(words) <= most else f"{words[:most]}..."
