"""Limits on the text of a scenario: no input may keep the TOML reader busy for long or exhaust its stack.

The reader's time grows with the square of a key's parts, and its stack with the nesting of brackets. `check_bounds`
scans a text before the reader does, once from left to right. The text need not be TOML: up to its first error, tokens
are found as the reader finds them, and the reader does not read beyond that.
"""

import re

from zerosim.errors import ScenarioError
from zerosim.scenario.positions import TextPlace, place

MOST_BYTES = 250_000
MOST_PARTS = 8
"""The most parts of a key; the longest in a scenario, such as train.steps, has 2."""
MOST_DEPTH = 8
"""The deepest nesting of brackets; the deepest in a scenario, variant = [{units = [[0]]}], has 4."""

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
