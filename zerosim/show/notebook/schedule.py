"""Schedules and steps for the Python prompt and for notebooks: drawn, printed, as data, as pages."""

from collections.abc import Callable
from typing import Any

from zerosim.collectives import Algorithm
from zerosim.errors import UsageError
from zerosim.jobs.schedules import MOST_RANKS, check_root, check_served, is_stage, is_step, stage_step, step_of
from zerosim.show.page.page import schedule_page, step_page
from zerosim.show.schedule import Schedule, schedule_document, scheduled
from zerosim.show.schedule_svg import MOST_CELLS, cell_count, schedule_picture
from zerosim.show.schedule_text import show_schedule
from zerosim.show.shown import Page, Picture, Shown
from zerosim.show.step import RecordedStep, show_step
from zerosim.show.step_svg import step_picture
from zerosim.stages import Stage
from zerosim.teach.proofs.subject import named_subject, subject
from zerosim.words import plural


def shown(
    collective: str | Algorithm | Stage | Callable[..., Any], ranks: int, root: int | None, claims: str | None
) -> Shown:
    """The schedule of a named algorithm, or of a function, or a step of a stage, on `ranks` ranks."""
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"ranks={ranks!r}: a schedule is drawn for 1 to {MOST_RANKS} ranks")
    if isinstance(collective, str) and is_stage(collective):
        if root is not None or claims is not None:
            raise UsageError("remove root and claims: they are for a collective, not for a stage")
        return shown_step(stage_step(collective, ranks))
    if is_step(collective):
        return shown_step(step_of(collective, ranks))
    if not isinstance(collective, str | Algorithm) and not callable(collective):
        raise UsageError(f"found {collective!r}; give the name of an algorithm, FILE.py:FUNCTION, or a function")
    assert not isinstance(collective, Stage)
    asked = named_subject(collective, claims) if isinstance(collective, str) else subject(collective, claims)
    check_served(asked, ranks)
    check_root(asked, ranks, root)
    return shown_schedule(scheduled(asked, ranks, root or 0))


def shown_schedule(schedule: Schedule) -> Shown:
    """A schedule that displays itself.

    A row, one for each message, has `round`, `source`, `to`, `chunks`, `reduced`.
    """
    return Shown(
        schedule, not schedule.faults, schedule.verdict,
        f"<{schedule.title}: {schedule.cost}; {schedule.verdict}>",
        show=lambda console: show_schedule(console, schedule),
        make_document=lambda: schedule_document(schedule), rows_of=lambda document: list(document["messages"]),
        draw=lambda: Picture(schedule_picture(schedule), schedule.title),
        drawn_in_cells=cell_count(schedule) <= MOST_CELLS,
        make_page=lambda: Page(schedule_page(schedule), f"{schedule.title} step by step"))


def shown_step(step: RecordedStep) -> Shown:
    """A step that displays itself.

    A row, one for each event of each rank, has `moment`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`.
    """
    return Shown(
        step, step.fault is None, step.verdict,
        f"<{step.title}, {step.about}: {plural(len(step.events), 'event')}; {step.verdict}>",
        show=lambda console: show_step(console, step), make_document=step.document,
        rows_of=lambda document: [
            {"moment": number, "what": event["what"], "unit": event["unit"], "rank": rank,
             "sent_bytes": sum(part["sent_bytes"].values()), "held_bytes": sum(part["held_bytes"].values())}
            for number, event in enumerate(document["moments"], 1) for rank, part in enumerate(event["ranks"])],
        draw=lambda: Picture(step_picture(step), f"{step.title}, {step.about}"),
        drawn_in_cells=step.size * len(step.events) <= MOST_CELLS,
        make_page=lambda: Page(step_page(step), f"{step.title} step by step"))
