"""Whether a submission has changed zerosim, or NumPy, in the process that examines it.

    fingerprint    what every name of every module, and of every class in it, refers to

The examination goes on in the process in which a submission runs. So its code is looked at before the submission is
imported and after the last claim: who has put something else in the place of any part of it is told, and has no points.
Who hides that from this look still earns nothing by it: `confirmed.py` gives points in another process.
"""

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

LOOKED_AT = ("zerosim", "numpy", "hypothesis")
TABLES = ("CLAIMS", "EXERCISES", "STAGES", "KINDS", "ALGORITHMS", "LAWS")
"""What is looked up, beside what is called."""

ModuleFingerprint = dict[str, tuple[Any, ...]]


def fingerprint() -> ModuleFingerprint:
    """Each part of the modules that are looked at, by its name, and of a function its code."""
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
    """What a table has in it."""
    return tuple(value.items()) if isinstance(value, dict) else ()


def touched(before: ModuleFingerprint) -> str | None:
    """The first part that is no longer what it was.

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
    """Whether an entry of a table has the same key and value."""
    pair = isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old) == 2
    return pair and new[0] == old[0] and new[1] is old[1]
