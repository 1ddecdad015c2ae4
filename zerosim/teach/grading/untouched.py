"""A check whether a submission has changed zerosim or NumPy in the process that examines it.

    fingerprint    the objects that all names of the modules, and of the classes in them, refer to

The examination runs in the submission's process. So the loaded code is fingerprinted before the import of the
submission and after the last claim; a submission that has replaced any part of it is reported and gets no points.
Hiding a change earns nothing, because `confirmed.py` awards points in another process.
"""

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

LOOKED_AT = ("zerosim", "numpy", "hypothesis")
TABLES = ("CLAIMS", "EXERCISES", "STAGES", "KINDS", "ALGORITHMS", "LAWS")
"""The names of tables, which are checked beside callables."""

ModuleFingerprint = dict[str, tuple[Any, ...]]


def fingerprint() -> ModuleFingerprint:
    """Each part of the checked modules by name; for a function also its code."""
    modules = [(name, module) for name, module in [*sys.modules.items()]
               if name.partition(".")[0] in LOOKED_AT and isinstance(module, ModuleType)]
    return dict(part for name, module in modules for part in parts(name, vars(module), set()))


def parts(name: str, within: Mapping[str, Any], seen: set[int]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key, value in [*within.items()]:
        if not (callable(value) or isinstance(value, property)) and key not in TABLES:
            continue
        full = f"{name}.{key}"
        yield full, (value, *code_of(value), *content_of(value))
        own = isinstance(value, type) and value.__module__.partition(".")[0] == "zerosim"
        if own and id(value) not in seen:
            seen.add(id(value))
            yield from parts(full, vars(value), seen)


def code_of(value: Any) -> tuple[Any, ...]:
    return (value.__code__, value.__defaults__) if isinstance(value, FunctionType) else ()


def content_of(value: Any) -> tuple[Any, ...]:
    """The items of a table."""
    return tuple(value.items()) if isinstance(value, dict) else ()


def touched(before: ModuleFingerprint) -> str | None:
    """The first part that has changed.

    >>> before = fingerprint()
    >>> touched(before) is None
    True
    """
    now = fingerprint()
    for name, was in before.items():
        found = now.get(name, ())
        if len(found) != len(was) or any(new is not old and not same_items(new, old)
                                         for new, old in zip(found, was, strict=True)):
            return name
    return None


def same_items(new: Any, old: Any) -> bool:
    """Whether two entries of a table have the same key and value."""
    pair = isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old) == 2
    return pair and new[0] == old[0] and new[1] is old[1]
