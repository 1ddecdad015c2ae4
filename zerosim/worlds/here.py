"""The collective, step and row that each thread is in, for errors that say which rank waits for which other in what."""

import threading
from collections.abc import Sequence
from typing import NamedTuple

SHOWN_RANKS = 8


class Spot(NamedTuple):
    """A collective, what it is for, the step and the row; empty and 0 where there is none.

    >>> str(Spot("all_gather", "layers.0", 3, "Stage III")), str(Spot(step=3)), str(Spot())
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
    """What each rank does and where, as words behind "no rank can go on"; one spot of all is said once.

    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "in step 2")])
    ' in step 2: rank 0 waits; rank 1 is stopped'
    >>> explained([("rank 0 waits", "in step 2"), ("rank 1 is stopped", "")])
    ': rank 0 waits in step 2; rank 1 is stopped'
    """
    shown, more = found[:SHOWN_RANKS], len(found) - SHOWN_RANKS
    others = [f"and {more} more ranks"] if more > 0 else []
    spots = {spot for _, spot in found}
    if len(spots) == 1:
        return f"{spaced(*spots)}: {'; '.join([*(words for words, _ in shown), *others])}"
    return f": {'; '.join([*(words + spaced(spot) for words, spot in shown), *others])}"


def spaced(spot: object) -> str:
    """A spot as it goes on after a word; nothing if it is none."""
    return f" {spot}" if str(spot) else ""


class Here(threading.local):
    """The spot of the thread that asks."""

    def __init__(self) -> None:
        self.spot = Spot()


HERE = Here()
