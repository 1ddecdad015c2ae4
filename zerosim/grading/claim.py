"""What can be claimed of a function, and found out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One thing a function must do, in a learner's words; `complaint()` is what is wrong, None where nothing is."""

    says: str
    complaint: Callable[[], str | None]
    points: int = 1
    law: str = ""
    """The name of the law that it is, if it is one."""
    first: bool = False
    """Whether nothing further is asked while it does not hold."""
    needs: str = ""
    """What has to be installed before it can be asked, in words."""


ClaimsOf = Callable[[Callable[..., Any]], Sequence[Claim]]
"""All that is claimed of a function, the most basic first; nothing of it is run before it is asked."""
