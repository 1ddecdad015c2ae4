"""HTML from arbitrary text: strings that are not `Markup` are always escaped."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import zip_longest

VOID = {"input", "meta", "br", "img"}
"""Elements without content."""


UNFIT = (
    range(0x80, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000), range(0xFFFE, 0x10000))
"""Characters that are not allowed in a page, or that would change the order in which its words are read."""


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | int | bool) -> Markup:
    """An element; content and values that are not `Markup` are escaped, `False` leaves an attribute out.

    An attribute with the name of a Python keyword has an underscore behind it; other underscores become hyphens.

    >>> element("p", "a < b & c", class_="wide", data_rank=0)
    '<p class="wide" data-rank="0">a &lt; b &amp; c</p>'
    >>> element("ul", element("li", "x"), hidden=True)
    '<ul hidden><li>x</li></ul>'
    """
    found = "".join(attribute(key, value) for key, value in attributes.items() if value is not False)
    if name in VOID:
        return Markup(f"<{name}{found}>")
    return Markup(f"<{name}{found}>{joined(*content)}</{name}>")


def attribute(key: str, value: str | int | bool) -> str:
    words = key.rstrip("_").replace("_", "-")
    return f" {words}" if value is True else f' {words}="{escape(printable(str(value)))}"'


def joined(*content: str) -> Markup:
    """All contents, concatenated."""
    return Markup("".join(each if isinstance(each, Markup) else escape(printable(each)) for each in content))


def table(
    lines: Iterable[Sequence[str]], heads: Sequence[str] = (), *, class_: str | bool = False, labelled: bool = False,
    wrong: Callable[[str], bool] = lambda cell: False,
) -> Markup:
    """A table; each line begins with its own heading. Cells are marked if `wrong`; if `labelled`, a narrow page shows
    the head beside each.

    >>> table([["DDP", "2"]], ["row", "sends"], labelled=True).partition("<tbody>")[2]
    '<tr><th scope="row">DDP</th><td data-heading="sends">2</td></tr></tbody></table>'
    """
    above = [element("thead", element("tr", *(element("th", head, scope="col") for head in heads)))] if heads else []
    labels = heads[1:] if labelled else ()
    return element("table", *above, element("tbody", *(
        element("tr", element("th", name, scope="row"), *(
            element("td", cell, class_="wrong" if wrong(cell) else False, data_heading=label or False)
            for label, cell in zip_longest(labels, cells, fillvalue="")))
        for name, *cells in lines)), class_=class_)


def scrolling(content: Markup) -> Markup:
    """Content that may be wider than the page: it scrolls by itself, by keys too."""
    return element("div", content, class_="scrolling", tabindex=0, role="group", aria_label="table")


def section(name: str, title: str, *content: str) -> Markup:
    """A section with its heading; links refer to it by its name."""
    return element("section", element("h2", title), *content, id=name)


def printable(words: str) -> str:
    r"""Control characters as visible symbols; U+FFFD for invalid characters and those that change direction; keeps \n,
    \t.

    >>> printable("a\x1b[1m\nb\ud800\x7f")
    'a␛[1m\nb\ufffd␡'
    """
    return "".join(map(visible, words))


def visible(character: str) -> str:
    code = ord(character)
    if code < 0x20 and character not in "\n\t":
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if any(code in each for each in UNFIT) else character
