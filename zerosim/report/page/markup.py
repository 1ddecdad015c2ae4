"""HTML from text that anyone may have written: what is not marked up already is escaped, always."""

from html import escape

VOID = {"input", "meta", "br", "img"}
"""Elements without content."""


UNFIT = (
    range(0x80, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000), range(0xFFFE, 0x10000))
"""Characters that a page may not have, or by which its words would be read in another order than they stand."""


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | int | bool) -> Markup:
    """An element; content and values that are not markup are escaped, `False` leaves an attribute out.

    An attribute whose name is a word of Python's has an underscore behind it; other underscores are hyphens.

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
    """All of it, one behind the other."""
    return Markup("".join(each if isinstance(each, Markup) else escape(printable(each)) for each in content))


def printable(words: str) -> str:
    r"""Control characters by their pictures, by U+FFFD what is no character or turns words around; lines and tabs stay.

    >>> printable("a\x1b[1m\nb\ud800\x7f")
    'a␛[1m\nb\ufffd␡'
    """
    return "".join(map(shown, words))


def shown(character: str) -> str:
    code = ord(character)
    if code < 0x20 and character not in "\n\t":
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if any(code in each for each in UNFIT) else character
