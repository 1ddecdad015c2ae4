"""The collective, step and row of each thread, for errors that say which rank waits for which other, and where."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple

SHOWN_RANKS = 8


class Location(NamedTuple):
    """A step, a row, and the collectives that a thread is in, each with its unit, innermost last; 0 and empty for none.

    >>> str(Location(3, "Stage III").within("all_gather", "layers.0")), str(Location(3)), str(Location())
    ('in the all_gather of layers.0, step 3 of Stage III', 'in step 3', '')
    """

    step: int = 0
    row: str = ""
    collectives: tuple[tuple[str, str], ...] = ()

    @property
    def innermost(self) -> tuple[str, str]:
        """The innermost collective and its unit; empty without one."""
        return self.collectives[-1] if self.collectives else ("", "")

    def within(self, collective: str, unit: str) -> "Location":
        """The location in a collective that begins here."""
        return Location(self.step, self.row, (*self.collectives, (collective, unit)))

    def __str__(self) -> str:
        collective, unit = self.innermost
        where = [f"the {collective}{f' of {unit}' if unit else ''}"] if collective else []
        where += [f"step {self.step}{f' of {self.row}' if self.row else ''}"] if self.step else []
        return f"in {', '.join(where)}" if where else ""


def explained(states: Sequence[tuple[str, str]]) -> str:
    """The state and location of each rank, as words after "no rank can go on"; a common location is written once.

    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "in step 2")])
    ' in step 2: rank 0 waits; rank 1 is stopped'
    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "")])
    ': rank 0 waits in step 2; rank 1 is stopped'
    """
    shown, more = states[:SHOWN_RANKS], len(states) - SHOWN_RANKS
    others = [f"and {more} more ranks"] if more > 0 else []
    locations = {location for _, location in states}
    if len(locations) == 1:
        return f"{spaced(*locations)}: {'; '.join([*(words for words, _ in shown), *others])}"
    return f": {'; '.join([*(words + spaced(location) for words, location in shown), *others])}"


def spaced(location: object) -> str:
    """A location with a space before it; empty if it is empty."""
    return f" {location}" if str(location) else ""


NOWHERE = Location()
HERE = ContextVar("HERE", default=NOWHERE)
"""The location of the calling thread; `Observed.named` records collectives. It costs half a microsecond for each."""
