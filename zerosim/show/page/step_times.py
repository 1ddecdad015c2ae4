"""The comparison above the pictures of a step: bytes and time of each row relative to the first, and a table of times.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zerosim.show.page.markup import Markup, element, joined
from zerosim.show.run_document import RowDocument
from zerosim.words import short

MS = 1e6


@dataclass(frozen=True)
class StepTimes:
    """Nanoseconds of the traced step, the mean over its ranks."""

    row: RowDocument

    @property
    def step_ns(self) -> int:
        return max((span["end_ns"] for span in self.row.spans), default=0)

    @property
    def computing_ns(self) -> float:
        return self._lane("computation")

    @property
    def rest_ns(self) -> float:
        """The time in which a rank computes nothing: exposed communication, and Python."""
        return self.step_ns - self.computing_ns

    @property
    def words(self) -> list[str]:
        """The cells of its line in the table."""
        hidden = "–" if self.row.hidden is None else f"{self.row.hidden:.0%}"
        return [*(short(each / MS) for each in (self.step_ns, self.computing_ns, self.rest_ns)), hidden]

    def _lane(self, kind: str) -> float:
        spans = self.row.spans
        ranks = len({span["rank"] for span in spans}) or 1
        total: int = sum(span["end_ns"] - span["begin_ns"] for span in spans if span["kind"] == kind)
        return total / ranks


def step_times(rows: Sequence[RowDocument]) -> Markup:
    """A sentence for each row but the first, and the times of all rows; empty if no step was traced."""
    traced = [StepTimes(row) for row in rows if row.spans]
    if not traced:
        return joined()
    heads = ("row", "step, ms", "computes, ms", "not computing, ms", "communication overlapped")
    lines = [
        element("tr", element("th", times.row.name, scope="row"),
                *(element("td", words, data_heading=head) for head, words in zip(heads[1:], times.words, strict=True)))
        for times in traced
    ]
    table = element("table", element("thead", element("tr", *(element("th", head, scope="col") for head in heads))),
                    element("tbody", *lines), class_="rows")
    return element("div", *(element("p", words, class_="answer") for words in answers(traced)),
                   element("div", table, class_="scrolling", tabindex=0))


def answers(traced: Sequence[StepTimes]) -> list[str]:
    """The comparison of every row with the first, a sentence each."""
    first, *others = traced
    return [answer(first, times) for times in others]


def answer(first: StepTimes, other: StepTimes) -> str:
    parts = []
    if first.row.sent_bytes:
        parts.append(f"sends {other.row.sent_bytes / first.row.sent_bytes:.2f}× the bytes")
    if first.step_ns:
        parts.append(f"takes {other.step_ns / first.step_ns:.2f}× the time")
    beside = f" of {first.row.name}" if parts else ""
    return f"{other.row.name} {' and '.join(parts)}{beside}: {overlapped(other)}"


def overlapped(times: StepTimes) -> str:
    hidden = times.row.hidden
    return "nothing is communicated." if hidden is None else f"{hidden:.0%} of its communication is overlapped."
