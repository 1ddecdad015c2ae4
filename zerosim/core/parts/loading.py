"""Imports of a user's Python code, and the named parts that come of it.

This is the only place that imports a user's code. A `Loader` imports a file once, however many of its names are
requested, and computes its SHA-256; a loader that may not import refuses.

A doubt: the digest covers one file and not its imports.
"""

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from zerosim.core.errors import UsageError, did_you_mean
from zerosim.core.files import content, reason

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Declared:
    """A part with its declarations: a row of a table, or a user's function after a decorator.

    It stays callable: the other functions of its file call it as it is written. `WRITTEN` names the field of the
    function.
    """

    WRITTEN: ClassVar[str]

    def __call__(self, *given: Any, **named: Any) -> Any:
        return getattr(self, self.WRITTEN)(*given, **named)


@dataclass(frozen=True)
class Named:
    """A user's part: its source, `mine.py:gated`, the part itself, and the digest of its code."""

    source: str
    part: Any = field(compare=False, repr=False)
    sha256: str = ""

    def __str__(self) -> str:
        return self.source


Name = str | Named
"""The value of a key that names a part: the name of a shipped part, or a user's part."""

Part = TypeVar("Part")


class Table(dict[str, Part]):
    """The shipped parts by name; a user's part is returned as it is.

    >>> table = Table(adam=1)
    >>> table["adam"], table[Named("mine.py:lion", 2)], list(table)
    (1, 2, ['adam'])
    """

    def __getitem__(self, name: Name) -> Part:
        part: Part = self.get(name.source, name.part) if isinstance(name, Named) else super().__getitem__(name)
        return part


@dataclass(frozen=True)
class Loader:
    """An importer of names; `allowed` is False if no Python code may run."""

    allowed: bool = True
    _modules: dict[str, Named] = field(default_factory=dict)

    def load(self, name: str, folder: Path = Path()) -> Named:
        """The object named `file.py:name`, where a relative file is in `folder`, or `package.module:name`.

        Raises `UsageError` if it does not exist or cannot be imported, and if Python code is not allowed.
        """
        if not self.allowed:
            raise UsageError(f"{name} is Python code, which --no-python refuses; remove --no-python, or name a "
                             f"shipped part")
        where, _, what = name.rpartition(":")
        key = str(folder / where) if where.endswith(".py") else where
        if key not in self._modules:
            self._modules[key] = imported(key, is_file=where.endswith(".py"))
        module = self._modules[key]
        return Named(name, attribute(module.part, what, where), module.sha256)


def attribute(module: ModuleType, name: str, where: str) -> Any:
    """The object with a name in a module. Raises `UsageError` with the names of the module's functions."""
    value = getattr(module, name, None)
    if callable(value):
        return value
    defined = [key for key, part in vars(module).items() if inspect.isfunction(part) or isinstance(part, Declared)]
    raise UsageError(f"{where} has no function {name!r}; it has {', '.join(defined) or 'none'}{meant(name, defined)}")


def meant(name: str, names: Iterable[str]) -> str:
    """The nearest of the names, as a question; empty if none is near.

    >>> meant("ring.all_reduc", ["ring.all_gather", "ring.all_reduce"]), meant("fly", ["ring.all_gather"])
    ("; did you mean 'ring.all_reduce'?", '')
    >>> meant("ring", ["tree.gather", "ring.all_gather"])
    "; did you mean 'ring.all_gather'?"
    """
    known = list(names)
    within = [full_name for full_name in known if name and name in full_name.split(".")]
    return did_you_mean(name, known) or did_you_mean(name, within[:1], alike=0.0)


def load_file(file: str) -> Any:
    """The Python file as a module. Raises `UsageError` in one line if it cannot be imported."""
    return imported(file, is_file=True).part


def imported(where: str, *, is_file: bool) -> Named:
    """A Python file or an installed module, and the digest of its source.

    Raises `UsageError` in one line if it cannot be imported.
    """
    path, source = Path(where), b""
    try:
        source = content(path) if is_file else b""
    except OSError as error:
        raise UsageError(f"{where}: {reason(error)}; name a Python file") from None
    try:
        module = module_in(path.absolute(), source) if is_file else importlib.import_module(where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    with suppress(OSError):
        source = source or Path(str(module.__file__)).read_bytes()
    return Named(where, module, hashlib.sha256(source).hexdigest())


def module_in(path: Path, source: bytes) -> ModuleType:
    """The module that this source of the file at `path` makes; it may import files of the same folder.

    Meanwhile it stands among the imported modules, where `dataclasses` looks for annotations that are strings.
    """
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.path.insert(0, str(path.parent))
    own = sys.modules.setdefault(path.stem, module) is module
    try:
        exec(compile(source, path, "exec"), vars(module))
    finally:
        sys.path.remove(str(path.parent))
        if own:
            del sys.modules[path.stem]
    return module


def is_python(name: object) -> bool:
    """Whether a name refers to Python code, and not to a row of a table or to a data file.

    >>> [is_python(name) for name in ("mine.py:lion", "package.module:lion", "adam", "data.npz", "a:b/c")]
    [True, True, False, False, False]
    """
    where, colon, what = str(name).rpartition(":")
    return bool(colon and what.isidentifier() and (where.endswith(".py") or MODULE.fullmatch(where)))


def named(value: Any) -> Named:
    """A function or part passed from Python, with the digest of its source if there is one."""
    known = (getattr(value, value.WRITTEN) or type(value)) if isinstance(value, Declared) else value
    inner: Callable[..., Any] = inspect.unwrap(known) if callable(known) else type(known)
    try:
        source = inspect.getsource(inner)
    except (OSError, TypeError):
        code = getattr(inner, "__code__", None)
        source = repr(value) if code is None else code.co_code.hex() + repr(code.co_consts)
    name = re.sub(r"\W", "_", getattr(inner, "__name__", "part"))
    return Named(f"{inner.__module__}:{name}", value, hashlib.sha256(source.encode()).hexdigest())
