"""A claim about a part, and the result of all claims about one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One promise of a part, in words; `complaint()` returns the error, None if it holds.

    After a `first` claim that does not hold nothing else is tried.
    """

    says: str
    complaint: Callable[[], str | None]
    first: bool = False


@dataclass(frozen=True)
class CheckedPart:
    """The claims about a part, each with its complaint or None; not yet written if it raises `NotImplementedError`."""

    name: str
    claims: Sequence[tuple[str, str | None]]
    written: bool = True

    @property
    def holds(self) -> bool:
        return self.written and not any(complaint for _, complaint in self.claims)

    @property
    def state(self) -> str:
        return "holds" if self.holds else "does not hold" if self.written else "not yet written"
