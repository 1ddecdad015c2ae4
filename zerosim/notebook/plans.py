"""A plan for the Python prompt and for notebooks: a table of its rows, the same as plain rows, and its page."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from zerosim.notebook.display import Bundle, Page, printed
from zerosim.notebook.shown import Shown
from zerosim.planner.planning import Plan
from zerosim.report.grid import Column, show_grid
from zerosim.report.page.plan import excerpt, plan_page
from zerosim.report.plan_csv import flat
from zerosim.report.plan_table import columns, names_of, sentence, show_plan

AT_THE_PROMPT = ("memory", "fits", "step", "waits", "MFU")
"""The columns of the short table."""


@dataclass(frozen=True, repr=False)
class ShownPlan(Shown):
    """A plan that displays itself: a short table at the prompt; `print` and notebooks show the output of `zerosim
    plan`."""

    plan: Plan

    @property
    def passed(self) -> bool:
        """Whether every claim of the scenario about planned figures holds."""
        return self.plan.passed

    @property
    def document(self) -> dict[str, Any]:
        """The plan as `zerosim plan --json` writes it: `docs/outcome.md` has the keys."""
        return self.plan.document()

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each row, for `pandas.DataFrame`: the document's, memory in `…_bytes`."""
        return [flat(row) for row in self.document["rows"]]

    def page(self) -> Page:
        """The plan as one page, as `zerosim plan --report` writes it."""
        title = self.plan.scenario.title or "a plan"
        return Page(plan_page(self.plan, "zs.plan"), f"all of {title}")

    def __str__(self) -> str:
        return printed(lambda console: show_plan(console, self.plan), width=100)

    def __repr__(self) -> str:
        return printed(self._show_short, width=100)

    def _repr_html_(self) -> str:
        """The machine, the verdict, the table, and the bound of each row."""
        return str(excerpt(self.plan))

    def _show_short(self, console: Console) -> None:
        rows = self.plan.rows
        shown: list[Column] = [each for each in columns(rows) if each.heading.split("\n")[0] in AT_THE_PROMPT]
        show_grid(console, names_of(rows), shown)
        console.print(sentence(self.plan), soft_wrap=True)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": str(self)}

