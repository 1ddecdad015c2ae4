"""A recorded run as a film: what every rank holds, frame by frame, and the messages between. Pages step through it.

    panel    one run: a column for each rank, and in it a row of cells for each kind and unit, or for each chunk
    frame    what the ranks hold after a round of messages, a computation or a release
    cell     a chunk in a rank's memory: its colour is the chunk's, its parts are the contributions that it has
    step     of a page: a frame of each panel; runs beside each other are at the same computation

`film.js` draws this data and knows neither collectives nor stages.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.terms import Sum, Term, leaves
from zerosim.core.words import joined
from zerosim.observe.ledger import MEMORY_KINDS
from zerosim.observe.record import Message
from zerosim.proofs.case import expected_terms
from zerosim.proofs.contents import USES, Contents, Moment, State
from zerosim.proofs.schedule import Cell as ScheduleCell
from zerosim.proofs.schedule import Schedule, abbreviated, chunks_of
from zerosim.show.columns import KIND_NAMES, KIND_WORDS
from zerosim.show.pictures import KINDS
from zerosim.verdict.pipelines import Passes, in_lockstep

FILLS = KINDS | {"sent": "#7d868f"}
"""The colours of the parts of bars."""
COLOURS = ("#2a7fc0", "#d2601a", "#1f9470", "#a8509b", "#5a54c4", "#5f9a2c", "#1594a8", "#56616e")
"""The colours of the chunks, in turn; none is that of a kind, and none is red, which is what is wrong."""
LOSS = ("", "loss")
"""The row of losses in a step."""
FEW = 4
"""The most ranks whose sums in a collective are written out."""


@dataclass(frozen=True)
class Cell:
    """A drawn cell: its text, the number of its colour, the contributions that it has (None: it is no sum), and
    its looks: `blank` allocated and not filled, `outside` of the vector, `new`, `done` complete, `wrong`.
    """

    text: str
    colour: int
    parts: tuple[int, ...] | None = None
    looks: tuple[str, ...] = ()

    @property
    def tone(self) -> str:
        return COLOURS[self.colour % len(COLOURS)]


Move = tuple[int, int, int, int, bool, Cell | None]
"""A chunk of a message: its rank and cell at the sender, those at the receiver, whether it is added there, and itself.
"""
Bar = tuple[str, str, list[tuple[str, int]]]
"""A bar of a rank: its name, its figure, and its parts, each a kind and its length."""


@dataclass(frozen=True)
class Frame:
    """What all ranks hold, and the messages and the computation that led to it."""

    words: str
    cells: list[list[Cell | None]]
    moves: list[Move] = field(default_factory=list)
    notes: Sequence[str] = ()
    """A line for each message."""
    uses: Sequence[int] = ()
    """The rows that the computation uses."""
    bars: Sequence[Sequence[Bar]] = ()
    begins: bool = True
    """Whether it is the first frame of its event."""
    passes: int = 0
    """The number of computations before it."""

    @property
    def wrong(self) -> bool:
        return any(cell is not None and "wrong" in cell.looks for cells in self.cells for cell in cells)


@dataclass(frozen=True)
class Panel:
    """A run: its rows, each with its group and its name, the cells that a rank has in a row, and the contributions of a
    complete sum, 0 if nothing is added.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    across: int
    whole: int
    frames: Sequence[Frame]

    def name_of(self, place: int) -> str:
        """The name of a cell in words."""
        chunk = f", chunk {place % self.across}" * (self.across > 1 and self.rows[place // self.across] != LOSS)
        return " ".join(self.rows[place // self.across]).strip() + chunk


def looking(**looks: bool) -> tuple[str, ...]:
    return tuple(look for look, holds in looks.items() if holds)


# Collectives.


def of_schedule(schedule: Schedule) -> Panel:
    """The film of a collective: a row for each chunk, a frame for each state."""
    red, sums, sent = wrong_cells(schedule), schedule.subject.kind.reducing, Counter[int]()
    unit, frames = "chunks" if schedule.chunks > 1 else "vectors", list[Frame]()

    def drawn(state: int, rank: int, cell: ScheduleCell) -> Cell:
        terms = [leaf for leaf in leaves(cell.holds) if isinstance(leaf, Term)]
        ranks, added = tuple(term.rank for term in terms), sums and len({term.element for term in terms}) == 1
        colour = (terms[0].element if schedule.chunks > 1 else terms[0].rank) if terms else cell.place
        short = "✓" if cell.complete else abbreviated(ranks, "+", 2)
        text = cell.text if schedule.size <= FEW or not added else short
        return Cell(text, colour, ranks if added else None, looking(
            blank=not terms, outside=cell.outside, new=0 < cell.since == state, done=cell.complete,
            wrong=(state, rank, cell.place) in red))

    for state, vectors in enumerate(schedule.states):
        moves, notes = list[Move](), list[str]()
        for message in (message for message in schedule.messages if message.round == state):
            chunks = chunks_of(message.carried)
            sent[message.source] += len(message.carried)
            notes.append(note_of(message, schedule.place_name(*chunks)))
            moves += [(message.source, left, message.to, reached, message.reduced, drawn(-1, 0, ScheduleCell(
                carried, left, 0))) for left, reached, carried in zip(
                message.outgoing or chunks or [0], message.into or chunks or [0], message.carried or [None],
                strict=False)]
        heading = schedule.heading(state)
        cells: list[list[Cell | None]] = [
            [*(drawn(state, rank, cell) for cell in vector)] or [None] for rank, vector in enumerate(vectors)]
        frames.append(Frame(
            f"{heading} of {schedule.rounds}" if heading.startswith("round") else heading, cells, moves, notes,
            bars=[[(f"{unit} sent", str(sent[rank]), [("sent", sent[rank])])] for rank in range(schedule.size)]))
    rows = [("", schedule.place_name(place)) for place in range(schedule.chunks)] or [("", schedule.place_name())]
    return Panel(schedule.title, rows, 1, schedule.size, frames)


def note_of(message: Message, chunks: str) -> str:
    return f"{message.source} → {message.to}: {chunks}{', added' * message.reduced}"


def wrong_cells(schedule: Schedule) -> set[tuple[int, int, int]]:
    """The states, ranks and places of wrong contents.

    A sum that has a contribution twice, or two chunks, is wrong as long as it is there; what differs from the result at
    the end, or is added in another order than is due, since its arrival. A contribution that is missing at the end was
    lost where something else took its place.
    """
    last, missing = len(schedule.states) - 1, defaultdict[int, set[Any]](set)
    red = {(last, fault.rank, fault.chunk) for fault in schedule.proof.faults
           if fault.rank is not None and fault.chunk is not None}
    red |= {(state, rank, cell.place) for state, vectors in enumerate(schedule.states)
           for rank, cells in enumerate(vectors) for cell in cells
           if isinstance(cell.holds, Sum) for added in [[*leaves(cell.holds)]]
           if len({leaf for leaf in added if isinstance(leaf, Term)}) < len(added)
           or len({leaf.element for leaf in added}) > 1}
    due = expected_terms(schedule.subject.kind, schedule.size, schedule.chunks, schedule.root)
    for (rank, place), terms in due.items():
        cell = schedule.states[last][rank][place]
        held, expected = Counter[Any](leaves(cell.holds)), Counter[Any](terms)
        if held != expected:
            red |= {(state, rank, place) for state in range(cell.since or last, last + 1)}
            missing[place] |= {*(expected - held)}
    for state, (before, after) in enumerate(pairwise(schedule.states) if schedule.subject.kind.reducing else (), 1):
        for rank, cells in enumerate(zip(*both, strict=True) for both in zip(before, after, strict=True)):
            for was, cell in cells:
                if {*leaves(was.holds)} & missing[cell.place] - {*leaves(cell.holds)}:
                    red |= {(later, rank, cell.place) for later in range(state, last + 1)
                            if schedule.states[later][rank][cell.place] is cell}
    return red


# Stages.


def of_step(title: str, contents: Contents, trained: Sequence[Sequence[Mapping[str, int]]]) -> Panel:
    """The film of a step: a row for each kind of state and unit, in which a rank has a cell for each chunk.

    `trained` are the bytes of all kinds that each rank held after each event of a training.
    """
    frames, sent, events, passes = list[Frame](), Counter[int](), 0, 0
    rows = [(KIND_NAMES[kind], unit) for kind, unit in contents.rows]
    wrong_losses = [[*contents.wrong_losses(rank)] for rank in range(contents.size)]
    rows += [LOSS] * any(wrong_losses)
    for number, moment in enumerate(contents.moments):
        moves, notes = list[Move](), list[str]()
        for message in moment.messages:
            sent[message.source] += contents.sent_bytes(message)
            outgoing = message.outgoing or message.into
            moves += [(message.source, left, message.to, reached, message.reduced, drawn_state(contents, left, carried))
                      for left, reached, carried in zip(
                          outgoing, message.into or outgoing, message.carried, strict=False)]
            chunks = abbreviated([cell % contents.size for cell in outgoing], ",")
            notes.append(note_of(message, f"chunk {chunks}"))
        last = number == len(contents.moments) - 1
        events += number > 0 and moment.ends
        others = trained[min(events, len(trained)) - 1] if events else [{}] * contents.size
        cells = [[drawn_state(contents, cell, content, last and contents.ends_wrong(rank, cell))
                  for cell, content in enumerate(held.cells)] for rank, held in enumerate(moment.ranks)]
        for rank, of_rank in enumerate(cells if any(wrong_losses) else ()):
            wrong = bool(wrong_losses[rank]) and wrong_losses[rank][number]
            loss = drawn_sum(moment.ranks[rank].loss, -1, contents.block, wrong)
            of_rank += [loss, *[None] * (contents.size - 1)]
        frames.append(Frame(
            words_of(contents, moment, contents.moments[max(number - 1, 0)]), cells, moves, notes,
            [row for row, (kind, unit) in enumerate(contents.rows) if unit == moment.unit and kind in moment.uses],
            [[("memory, kB", f"{sum(bytes_of.values()) / 1e3:.1f}", [*bytes_of.items()]),
              ("sent, kB", f"{sent[rank] / 1e3:.1f}", [("sent", sent[rank])])]
             for rank, held in enumerate(moment.ranks) for bytes_of in [
                 {KIND_NAMES[kind]: (held.held_bytes if kind in MODEL_STATES else others[rank]).get(kind, 0)
                  for kind in MEMORY_KINDS}]],
            moment.round <= 1, passes))
        passes += moment.what in USES and moment.ends
    return Panel(title, rows, contents.size, contents.size * contents.block, frames)


def drawn_state(contents: Contents, cell: int, content: Any, ends_wrong: bool = False) -> Cell | None:
    """A cell of a step; it is also wrong if it `ends_wrong`: something is missing, or was not freed."""
    if content is None and not ends_wrong:
        return None
    kind, wrong = contents.rows[cell // contents.size][0], ends_wrong or contents.wrong(cell, content)
    if isinstance(content, State):
        new = content.updates == contents.updates
        letters = ["w"] if kind == "parameters" else [slot[0] for slot in contents.slots]
        return Cell(" ".join(letter + "′" * new for letter in letters), content.element % contents.size, None,
                    looking(new=new, wrong=wrong))
    element = next((leaf.element for leaf in leaves(content) if isinstance(leaf, Term)), cell)
    return drawn_sum(content, element % contents.size, contents.size * contents.block, wrong)


def drawn_sum(content: Any, colour: int, whole: int, wrong: bool) -> Cell:
    """A sum by the numbers of its micro-batches; Σ if it has as many as the `whole` sum."""
    added = tuple(leaf.rank for leaf in leaves(content) if isinstance(leaf, Term))
    done = not wrong and len(added) == whole
    return Cell("Σ" if done else abbreviated(added, "+", 2), colour, added,
                looking(blank=not added, done=done, wrong=wrong))


def words_of(contents: Contents, moment: Moment, before: Moment) -> str:
    """A frame of a step in words."""
    def named(cells: set[int]) -> str:
        rows = dict.fromkeys(contents.rows[cell // contents.size] for cell in sorted(cells))
        by_kind = {kind: [unit for other, unit in rows if other == kind] for kind, _ in rows}
        return joined([f"{KIND_WORDS[kind]} of {joined(units) if len(units) < len(contents.units) else 'all units'}"
                       for kind, units in by_kind.items()])

    if moment.freed:
        lost = {cell for old, new in zip(before.ranks, moment.ranks, strict=True) for cell, (was, now) in enumerate(
            zip(old.cells, new.cells, strict=True)) if was is not None and now is None}
        return f"free {named(lost)}" if lost else "free arrays"
    if moment.what == "between steps":
        return "after the step" if moment is contents.moments[-1] else "before the step"
    moved = {cell for message in moment.messages for cell in message.outgoing}
    words = f"{moment.what.replace('_', '-')} {named(moved) if moved else moment.unit}".strip()
    return f"{words}, round {moment.round} of {moment.rounds}" if moment.rounds > 1 else words


# Pipelines.


def of_passes(title: str, passes: Passes) -> Panel:
    """The film of a pipeline: a frame for each unit of time, a row for each micro-batch, and in it a cell for each
    model chunk of a rank.
    """
    begins, size = in_lockstep(passes), len(passes)
    chunks, numbers = (1 + max(getattr(slot, key) for slots in passes for slot in slots)
                       for key in ("chunk", "micro_batch"))
    now = {(at, rank): slot for rank, both in enumerate(zip(begins, passes, strict=True))
           for at, slot in zip(*both, strict=True)}
    cells: list[list[Cell | None]] = [[None] * (numbers * chunks) for _ in passes]
    frames, last = [], "W" if any(slot.what == "W" for slot in now.values()) else "B"
    end = 1 + max(map(max, begins))
    for time in range(end + 1):
        cells = [[None if cell is not None and cell.text == last else cell and replace(cell, looks=())
                  for cell in of_rank] for of_rank in cells]
        moves = list[Move]()
        for rank, of_rank in enumerate(cells):
            if (slot := now.get((time, rank))) is None:
                continue
            place = slot.micro_batch * chunks + slot.chunk
            of_rank[place] = Cell(slot.what, slot.micro_batch, None, ("new",))
            chunk, source = divmod(slot.chunk * size + rank + {"F": -1, "B": 1, "W": 0}[slot.what], size)
            if source != rank and 0 <= chunk < chunks:
                moves.append((source, slot.micro_batch * chunks + chunk, rank, place, False, of_rank[place]))
        frames.append(Frame(f"time {time}" if time < end else "end", cells, moves, bars=[
            [("chunks kept", str(kept := sum(cell is not None for cell in of_rank)), [("activations", kept)]),
             ("waited", str(waited := min(time + 1, end) - sum(at <= time for at in begun)), [("sent", waited)])]
            for begun, of_rank in zip(begins, cells, strict=True)]))
    return Panel(title, [("", f"micro-batch {number}") for number in range(numbers)], chunks, 0, frames)


# Pages.


def film(panels: Sequence[Panel], first: int = 0) -> dict[str, Any]:
    """The data that `film.js` draws, in JSON's own types: of each frame only the cells that changed."""
    return {"first": first, "longest": longest(panels), "kinds": FILLS, "panels": [{
        "title": panel.title, "rows": panel.rows, "across": panel.across, "ranks": len(panel.frames[0].cells),
        "whole": panel.whole,
        "frames": [{
            "words": frame.words, "moves": [(*move, plain(cell)) for *move, cell in frame.moves], "uses": frame.uses,
            "bars": frame.bars,
            "cells": [[rank, place, plain(cell)]
                      for rank, cells in enumerate(frame.cells) for place, cell in enumerate(cells)
                      if not number or panel.frames[number - 1].cells[rank][place] != cell],
        } for number, frame in enumerate(panel.frames)],
    } for panel in panels], "steps": [*together(panels)]}


def longest(panels: Sequence[Panel]) -> Counter[str]:
    """The length of the longest bar of each name, to which all are drawn in scale."""
    lengths = Counter[str]()
    for name, _, parts in (bar for panel in panels for frame in panel.frames for bars in frame.bars for bar in bars):
        lengths[name] = max(lengths[name], sum(length for _, length in parts), 1)
    return lengths


def plain(cell: Cell | None) -> list[Any] | None:
    return None if cell is None else [cell.text, cell.tone, cell.parts, " ".join(cell.looks)]


def together(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """The steps of a page: their words, the frame of each panel, and whether it is a `new` one of that panel.

    All panels are at the same computation. Between two of them, frames with the same words are in one step, and a panel
    without such a frame waits.
    """
    names, at = [[(frame.passes, frame.words) for frame in panel.frames] for panel in panels], [-1] * len(panels)
    for passes, words in merged(names):
        new = [(passes, words) in of_panel[place + 1 : place + 2] for of_panel, place in zip(names, at, strict=True)]
        at = [place + is_new for place, is_new in zip(at, new, strict=True)]
        frames = [panel.frames[max(place, 0)] for panel, place in zip(panels, at, strict=True)]
        moved = [panel.title for panel, is_new in zip(panels, new, strict=True) if is_new]
        yield {
            "words": words if all(new) else f"{joined(moved)}: {words}", "at": [max(place, 0) for place in at],
            "new": new, "wrong": any(frame.wrong for frame in frames),
            "notes": [*red_words(panels[0], frames[0]), *frames[0].notes] if len(panels) == 1 else (),
            "begins": any(frame.begins for frame, is_new in zip(frames, new, strict=True) if is_new)}


def merged(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """All items, those of each list in its order; runs that lists share are once in it.

    >>> merged([["reduce", "gather", "forward"], ["free", "reduce", "forward"]])
    ['free', 'reduce', 'gather', 'forward']
    """
    items: list[Any] = []
    for wanted in lists:
        runs = SequenceMatcher(None, items, wanted, autojunk=False).get_opcodes()
        items = [item for what, first, last, begin, end in runs
                 for item in [*items[first:last], *(wanted[begin:end] if what != "equal" else ())]]
    return items


def numbers(panel: Panel) -> dict[str, Any]:
    """The film as a table: a line for each frame, with its messages, and the bars and new contents of every rank."""
    def changed(number: int, rank: int) -> list[str]:
        now, before = (panel.frames[at].cells[rank] for at in (number, max(number - 1, 0)))
        return [f"{panel.name_of(place)}: {(cell.text or 'not filled') if cell else 'empty'}"
                for place, cell in enumerate(now) if not number or cell != before[place]]

    ranks = range(len(panel.frames[0].cells))
    return {"heads": [panel.title, "messages", *(f"rank {rank}" for rank in ranks)], "rows": [
        [frame.words, "; ".join([*red_words(panel, frame), *frame.notes]), *("; ".join([
            *(f"{name}: {figure}" for name, figure, _ in frame.bars[rank]), *changed(number, rank)]) for rank in ranks)]
        for number, frame in enumerate(panel.frames)]}


def red_words(panel: Panel, frame: Frame) -> list[str]:
    return [f"wrong: rank {rank}, {panel.name_of(place)}" for rank, cells in enumerate(frame.cells)
            for place, cell in enumerate(cells) if cell is not None and "wrong" in cell.looks]
