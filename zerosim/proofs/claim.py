"""A claim about a part, and the result of all claims about one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

ClaimState = Literal["holds", "does not hold", "not tried", "not yet written"]


@dataclass(frozen=True)
class Claim:
    """One promise of a part, in words; `complaint()` returns the error, None if it holds.

    After a `first` claim that does not hold nothing else is tried.
    """

    says: str
    complaint: Callable[[], str | None]
    first: bool = False


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with its state, and the complaint if it does not hold."""

    says: str
    state: ClaimState
    complaint: str | None = None


@dataclass(frozen=True)
class CheckedPart:
    """All claims about a part; the part holds if they do."""

    name: str
    claims: Sequence[CheckedClaim]

    @property
    def holds(self) -> bool:
        return self.state == "holds"

    @property
    def state(self) -> ClaimState:
        states = {claim.state for claim in self.claims}
        worst: tuple[ClaimState, ...] = ("not yet written", "does not hold")
        return next((state for state in worst if state in states), "holds")

    @property
    def complaints(self) -> list[str]:
        return [claim.complaint for claim in self.claims if claim.complaint]


def tried(name: str, claims: Iterable[Claim]) -> CheckedPart:
    """The part with each claim tried in order.

    A part that raises `NotImplementedError` is not yet written, and nor is any later claim tried.
    """
    checked, untried = list[CheckedClaim](), cast("ClaimState | None", None)
    for claim in claims:
        complaint = None
        try:
            complaint = None if untried else claim.complaint()
        except NotImplementedError:
            untried = "not yet written"
        checked.append(CheckedClaim(claim.says, untried or ("does not hold" if complaint else "holds"), complaint))
        if claim.first and complaint:
            untried = "not tried"
    return CheckedPart(name, checked)
