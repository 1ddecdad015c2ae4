"""Claims about a function, each of which can be checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One requirement of a function, in a learner's words; `complaint()` returns the error, None if it holds."""

    says: str
    complaint: Callable[[], str | None]
    points: int = 1
    law: str = ""
    """The name of the law, if the claim is a law."""
    first: bool = False
    """Whether nothing further is checked until this claim holds."""
    separable: bool = True
    """Whether it can be checked on ranks in separate processes."""
    needs: str = ""
    """The package that must be installed for the check, in words."""


ClaimsOf = Callable[[Callable[..., Any]], Sequence[Claim]]
"""All claims about a function, the most basic first; none runs until it is checked."""
