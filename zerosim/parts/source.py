"""A user's function that returns samples: a part whose keys are its keyword-only parameters."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerosim.errors import UsageError
from zerosim.parts.loading import Declared
from zerosim.parts.signature import signature_of


@dataclass(frozen=True)
class SampleSource(Declared):
    """A function that returns arrays, and its keys of [data]."""

    function: Callable[..., Any]
    keys: Mapping[str, Any]


def as_source(name: str, found: Any) -> SampleSource:
    """The sample source that a scenario names. Raises `UsageError` for anything else."""
    if isinstance(found, SampleSource):
        return found
    if not inspect.isfunction(found):
        raise UsageError(f"{name} is a {type(found).__name__}; give a function, def {name.rpartition(':')[2]}(*, "
                         "key=default, …), that returns x, y")
    signature = signature_of(name, found)
    if signature.positional:
        raise UsageError(f"{name} takes {', '.join(signature.positional)}; it is called with keywords only: write def"
                         f" {found.__name__}(*, {signature.positional[0]}=…)")
    return SampleSource(found, signature.keys)
