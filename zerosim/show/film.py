"""Schedules and steps as objects that display themselves: drawn, printed, as data, as pages."""

from zerosim.show.page.page import schedule_page, step_page
from zerosim.show.schedule import Schedule, schedule_document
from zerosim.show.schedule_svg import MOST_CELLS, cell_count, schedule_picture
from zerosim.show.schedule_text import show_schedule
from zerosim.show.shown import Page, Picture, Shown
from zerosim.show.step import RecordedStep, show_step
from zerosim.words import plural


def shown_schedule(schedule: Schedule, only: int | None = None) -> Shown:
    """A schedule that displays itself, or `only` one round of it, at which a page opens.

    A row, one for each message, has `round`, `source`, `to`, `chunks`, `reduced`.
    """
    return Shown(
        schedule, not schedule.faults, schedule.verdict,
        f"<{schedule.title}: {schedule.cost}; {schedule.verdict}>",
        show=lambda console: show_schedule(console, schedule, only),
        make_document=lambda: schedule_document(schedule), rows_of=lambda document: list(document["messages"]),
        draw=lambda: Picture(schedule_picture(schedule, only), schedule.title),
        drawn_in_cells=cell_count(schedule) <= MOST_CELLS,
        make_page=lambda: Page(schedule_page(schedule, only or 0), f"{schedule.title} step by step"))


def shown_step(step: RecordedStep, only: int | None = None) -> Shown:
    """A step that displays itself, or `only` one event of it, counted from 1, at which a page opens.

    A row, one for each event of each rank, has `moment`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`.
    """

    def page() -> Page:
        return Page(step_page(step, (only or 1) - 1), f"{step.title} step by step")

    return Shown(
        step, step.fault is None, step.verdict,
        f"<{step.title}, {step.about}: {plural(len(step.events), 'event')}; {step.verdict}>",
        show=lambda console: show_step(console, step, only), make_document=step.document,
        rows_of=lambda document: [
            {"moment": number, "what": event["what"], "unit": event["unit"], "rank": rank,
             "sent_bytes": sum(part["sent_bytes"].values()), "held_bytes": sum(part["held_bytes"].values())}
            for number, event in enumerate(document["moments"], 1) for rank, part in enumerate(event["ranks"])],
        excerpt=lambda: page().frame, make_page=page)
