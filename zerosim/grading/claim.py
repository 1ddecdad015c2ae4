"""What can be claimed of a function, and found out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One thing a function must do, in a learner's words; `complaint()` is what is wrong, None where nothing is."""

    says: str
    complaint: Callable[[], str | None]


Claims = Callable[[Callable[..., Any]], Iterator[Claim]]
"""All that is claimed of a function, the most basic first."""
