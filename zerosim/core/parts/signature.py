"""The signature of a user's function: positional parameters, and keys with their defaults; sources of samples."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.core.parts.loading import Declared

PLAIN = (bool, int, float, str)


@dataclass(frozen=True)
class Signature:
    """`positional` parameters in order; `keys` are keyword-only ones with defaults, which a scenario may set."""

    positional: tuple[str, ...]
    keys: dict[str, Any]


def signature_of(name: str, function: Callable[..., Any], given: Collection[str] = ()) -> Signature:
    """The signature of the part `name`, which is called with the keywords `given`.

    Raises `UsageError` if it does not take these, or if a key has no default that TOML can express.

    >>> def lion(g, momentum, *, t, h, a, b, beta=0.9): ...
    >>> signature_of("lion", lion, "thab")
    Signature(positional=('g', 'momentum'), keys={'beta': 0.9})
    """
    parameters = inspect.signature(function).parameters.values()
    positional = tuple(x.name for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD))
    keywords = {x.name: x.default for x in parameters if x.kind is x.KEYWORD_ONLY}
    missing = [name for name in given if name not in keywords]
    if missing:
        raise UsageError(f"{name} does not take {', '.join(missing)}; it is called with {', '.join(given)} by keyword: "
                         f"write def {function.__name__}(…, *, {', '.join(given)})")
    keys = {key: default for key, default in keywords.items() if key not in given}
    for key, default in keys.items():
        if not writable(default):
            what = "no default" if default is inspect.Parameter.empty else f"the default {default!r}"
            raise UsageError(f"{name} has a key {key} with {what}; give it a number, a string, a boolean or a list of "
                             f"these")
    return Signature(positional, keys)


def writable(default: Any) -> bool:
    """Whether TOML can express a value of this type."""
    if isinstance(default, tuple | list):
        return all(isinstance(item, PLAIN) for item in default) and len({type(item) for item in default}) < 2
    return isinstance(default, PLAIN)


@dataclass(frozen=True)
class SampleSource(Declared):
    """A function that returns arrays, and its keys of [data]."""

    function: Callable[..., Any]
    keys: Mapping[str, Any]


def as_source(name: str, part: Any) -> SampleSource:
    """The sample source that a scenario names. Raises `UsageError` for anything else."""
    if isinstance(part, SampleSource):
        return part
    if not inspect.isfunction(part):
        raise UsageError(f"{name} is a {type(part).__name__}; give a function, def {name.rpartition(':')[2]}(*, "
                         "key=default, …), that returns x, y")
    signature = signature_of(name, part)
    if signature.positional:
        raise UsageError(f"{name} takes {', '.join(signature.positional)}; it is called with keywords only: write def"
                         f" {part.__name__}(*, {signature.positional[0]}=…)")
    return SampleSource(part, signature.keys)
