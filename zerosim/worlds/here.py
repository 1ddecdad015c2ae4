"""The collective, step and row of each thread, for errors that say which rank waits for which other, and where."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

SHOWN_RANKS = 8


class Location(NamedTuple):
    """A collective, its unit, the step and the row; empty and 0 where there is none.

    >>> str(Location("all_gather", "layers.0", 3, "Stage III")), str(Location(step=3)), str(Location())
    ('in the all_gather of layers.0, step 3 of Stage III', 'in step 3', '')
    """

    collective: str = ""
    unit: str = ""
    step: int = 0
    row: str = ""

    def __str__(self) -> str:
        if not self.step:
            return f"in the {self.collective}" if self.collective else ""
        when = f"step {self.step} of {self.row}" if self.row else f"step {self.step}"
        if not self.collective:
            return f"in {when}"
        return f"in the {self.collective}{f' of {self.unit}' if self.unit else ''}, {when}"


def explained(found: Sequence[tuple[str, str]]) -> str:
    """The state and location of each rank, as words after "no rank can go on"; a common location is written once.

    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "in step 2")])
    ' in step 2: rank 0 waits; rank 1 is stopped'
    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "")])
    ': rank 0 waits in step 2; rank 1 is stopped'
    """
    shown, more = found[:SHOWN_RANKS], len(found) - SHOWN_RANKS
    others = [f"and {more} more ranks"] if more > 0 else []
    locations = {location for _, location in found}
    if len(locations) == 1:
        return f"{spaced(*locations)}: {'; '.join([*(words for words, _ in shown), *others])}"
    return f": {'; '.join([*(words + spaced(location) for words, location in shown), *others])}"


def spaced(location: object) -> str:
    """A location with a space before it; empty if it is empty."""
    return f" {location}" if str(location) else ""


class Here(threading.local):
    """The location of the calling thread, and those before the present collectives, innermost last."""

    def __init__(self) -> None:
        self.location = Location()
        self.before: list[Location] = []


HERE = Here()
