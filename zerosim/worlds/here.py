"""Where each thread of a program is: for whoever says which rank waits for which other in what."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

SHOWN_RANKS = 8


class Place(NamedTuple):
    """A collective, what it is for, the step and the row; empty and 0 where there is none.

    >>> str(Place("all_gather", "layers.0", 3, "Stage III")), str(Place(step=3)), str(Place())
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
    """What each rank does and where, as words behind "no rank can go on"; one place of all is said once.

    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "in step 2")])
    ' in step 2: rank 0 waits; rank 1 is stopped'
    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "")])
    ': rank 0 waits in step 2; rank 1 is stopped'
    """
    shown, more = found[:SHOWN_RANKS], len(found) - SHOWN_RANKS
    others = [f"and {more} more ranks"] if more > 0 else []
    places = {place for _, place in found}
    if len(places) == 1:
        return f"{spaced(*places)}: {'; '.join([*(words for words, _ in shown), *others])}"
    return f": {'; '.join([*(words + spaced(place) for words, place in shown), *others])}"


def spaced(place: object) -> str:
    """A place as it goes on after a word; nothing if it is none."""
    return f" {place}" if str(place) else ""


class Here(threading.local):
    """The place of the thread that asks."""

    def __init__(self) -> None:
        self.place = Place()


HERE = Here()
