"""A schedule for the Python prompt and for notebooks: drawn, printed, as data, and as an interactive page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zerosim.collectives import Algorithm
from zerosim.errors import UsageError
from zerosim.jobs.schedules import MOST_RANKS, check_root, check_served, is_stage, is_step, stage_step, step_of
from zerosim.notebook.display import Bundle, Page, Picture, printed
from zerosim.notebook.shown import Shown
from zerosim.notebook.step import ShownStep
from zerosim.proofs.subject import named_subject, subject
from zerosim.report.page.page import schedule_page
from zerosim.report.schedule import Schedule, document, scheduled
from zerosim.report.schedule_svg import MOST_CELLS, cell_count, picture
from zerosim.report.schedule_text import show_schedule
from zerosim.stages import Stage


@dataclass(frozen=True, repr=False)
class ShownSchedule(Shown):
    """A schedule that displays itself: `print` shows the output of `zerosim show`, a notebook the picture."""

    schedule: Schedule

    @property
    def passed(self) -> bool:
        """Whether every rank holds the collective's result."""
        return not self.schedule.faults

    @property
    def verdict(self) -> str:
        """The verdict in a sentence, with the first fault."""
        return self.schedule.verdict

    @property
    def document(self) -> dict[str, Any]:
        """The schedule as `zerosim show --json` writes it: `docs/lessons/4_schedules.md` has the keys."""
        return document(self.schedule)

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each message: `round`, `source`, `to`, `chunks`, `reduced`."""
        found: list[dict[str, Any]] = self.document["messages"]
        return found

    def picture(self) -> Picture:
        """All rounds side by side; `UsageError` if there are too many cells."""
        return Picture(picture(self.schedule), self.schedule.title)

    def page(self) -> Page:
        """The schedule as an interactive page."""
        return Page(schedule_page(self.schedule), f"{self.schedule.title} step by step")

    def __str__(self) -> str:
        return printed(lambda console: show_schedule(console, self.schedule), width=100)

    def __repr__(self) -> str:
        return f"<{self.schedule.title}: {self.schedule.cost}; {self.verdict}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        drawn = {"image/svg+xml": self.picture().svg} if cell_count(self.schedule) <= MOST_CELLS else {}
        return {"text/plain": str(self)} | drawn


def shown(
    collective: str | Algorithm | Stage | Callable[..., Any], ranks: int, root: int | None, claims: str | None
) -> ShownSchedule | ShownStep:
    """The schedule of a named algorithm, or of a function, or a step of a stage, on `ranks` ranks."""
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"ranks={ranks!r}: a schedule is drawn for 1 to {MOST_RANKS} ranks")
    if isinstance(collective, str) and is_stage(collective):
        if root is not None or claims is not None:
            raise UsageError("remove root and claims: they are for a collective, not for a stage")
        return ShownStep(stage_step(collective, ranks))
    if is_step(collective):
        return ShownStep(step_of(collective, ranks))
    if not isinstance(collective, str | Algorithm) and not callable(collective):
        raise UsageError(f"found {collective!r}; give the name of an algorithm, FILE.py:FUNCTION, or a function")
    assert not isinstance(collective, Stage)
    asked = named_subject(collective, claims) if isinstance(collective, str) else subject(collective, claims)
    check_served(asked, ranks)
    check_root(asked, ranks, root)
    return ShownSchedule(scheduled(asked, ranks, root or 0))
