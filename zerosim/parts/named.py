"""Names of parts: a user's name carries the part itself, and a table returns the part of either kind of name."""

import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from zerosim.parts.loading import MODULE, Code

Part = TypeVar("Part")


class Named(str):
    """The name of a user's part in a scenario, with its `part` and the digest of its code, `sha256`.

    It is compared, printed and written as a plain string.
    """

    __slots__ = ("part", "sha256")
    part: Any
    sha256: str

    def __new__(cls, text: str, part: Any, sha256: str) -> "Named":
        name = super().__new__(cls, text)
        name.part, name.sha256 = part, sha256
        return name

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as a plain string: each process imports the code itself."""
        return str, (str(self),)


class Table(dict[str, Part]):
    """The shipped parts by name; the name of a user's part returns that part.

    >>> table = Table(adam=1)
    >>> table["adam"], table[Named("mine.py:lion", 2, "")], list(table)
    (1, 2, ['adam'])
    """

    def __missing__(self, name: str) -> Part:
        if isinstance(name, Named):
            found: Part = name.part
            return found
        raise KeyError(name)


def is_python(name: str) -> bool:
    """Whether a name refers to Python code, and not to a row of a table or to a data file.

    >>> [is_python(each) for each in ("mine.py:lion", "package.module:lion", "adam", "data.npz", "a:b/c")]
    [True, True, False, False, False]
    """
    where, colon, what = name.rpartition(":")
    return bool(colon and what.isidentifier() and (where.endswith(".py") or MODULE.fullmatch(where)))


def code_of(value: Any) -> tuple[str, Code]:
    """A name for a function or part passed from Python, and its code, with the digest of the source if there is one."""
    known = getattr(value, "formula", None) or getattr(value, "function", None) or getattr(value, "step", None) or value
    inner: Callable[..., Any] = inspect.unwrap(known) if callable(known) else type(known)
    try:
        source = inspect.getsource(inner)
        file = inspect.getsourcefile(inner) or ""
    except (OSError, TypeError):
        code = getattr(inner, "__code__", None)
        source, file = repr(value) if code is None else code.co_code.hex() + repr(code.co_consts), ""
    name = re.sub(r"\W", "_", getattr(inner, "__name__", "part"))
    return f"{inner.__module__}:{name}", Code(value, hashlib.sha256(source.encode()).hexdigest(), file)
