"""A schedule as data for an interactive drawing: the contents of every rank after each round, and its messages."""

from typing import Any

from zerosim.collectives import ALGORITHMS
from zerosim.payloads.terms import Term, leaves
from zerosim.show.schedule import Cell, Schedule, expression, scheduled
from zerosim.show.schedule_svg import TONES
from zerosim.stages.adding import ADDITIONS
from zerosim.teach.proofs.subject import named_subject

MOST_RANKS = 8
"""The most columns that fit on a lecturer's screen."""


def collectives_of(order: str) -> list[str]:
    """The algorithms by which a run adds and gathers, and their composition if there is one.

    >>> collectives_of("ring"), collectives_of("exact")
    (['ring.all_reduce', 'ring.reduce_scatter', 'ring.all_gather'], ['ring.all_gather'])
    """
    adds = ADDITIONS[order].collective
    family = adds.__module__.rpartition(".")[2] if adds else ""
    wanted = (f"{family}.all_reduce", f"{family}.reduce_scatter", "ring.all_gather")
    return [name for name in wanted if name in ALGORITHMS]


def steps(schedule: Schedule, first: int = 0) -> dict[str, Any]:
    """The schedule by states, shown from state `first` on; each state has only the cells that changed.

    >>> found = steps(scheduled(named_subject("ring.all_gather"), 2))
    >>> found["states"][1]["messages"][0]["words"]
    'rank 1 sends chunk 1 to rank 0'
    """
    return {
        "name": schedule.subject.name,
        "about": f"{schedule.title}: {schedule.cost}",
        "ranks": schedule.size,
        "places": [schedule.place_name(place) for place in range(schedule.chunks)],
        "tones": tones(schedule.chunks),
        "first": first,
        "states": [state(schedule, number) for number in range(len(schedule.states))],
    }


def tones(chunks: int) -> list[dict[str, str]]:
    """A colour for each chunk: those of the pictures or, for more chunks, hues around the circle.

    >>> len(tones(4)), len(tones(16)), tones(16)[4]["line"]
    (8, 16, 'hsl(90 65% 38%)')
    """
    if chunks <= len(TONES):
        return [{"line": tone.line, "ground": tone.ground} for tone in TONES]
    hues = [round(360 * chunk / chunks) for chunk in range(chunks)]
    return [{"line": f"hsl({hue} 65% 38%)", "ground": f"hsl({hue} 60% 84%)"} for hue in hues]


def share(cell: Cell, size: int) -> float:
    """The filled share of a cell without room for words: for a sum, the share of the ranks in it.

    >>> from zerosim.payloads.terms import Blank, Term
    >>> share(Cell(Term(0) + Term(1), 0, 1), 8), share(Cell(Blank(0), 0, 0), 8)
    (0.25, 0.0)
    """
    ranks = {leaf.rank for leaf in leaves(cell.holds) if isinstance(leaf, Term)}
    return 1.0 if cell.complete else round(len(ranks) / size, 3)


def state(schedule: Schedule, number: int) -> dict[str, Any]:
    return {
        "heading": schedule.heading(number),
        "cells": [
            {"rank": rank, "place": cell.place, "text": cell.text, "holds": expression(cell.holds, cell.place),
             "share": share(cell, schedule.size)}
            for rank, cells in enumerate(schedule.states[number]) for cell in cells if cell.since == number
        ],
        "messages": [
            {
                "source": arrow.source, "to": arrow.to, "chunks": list(arrow.chunks), "lands": list(arrow.lands),
                "words": f"rank {arrow.source} sends {schedule.cargo(arrow)} to rank {arrow.to}"
                         + ", which adds it" * arrow.reduced,
            }
            for arrow in schedule.arrows_in(number)
        ],
    }


def of_run(order: str, ranks: int) -> list[dict[str, Any]]:
    """The schedules of the collectives of a run with this order of addition."""
    return [steps(scheduled(named_subject(name), min(ranks, MOST_RANKS))) for name in collectives_of(order)]
