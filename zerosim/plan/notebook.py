"""Plans and operations for the Python prompt and for notebooks: tables, the same as plain rows, and pages."""

from rich.console import Console

from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS
from zerosim.errors import UsageError
from zerosim.parts.loading import load_file
from zerosim.plan import operations_table
from zerosim.plan.operations import declared, figures
from zerosim.plan.page import excerpt, plan_page
from zerosim.plan.planning import Plan
from zerosim.plan.table import columns, flat, names_of, sentence, show_plan
from zerosim.show.grid import Column, show_grid
from zerosim.show.shown import Page, Shown, printed

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


def operations_of(path: str | None) -> Shown:
    """The figures of the public operations, or of those of a file that have examples; a row for each."""
    if path is None:
        found = {name: (each, EXAMPLES[name]) for name, each in OPERATIONS.items()}
    else:
        found = {name: (each, example) for name, (each, example) in declared(vars(load_file(path))).items() if example}
        if not found:
            raise UsageError(f"{path} declares no operation for which its EXAMPLES has shapes")
    operations = tuple(figures(each, example) for each, example in found.values())
    return Shown(
        operations, True, "", f"<{len(operations)} operations: {', '.join(each.name for each in operations)}>",
        show=lambda console: operations_table.show_operations(console, operations),
        make_document=lambda: {"schema": "zerosim.operations/1", "operations": operations_table.rows(operations)},
        rows_of=lambda document: list(document["operations"]))
