"""Python that a user names: a file or an installed module is imported, and what it has under a name is handed out.

This is the only place that imports a user's code. A `Loader` imports a file once, however many names of it are asked
for, and notes its SHA-256. One that may not import refuses; one for names that were read from a checkpoint hands out
what the scenario itself named, and nothing else.

A doubt: the digest is that of the one file, and says nothing of what it imports. That of an installed module is read
after the import.
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
from typing import Any, NamedTuple

from zerosim.errors import UsageError, did_you_mean
from zerosim.files import open_regular, reason
from zerosim.parts.users_code import ended_after, refuse_to_leave

MOST_BYTES = 1 << 20
"""The longest Python file of a user that is read."""

IMPORT_SECONDS = 60.0
"""How long importing it may take."""

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Declared:
    """A part with what is declared of it: a row of a table, or what a decorator makes of a user's function."""


@dataclass(frozen=True)
class Code:
    """What a name stands for, and the digest of the file that it was read from."""

    value: Any
    sha256: str
    file: str


class Imported(NamedTuple):
    """A module, and the digest of its code."""

    module: ModuleType
    sha256: str


@dataclass(frozen=True)
class Loader:
    """Imports what names say; `allowed` is False where no Python is to be run."""

    allowed: bool = True
    _modules: dict[str, Imported] = field(default_factory=dict)

    def load(self, name: str, folder: Path = Path()) -> Code:
        """What `file.py:name` (a relative file lies in `folder`) or `package.module:name` stands for.

        Raises `UsageError` where there is no such thing, it cannot be imported, or Python is not allowed.
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
    """What a module has under a name; raises `UsageError` with the names of the functions that there are."""
    if callable(getattr(module, name, None)) or isinstance(getattr(module, name, None), Declared):
        return getattr(module, name)
    defined = [each for each, value in vars(module).items() if inspect.isfunction(value) or isinstance(value, Declared)]
    raise UsageError(f"{where} has no function {name!r}; it has {', '.join(defined) or 'none'}{meant(name, defined)}")


def function_of(file: str, function: str) -> Callable[..., Any]:
    """A function in a Python file; raises `UsageError` with the names of those that there are."""
    found: Callable[..., Any] = attribute(load_file(file), function, file)
    return found


def meant(name: str, names: Iterable[str]) -> str:
    """The nearest of the names, as a question; nothing where none is near.

    >>> meant("ring.all_reduc", ["ring.all_gather", "ring.all_reduce"]), meant("fly", ["ring.all_gather"])
    ("; did you mean 'ring.all_reduce'?", '')
    >>> meant("ring", ["tree.gather", "ring.all_gather"])
    "; did you mean 'ring.all_gather'?"
    """
    known = list(names)
    parts = [each for each in known if name and name in each.split(".")]
    return did_you_mean(name, known) or did_you_mean(name, parts[:1], alike=0.0)


def read_python(file: str) -> bytes:
    """The text of a Python file; `OSError` where it is not a regular file, or longer than anybody writes one."""
    with open_regular(file) as opened:
        found = opened.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return found


def load_file(file: str) -> Any:
    """The Python file as a module; raises `UsageError` in one line when it cannot be."""
    return import_file(file).module


def import_file(file: str) -> Imported:
    """The Python file as a module, whose digest is that of the bytes that were compiled.

    Raises `UsageError` in one line when it cannot be imported.
    """
    path = Path(file)
    try:
        source = read_python(file)
    except OSError as error:
        raise UsageError(f"{file}: {reason(error)}; name a Python file") from None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        imported(file, lambda: exec(compile(source, spec.origin or file, "exec"), vars(module)))
    finally:
        sys.path.remove(str(path.parent))
    return Imported(module, hashlib.sha256(source).hexdigest())


def load_module(name: str) -> Imported:
    """The installed module of that name; raises `UsageError` in one line when it cannot be imported."""
    found: list[ModuleType] = []
    imported(name, lambda: found.append(importlib.import_module(name)))
    try:
        source = read_python(str(found[0].__file__))
    except OSError:
        source = b""
    return Imported(found[0], hashlib.sha256(source).hexdigest())


def imported(name: str, run: Callable[[], None]) -> None:
    """Let `run` import what is called `name`, and turn what goes wrong into a `UsageError`."""
    refuse_to_leave()
    try:
        with ended_after(IMPORT_SECONDS, f"{name} is still being imported"):
            run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
