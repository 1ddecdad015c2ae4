"""A recorded step as a picture: a lane for each rank, its events from left to right, below each the rank's memory.

    cell    a rank's part of an event: a letter on the colour of the activity, every other unit paler
    bar     the bytes of each kind in its memory when the event ends, on one scale for all ranks

It is SVG 1.1 written by hand, legible on white and on dark pages, as that of a schedule.
"""

from collections.abc import Iterator
from xml.sax.saxutils import escape

from zerosim.errors import UsageError
from zerosim.show.activities import ACTIVITIES, activity, in_order, is_paler
from zerosim.show.page.pictures import KIND_COLOURS
from zerosim.show.schedule_svg import CHARACTER, MARGIN, STYLE, TOP, WIDE_CHARACTER, text
from zerosim.show.step import KIND_WORDS, RankEvent, RecordedStep, StepEvent
from zerosim.show.timeline import LETTERS

MOST_CELLS = 5_000

CELL, STRIP, BAR, LANE = 52, 20, 54, 96
"""Pixels: the width of an event, the heights of a cell, of the longest bar, and of a whole lane."""
LEFT = 76
LINE = 18
SENDS = "; beside a letter the kB that a rank sends; above a lane: event · layer"
COLOURS = dict(zip(KIND_WORDS, KIND_COLOURS, strict=True))


def step_picture(found: RecordedStep, only: int | None = None) -> str:
    """The step as an SVG file; or `only` one event, counted from 1.

    Raises `UsageError` when it has too many cells.

    >>> event = StepEvent("forward", "layers.0", [RankEvent({1: 8}, {"parameters": 24}), RankEvent({}, {})])
    >>> step_picture(RecordedStep("zero3", "a step on 2 ranks", [event], None)).count('class="cell"')
    2
    """
    numbers = range(1, len(found.events) + 1) if only is None else [only]
    if len(numbers) * found.size > MOST_CELLS:
        raise UsageError(
            f"a picture of {found.title} would have {len(numbers) * found.size:,} cells, at most {MOST_CELLS:,} are "
            "drawn: give fewer --ranks, a --round, or --json for the same as data")
    return "\n".join(StepPicture(found, list(numbers)).parts()) + "\n"


class StepPicture:
    """The picture of a step: positions in pixels, and elements."""

    def __init__(self, found: RecordedStep, numbers: list[int]) -> None:
        self.found = found
        self.events = [(number, found.events[number - 1]) for number in numbers]
        self.units = list(dict.fromkeys(event.unit for event in found.events if event.unit))
        self.activities = in_order(activity(event.what) for _, event in self.events)
        self.bottom = TOP + found.size * LANE
        letters = dict.fromkeys((event.letter, event.what) for _, event in self.events if event.letter)
        self.letters = ", ".join(f"{letter} {LETTERS[what].words if what in LETTERS else what}"
                                 for letter, what in letters)
        lines = [found.about, found.verdict, self.letters + SENDS, "".join(f"{each:5}" for each in self.activities),
                 "".join(f"{words:5}" for words in (*KIND_WORDS.values(), "longest bar: 123.4 kB"))]
        self.width = max(LEFT + len(self.events) * CELL, round(max(map(len, lines)) * WIDE_CHARACTER)) + 2 * MARGIN
        self.height = self.bottom + 4 * LINE + MARGIN

    def parts(self) -> Iterator[str]:
        found = self.found
        yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
               f'width="{self.width}" height="{self.height}" role="img">')
        yield f"<title>{escape(found.title)}</title>"
        yield f"<desc>{escape(f'{found.about}; {found.verdict}')}</desc>"
        yield f"<style>{STYLE}</style>"
        yield text(MARGIN, 26, found.title, "name")
        yield text(MARGIN, 44, found.about)
        for place, (number, event) in enumerate(self.events):
            yield text(self.left(place) + CELL / 2, TOP - 10, heading(number, event.unit), "heading")
        for rank in range(found.size):
            yield text(MARGIN, self.top(rank) + 14, f"rank {rank}")
            floor = self.top(rank) + STRIP + BAR
            yield f'<path d="M{LEFT} {floor}H{self.left(len(self.events))}" stroke="#808080" stroke-width="0.7"/>'
            for place, (_, event) in enumerate(self.events):
                yield from self.cell(place, rank, event)
        yield from self.legend(self.bottom + LINE, [(each, ACTIVITIES[each]) for each in self.activities])
        yield text(MARGIN, self.bottom + 2 * LINE, self.letters + SENDS)
        kinds = [(KIND_WORDS[kind], each) for kind, each in COLOURS.items()]
        yield from self.legend(self.bottom + 3 * LINE, [*kinds, (f"longest bar: {kilobytes(found.most)} kB", "none")])
        yield text(MARGIN, self.bottom + 4 * LINE, found.verdict, "failed" if found.fault else "passed")
        yield "</svg>"

    def left(self, place: int) -> int:
        return LEFT + place * CELL

    def top(self, rank: int) -> int:
        return TOP + rank * LANE

    def cell(self, place: int, rank: int, event: StepEvent) -> Iterator[str]:
        """The cell of a rank in an event: its activity, and its memory from the bottom up."""
        did, x, y, colour = event.ranks[rank], self.left(place), self.top(rank), ACTIVITIES[activity(event.what)]
        sends = sum(did.sent.values())
        told = f"rank {rank}, {event.words}: " + f"sends {kilobytes(sends)} kB, " * bool(sends)
        yield f'<g class="cell"><title>{escape(f"{told}holds {kilobytes(did.total)} kB")}</title>'
        yield (f'<rect x="{x + 1}" y="{y}" width="{CELL - 2}" height="{STRIP}" rx="3" fill="{colour}" '
               f'fill-opacity="{0.4 if is_paler(event.unit, self.units) else 0.8}" stroke="{colour}"/>')
        yield text(x + CELL / 2, y + 14, f"{event.letter} {kilobytes(sends)}" if sends else event.letter)
        yield from self.bars(x, y + STRIP + BAR, did)
        yield "</g>"

    def bars(self, x: int, bottom: float, did: RankEvent) -> Iterator[str]:
        for kind, colour in COLOURS.items():
            height = did.held.get(kind, 0) * BAR / self.found.most
            bottom -= height
            if height:
                yield (f'<rect x="{x + 4}" y="{bottom:.2f}" width="{CELL - 8}" height="{height:.2f}" '
                       f'fill="{colour}"/>')

    def legend(self, y: int, entries: list[tuple[str, str]]) -> Iterator[str]:
        """Patches of colour, each with its word."""
        x = float(MARGIN)
        for words, colour in entries:
            yield f'<rect x="{x:g}" y="{y - 10}" width="11" height="11" rx="2" fill="{colour}"/>'
            yield text(x + 16, y, words)
            x += 34 + len(words) * CHARACTER


def heading(number: int, unit: str) -> str:
    """The number of an event and of its layer, if that is short.

    >>> heading(3, "layers.1"), heading(4, ""), heading(5, "embedding+head")
    ('3 · 1', '4', '5')
    """
    layer = unit.removeprefix("layers.")
    return f"{number} · {layer}" if 0 < len(layer) <= 4 else str(number)


def kilobytes(count: int) -> str:
    """
    >>> kilobytes(2140)
    '2.1'
    """
    return f"{count / 1e3:.1f}"
