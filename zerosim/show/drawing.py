"""A schedule drawn: rounds one after the other, in the terminal as text and elsewhere as a specification for Vega-Lite.

    cell     a chunk of a rank after a round
    move     a chunk of a message, from its cell at the sender to its cell at the receiver
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.core.errors import UsageError
from zerosim.proofs.schedule import Schedule, chunks_of
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.show.page import Head, Section, html, note, picture
from zerosim.show.pictures import Spec, svg, tooltip
from zerosim.show.shown import Page, Picture, Shown

MOST_CELLS = 5_000
"""The most cells in the picture of a schedule; a page has as many as there are."""
COLOURS = ("#2a7fc0", "#d2601a", "#1f9470", "#a8509b", "#a88200", "#d0433f", "#1594a8", "#8c6d46")
"""The colours of the chunks, in turn."""
LEGEND = ("2+3+0: ranks in order of addition; 1…3: 1+2+3; 2[1]: chunk 1 of rank 2",
          "⊕ adds what arrives; ✓ complete; (1): not yet in its final place")
HEIGHT, CHARACTER, GAP = 18, 7, 80
"""Pixels: the height of a cell, the width of a character in it, and the space between two rounds."""


def shown_schedule(schedule: Schedule, only: int | None = None) -> Shown:
    """A schedule that displays itself, or `only` one round of it, at which a page opens.

    A row, one for each message, has `round`, `source`, `to`, `chunks`, `reduced`.
    """
    return Shown(
        schedule, not schedule.proof.faults, schedule.verdict,
        f"<{schedule.title}: {schedule.about.partition('; ')[0]}; {schedule.verdict}>",
        show=lambda console: show_schedule(console, schedule, only),
        make_document=schedule.document, rows_of=lambda document: list(document["messages"]),
        draw=lambda: Picture(svg(schedule_picture(schedule, only)), schedule.title),
        make_page=lambda: Page(schedule_page(schedule, only or 0), f"{schedule.title} step by step"))


def schedule_page(schedule: Schedule, first: int = 0) -> str:
    """The HTML of one collective, with a slider for the round, `first` at the beginning."""
    slider = {"input": "range", "min": 0, "max": len(schedule.states) - 1, "step": 1, "name": "round"}
    drawn = schedule_spec(schedule, first)
    drawn["params"][0]["bind"] = slider
    head = Head(schedule.title, schedule.verdict.split("; "), not schedule.proof.faults, schedule.about)
    return html([head], [Section("schedule", "Round by round", [
        note("; ".join(["← and → step, P is for a projector", *LEGEND])),
        picture(drawn, f"{schedule.title}, round by round")])])


def show_schedule(console: Console, schedule: Schedule, only: int | None = None) -> None:
    """Print a schedule, a line for each rank in each round, or `only` one round."""
    show_words(console, Text.assemble((schedule.title, "bold"), f": {schedule.about}"))
    show_words(console, "; ".join([*LEGEND, "› new"]), style="dim")
    for state, vectors in enumerate(schedule.states):
        if only not in (None, state):
            continue
        arrived = [Text("\n").join(
            Text(f"{sent.source} ─{schedule.place_name(*chunks)}─{'⊕' if sent.reduced else '─'}▶",
                 colour(chunks[0]) if len(chunks) == 1 else "")
            for sent in schedule.messages if (sent.round, sent.to) == (state, rank)
            for chunks in [chunks_of(sent.carried)]) for rank in range(schedule.size)]
        cells = [[Text.assemble(("› ", "bold"), (cell.text, f"bold {colour(cell.place)}"))
                  if 0 < cell.since == state else Text(f"  {cell.text}") for cell in vector] for vector in vectors]
        show_grid(console, [f"rank {rank}" for rank in range(schedule.size)], [
            *[Column("arrives", arrived)] * any(arrived),
            *(Column(schedule.place_name(place), column, to_the_left=True)
              for place, column in enumerate(zip(*cells, strict=True)))], schedule.heading(state))
    style = "bold red" if schedule.proof.faults else "bold green"
    console.print(Text(schedule.verdict, style=style), soft_wrap=not console.is_terminal)
    if schedule.cause:
        console.print(Text(f"why: {schedule.cause}"), soft_wrap=not console.is_terminal)


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def schedule_picture(schedule: Schedule, only: int | None = None) -> Spec:
    """The picture of a schedule for a file, with its legend and its verdict; `UsageError` if it has too many cells."""
    cells = (2 if only is not None else len(schedule.states)) * schedule.size * schedule.chunks
    if cells > MOST_CELLS:
        raise UsageError(
            f"a picture of {schedule.title} would have {cells:,} cells, at most {MOST_CELLS:,} are drawn: "
            "give fewer --ranks, a --round, --html for a page, or --json for the same as data")
    lines = [schedule.about, *LEGEND, *schedule.verdict.split("; ")]
    return {"title": {"text": schedule.title, "subtitle": lines, "anchor": "start"}} | schedule_spec(schedule, only)


def schedule_spec(schedule: Schedule, only: int | None = None) -> Spec:
    """A row for each place of each rank, a column of cells for each state, and between columns what moves.

    With `only` it has a parameter `round`, whose state and the one before are drawn.
    """
    headings, lane = [*map(schedule.heading, range(len(schedule.states)))], max(schedule.chunks, 1) + 1
    texts = [cell.text for state in schedule.states for vector in state for cell in vector]
    width = CHARACTER * max(map(len, texts), default=1) + 12
    half = width / 2 / (width + GAP)
    cells = [{"after": headings[state], "rank": rank, "chunk": cell.place, "holds": cell.text, "_x": state,
              "_y": rank * lane + cell.place, "_colour": colour(cell.place), "_new": 0 < state == cell.since}
             for state, vectors in enumerate(schedule.states) for rank, vector in enumerate(vectors) for cell in vector]
    moves = [{"in": headings[sent.round], "from rank": sent.source, "to rank": sent.to,
              "sent": schedule.place_name(*chunks), "_adds": "⊕" * sent.reduced, "_colour": colour(left),
              "_x": sent.round - 1 + half, "_y": sent.source * lane + left,
              "_x2": sent.round - half, "_y2": sent.to * lane + reached}
             for sent in schedule.messages for chunks in [chunks_of(sent.carried)]
             for left, reached in zip(sent.outgoing or chunks or [0], sent.into or chunks or [0], strict=False)]
    rows = {rank * lane + place: f"rank {rank}" * (place == 0) + f"\u2003{place}" * (schedule.chunks > 1)
            for rank in range(schedule.size) for place in range(lane - 1)}
    columns: Spec = {"values": [*range(len(headings))], "domain": [-half, len(headings) - 1 + half]}
    shown: Spec = {}
    if only is not None:
        columns = {"values": {"expr": "round > 0 ? [round - 1, round] : [0]"},
                   "domain": [{"expr": f"round - {1 + half}"}, {"expr": f"round + {half}"}]}
        shown = {"transform": [{"filter": "round - 1 <= datum._x && datum._x <= round"}]}
    tone = {"field": "_colour", "type": "nominal", "scale": None}
    end = {"x": {"field": "_x2", "type": "quantitative"}, "y": {"field": "_y2", "type": "quantitative"}}
    return {
        "params": [{"name": "round", "value": only}],
        "width": (width + GAP) * (len(headings) - 1 if only is None else 1) + width,
        "height": HEIGHT * (schedule.size * lane - 1),
        "encoding": {
            "x": position("_x", headings, **columns, orient="top"),
            "y": position("_y", rows, [*rows], [schedule.size * lane - 1.5, -0.5], orient="left"), "color": tone},
        "layer": [
            shown | {"data": {"values": moves}, "encoding": {"tooltip": tooltip(moves)}, "layer": [
                {"mark": "rule", "encoding": {"x2": {"field": "_x2"}, "y2": {"field": "_y2"}}},
                {"mark": {"type": "point", "shape": "triangle-right", "filled": True, "size": 60, "xOffset": -4},
                 "encoding": end},
                {"mark": {"type": "text", "dx": -16}, "encoding": end | {"text": {"field": "_adds"}}}]},
            shown | {"data": {"values": cells}, "encoding": {"tooltip": tooltip(cells)}, "layer": [
                {"mark": {"type": "rect", "width": width, "height": HEIGHT - 1, "fillOpacity": 0.2}, "encoding": {
                    "stroke": tone, "strokeWidth": {"condition": {"test": "datum._new", "value": 2}, "value": 0}}},
                {"mark": {"type": "text", "font": "ui-monospace, monospace"},
                 "encoding": {"text": {"field": "holds"}, "color": {"value": "#1c1c1c"}}}]}]}


def position(field: str, names: Mapping[int, str] | Sequence[str], values: Any, domain: Any, orient: str) -> Spec:
    """A position whose axis has only `names`, at those whole numbers that are among `values`."""
    return {"field": field, "type": "quantitative", "scale": {"domain": domain, "nice": False}, "axis": {
        "values": values, "labelExpr": f"{json.dumps(names)}[datum.value]", "orient": orient, "title": None,
        "grid": False, "domain": False, "ticks": False}}
