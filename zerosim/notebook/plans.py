"""A plan for the Python prompt and for notebooks: a table of its rows, the same as plain rows, and its page."""

from rich.console import Console

from zerosim.notebook.shown import Page, Shown, printed
from zerosim.planner.planning import Plan
from zerosim.report.grid import Column, show_grid
from zerosim.report.page.plan import excerpt, plan_page
from zerosim.report.plan_table import columns, flat, names_of, sentence, show_plan

AT_THE_PROMPT = ("memory", "fits", "step", "waits", "MFU")
"""The columns of the short table."""


def shown_plan(plan: Plan) -> Shown:
    """A plan that displays itself; the rows are the document's, memory in `…_bytes`."""
    return Shown(
        plan, plan.passed, sentence(plan), printed(lambda console: show_short(console, plan)),
        show=lambda console: show_plan(console, plan), make_document=plan.document,
        rows_of=lambda document: [flat(row) for row in document["rows"]],
        excerpt=lambda: str(excerpt(plan)),
        make_page=lambda: Page(plan_page(plan, "zs.plan"), f"all of {plan.scenario.title or 'a plan'}"))


def show_short(console: Console, plan: Plan) -> None:
    """Print the few columns that answer most questions, and the verdict."""
    shown: list[Column] = [each for each in columns(plan.rows) if each.heading.split("\n")[0] in AT_THE_PROMPT]
    show_grid(console, names_of(plan.rows), shown)
    console.print(sentence(plan), soft_wrap=True)
