"""A step of a stage for the Python prompt and for notebooks: drawn, printed, as data, and as an interactive page."""

from dataclasses import dataclass
from typing import Any

from zerosim.notebook.display import Bundle, Page, Picture, printed
from zerosim.notebook.shown import Shown
from zerosim.report.page.page import step_page
from zerosim.report.schedule_svg import MOST_CELLS
from zerosim.report.step import RecordedStep, show_step
from zerosim.report.step_svg import step_picture
from zerosim.words import plural


@dataclass(frozen=True, repr=False)
class ShownStep(Shown):
    """A step that displays itself: `print` shows the output of `zerosim show zero3`, a notebook the picture."""

    step: RecordedStep

    @property
    def passed(self) -> bool:
        """Whether it equals one process."""
        return self.step.fault is None

    @property
    def document(self) -> dict[str, Any]:
        """The step as `zerosim show --json` writes it."""
        return self.step.document()

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each event of each rank: `event`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`."""
        return [
            {"moment": number, "what": event.what, "unit": event.unit, "rank": rank,
             "sent_bytes": sum(did.sent.values()), "held_bytes": did.total}
            for number, event in enumerate(self.step.events, 1) for rank, did in enumerate(event.ranks)
        ]

    def picture(self) -> Picture:
        """All events, one below the other."""
        return Picture(step_picture(self.step), f"{self.step.title}, {self.step.about}")

    def page(self) -> Page:
        """The step as an interactive page."""
        return Page(step_page(self.step), f"{self.step.title} step by step")

    def __str__(self) -> str:
        return printed(lambda console: show_step(console, self.step), width=100)

    def __repr__(self) -> str:
        events = plural(len(self.step.events), "event")
        return f"<{self.step.title}, {self.step.about}: {events}; {self.step.verdict}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        drawn = {"image/svg+xml": self.picture().svg} if self.step.size * len(self.step.events) <= MOST_CELLS else {}
        return {"text/plain": str(self)} | drawn
