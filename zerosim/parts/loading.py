"""Imports of a user's Python code: a file or an installed module, and the object with a name in it.

This is the only place that imports a user's code. A `Loader` imports a file once, however many of its names are
requested, and computes its SHA-256. A loader that may not import refuses; a loader for names from a checkpoint returns
only objects that the scenario itself names.

A doubt: the digest covers one file and not its imports. The digest of an installed module is computed after the
import.

A user's name carries the part itself, and a table returns the part of either kind of name.
"""

import errno
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from zerosim.errors import UsageError, did_you_mean
from zerosim.files import open_regular, reason
from zerosim.parts.users_code import ended_after, refuse_to_leave

MOST_BYTES = 1 << 20
"""The most bytes read of a user's Python file."""

IMPORT_SECONDS = 60.0
"""The time limit of its import."""

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Declared:
    """A part with its declarations: a row of a table, or a user's function after a decorator."""


@dataclass(frozen=True)
class Code:
    """The object that a name stands for, and the digest of its file."""

    value: Any
    sha256: str
    file: str


class Imported(NamedTuple):
    """A module, and the digest of its code."""

    module: ModuleType
    sha256: str


@dataclass(frozen=True)
class Loader:
    """An importer of names; `allowed` is False if no Python code may run."""

    allowed: bool = True
    _modules: dict[str, Imported] = field(default_factory=dict)

    def load(self, name: str, folder: Path = Path()) -> Code:
        """The object named `file.py:name`, where a relative file is in `folder`, or `package.module:name`.

        Raises `UsageError` if it does not exist or cannot be imported, and if Python code is not allowed.
        """
        if not self.allowed:
            raise UsageError(f"{name} is Python code, which --no-python refuses; remove --no-python, or name a "
                             f"shipped part")
        where, _, what = name.rpartition(":")
        key = str(folder / where) if where.endswith(".py") else where
        if key not in self._modules:
            self._modules[key] = import_file(key) if where.endswith(".py") else load_module(where)
        module, sha256 = self._modules[key]
        return Code(attribute(module, what, where), sha256, str(getattr(module, "__file__", None) or key))


def attribute(module: ModuleType, name: str, where: str) -> Any:
    """The object with a name in a module. Raises `UsageError` with the names of the module's functions."""
    if callable(getattr(module, name, None)) or isinstance(getattr(module, name, None), Declared):
        return getattr(module, name)
    defined = [each for each, value in vars(module).items() if inspect.isfunction(value) or isinstance(value, Declared)]
    raise UsageError(f"{where} has no function {name!r}; it has {', '.join(defined) or 'none'}{meant(name, defined)}")


def function_of(file: str, function: str) -> Callable[..., Any]:
    """A function in a Python file. Raises `UsageError` with the names of the file's functions."""
    found: Callable[..., Any] = attribute(load_file(file), function, file)
    return found


def meant(name: str, names: Iterable[str]) -> str:
    """The nearest of the names, as a question; empty if none is near.

    >>> meant("ring.all_reduc", ["ring.all_gather", "ring.all_reduce"]), meant("fly", ["ring.all_gather"])
    ("; did you mean 'ring.all_reduce'?", '')
    >>> meant("ring", ["tree.gather", "ring.all_gather"])
    "; did you mean 'ring.all_gather'?"
    """
    known = list(names)
    parts = [each for each in known if name and name in each.split(".")]
    return did_you_mean(name, known) or did_you_mean(name, parts[:1], alike=0.0)


def read_python(file: str) -> bytes:
    """The source of a Python file. Raises `OSError` for other than regular files and for more than `MOST_BYTES`."""
    with open_regular(file) as opened:
        found = opened.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return found


def load_file(file: str) -> Any:
    """The Python file as a module. Raises `UsageError` in one line if it cannot be imported."""
    return import_file(file).module


def import_file(file: str) -> Imported:
    """The Python file as a module, and the digest of the compiled bytes.

    Raises `UsageError` in one line if it cannot be imported.
    """
    path = Path(file)
    try:
        source = read_python(file)
    except OSError as error:
        raise UsageError(f"{file}: {reason(error)}; name a Python file") from None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None:
        raise UsageError(f"{file} is no Python file, since its name does not end in .py; name a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        imported(file, lambda: exec(compile(source, spec.origin or file, "exec"), vars(module)))
    finally:
        sys.path.remove(str(path.parent))
    return Imported(module, hashlib.sha256(source).hexdigest())


def load_module(name: str) -> Imported:
    """The installed module with that name. Raises `UsageError` in one line if it cannot be imported."""
    found: list[ModuleType] = []
    imported(name, lambda: found.append(importlib.import_module(name)))
    try:
        source = read_python(str(found[0].__file__))
    except OSError:
        source = b""
    return Imported(found[0], hashlib.sha256(source).hexdigest())


def imported(name: str, run: Callable[[], None]) -> None:
    """Import `name` by calling `run`; exceptions become a `UsageError`."""
    refuse_to_leave()
    try:
        with ended_after(IMPORT_SECONDS, f"{name} is still being imported"):
            run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


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
