"""`zerosim grade`: a learner's functions, or a whole course's, with points for what holds, and what does not."""

import argparse
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from zerosim.commands.output import check_writable, standard_output, write_json, write_text
from zerosim.errors import ScenarioError, UsageError
from zerosim.grading.exercises import EXERCISES, Grade, Item, exercises_in, grade_apart
from zerosim.report.figures import plural

MARKS = {"holds": "[green]✓[/]", "holds so far": "[green]✓[/]", "not yet written": "[dim]·[/]",
         "not asked": "[dim]·[/]", "cannot be asked": "[yellow]?[/]"}
"""All else is ✗."""


@dataclass(frozen=True)
class Graded:
    """One file: the grade of each exercise in it, or why there are none."""

    file: str
    grades: list[Grade] = field(default_factory=list)
    trouble: str = ""

    @property
    def written(self) -> list[Grade]:
        return [grade for grade in self.grades if grade.state != "not yet written"]

    @property
    def passed(self) -> bool:
        """Whether at least one exercise is written, and nothing was found that does not hold."""
        return bool(self.written) and all(grade.state in ("holds", "holds so far") for grade in self.written)

    @property
    def earned(self) -> int:
        return sum(grade.earned for grade in self.grades)

    @property
    def points(self) -> int:
        return sum(grade.points for grade in self.grades)

    def document(self) -> dict[str, Any]:
        return {"file": self.file, "passed": self.passed, "earned": self.earned, "points": self.points,
                "functions": [grade.document() for grade in self.grades]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim grade`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE|DIR",
        help="Python files with your functions, or folders of them; zerosim exercises DIR copies skeletons")
    parser.add_argument("--csv", metavar="FILE", help="write the points: a line for each file, a column each exercise")
    parser.add_argument("--json", metavar="FILE", help="write what was found; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """0 if in every file at least one function is written and all that are hold, 1 if not."""
    files = list(named(arguments.files))
    check_writable(arguments, {f"the functions in {file}": file for file in files})
    console = standard_output(arguments)
    found = [graded(console, file, alone=len(files) == 1) for file in files]
    if len(found) > 1:
        show_points(console, found)
    if arguments.csv:
        write_text(arguments.csv, table(found))
    if arguments.json:
        write_json(arguments.json, document(found))
    return 0 if all(each.passed for each in found) else 1


def named(given: Sequence[str]) -> Iterator[str]:
    """The files; of a folder those in it, and in its folders, that have an exercise or are no Python at all."""
    for name in given:
        if not Path(name).is_dir():
            yield name
            continue
        inside = [str(path) for path in sorted(Path(name).rglob("*.py")) if has_exercise(str(path))]
        if not inside:
            raise UsageError(f"{name}: no file in this folder has an exercise; zerosim exercises DIR copies some")
        yield from inside


def has_exercise(file: str) -> bool:
    try:
        return bool(exercises_in(file))
    except ScenarioError as error:
        return "no function to grade" not in str(error)


def graded(console: Console, file: str, *, alone: bool) -> Graded:
    """Grade a file and show what was found; one that cannot be used is an error only if it is `alone`."""
    grades: list[Grade] = []
    if not alone:
        console.print(f"[bold]{escape(file)}[/]", soft_wrap=True)
    try:
        for name in exercises_in(file):
            grades.append(grade_apart(file, name))
            show(console, grades[-1])
    except ScenarioError as error:
        if alone:
            raise
        console.print(f"[red]✗[/] {escape(str(error))}", soft_wrap=True)
        return Graded(file, grades, str(error))
    console.print(f"[bold]{escape(summary(grades))}[/]", soft_wrap=True)
    return Graded(file, grades)


def show(console: Console, grade: Grade) -> None:
    """The verdict on one function, item by item; below what does not hold why, and what it printed."""
    rest = f", {grade.earned} of {plural(grade.points, 'point')}"
    if grade.state == "not yet written":
        rest = f": {grade.complaint}" if grade.complaint else ""
    console.print(f"{MARKS.get(grade.state, '[red]✗[/]')} [bold]{grade.function}[/] {grade.state}{escape(rest)}")
    if grade.state == "not yet written":
        return
    for item in grade.items:
        show_item(console, item)
    if not grade.items:
        tell(console, grade.complaint or "")
    if grade.printed:
        tell(console, "it prints")
        tell(console, "\n".join(f"  │ {line}" for line in grade.printed))


def show_item(console: Console, item: Item) -> None:
    """A line; where it does not hold, why."""
    law = f"{item.law}: " if item.law else ""
    style = {"does not hold": "", "cannot be asked": "yellow"}.get(item.state, "dim")
    mark = MARKS.get(item.state, "[red]✗[/]")
    console.print(f"    {mark} {item.earned}/{item.points} {escape(law + item.says)}", style=style, soft_wrap=True)
    tell(console, item.complaint or "", "        ")


def tell(console: Console, words: str, indent: str = "    ") -> None:
    for line in words.splitlines():
        console.print(f"{indent}{escape(line)}", soft_wrap=not console.is_terminal)


def summary(grades: Sequence[Grade]) -> str:
    """How far the learner has come, and what is next.

    >>> summary([Grade("all_gather", "not yet written"), Grade("all_reduce", "not yet written")])
    '0 of 2 hold, 0 of 26 points. Next: all_gather.'
    """
    holding = [grade for grade in grades if grade.state in ("holds", "holds so far")]
    points = f"{sum(grade.earned for grade in grades)} of {sum(grade.points for grade in grades)} points"
    if len(holding) == len(grades):
        so_far = any(grade.state == "holds so far" for grade in grades)
        praise = "Some could not be asked here." if so_far else "Well done."
        return f"{f'All {len(grades)} hold' if len(grades) > 1 else 'It holds'}, {points}. {praise}"
    waiting = next(grade for grade in grades if grade not in holding)
    return f"{len(holding)} of {len(grades)} hold, {points}. Next: {waiting.function}."


def show_points(console: Console, found: Sequence[Graded]) -> None:
    """A line for each file, and one for all."""
    console.print("[bold]points[/]")
    for each in found:
        console.print(f"{each.earned:>6} of {each.points:<4} {escape(each.trouble or each.file)}", soft_wrap=True)
    console.print(f"{sum(each.earned for each in found):>6} of {sum(each.points for each in found):<4} in all")


def table(found: Sequence[Graded]) -> str:
    """The points as CSV: a line for each file, a column for each exercise that is in any of them, and the total."""
    names = [name for name in EXERCISES if any(name == grade.function for each in found for grade in each.grades)]
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["file", *names, "total", "of", "trouble"])
    for each in found:
        by_name = {grade.function: grade.earned for grade in each.grades}
        lines.writerow([each.file, *(by_name.get(name, "") for name in names), each.earned, each.points, each.trouble])
    return written.getvalue()


def document(found: Sequence[Graded]) -> dict[str, Any]:
    """As JSON: of one file as it is, of several each in a list."""
    if len(found) == 1:
        return {"schema": "zerosim.grade/1", **found[0].document()}
    return {"schema": "zerosim.grades/1", "passed": all(each.passed for each in found),
            "earned": sum(each.earned for each in found), "points": sum(each.points for each in found),
            "files": [{**each.document(), "trouble": each.trouble} for each in found]}
