"""`zerosim grade`: grades a learner's functions, or a whole course's: points, and the reason for each missing point."""

import argparse
import csv
import io
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markup import escape

from zerosim.commands.arguments import whole_number
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.errors import ScenarioError, UsageError
from zerosim.files import write_text
from zerosim.grading.apart import grade_apart
from zerosim.grading.exercises import EXERCISES, Grade, Item, exercises_in
from zerosim.grading.parts import grade_named
from zerosim.grading.submissions import Submission, copied, submissions
from zerosim.parts import Loader, is_python
from zerosim.words import plural

WIDE = 10_000
"""The width of a file of feedback, in which lines are not broken."""
MARKS = {"holds": "[green]✓[/]", "holds so far": "[green]✓[/]", "not yet written": "[dim]·[/]",
         "not asked": "[dim]·[/]", "cannot be asked": "[yellow]?[/]"}
"""The mark of each state; ✗ for all others."""


@dataclass(frozen=True)
class Graded:
    """One submission: the grade of each exercise in it, or the reason why there are none."""

    file: str
    grades: list[Grade] = field(default_factory=list)
    trouble: str = ""
    own: tuple[str, ...] = ()
    """The functions of zerosim itself that it uses."""

    @property
    def written(self) -> list[Grade]:
        return [grade for grade in self.grades if grade.state != "not yet written"]

    @property
    def passed(self) -> bool:
        """Whether at least one exercise is written, and all written ones hold."""
        return bool(self.written) and all(grade.state in ("holds", "holds so far") for grade in self.written)

    @property
    def earned(self) -> int:
        return sum(grade.earned for grade in self.grades)

    @property
    def points(self) -> int:
        return sum(grade.points for grade in self.grades)

    def document(self) -> dict[str, Any]:
        return {"file": self.file, "passed": self.passed, "earned": self.earned, "points": self.points,
                "functions": [grade.document() for grade in self.grades], "own": list(self.own)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim grade`."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE|DIR|FILE.py:NAME",
        help="Python files with your functions, or folders of them (zerosim exercises DIR copies the skeletons); or "
             "your own parts as FILE.py:NAME")
    parser.add_argument(
        "-j", "--jobs", type=whole_number(1, 256), default=1, metavar="N", help="functions graded in parallel; "
                                                                                "default 1")
    parser.add_argument("--csv", metavar="FILE", help="write the points as CSV: one row per learner, one column per "
                                                      "exercise")
    parser.add_argument("--feedback", metavar="DIR", help="write the report on each learner to a file in this folder")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Grade the files: 0 if each has at least one written function and all written ones hold, 1 if not."""
    if any(map(is_python, arguments.files)):
        return grade_parts(arguments)
    handed = list(submissions(arguments.files))
    if not any(each.files for each in handed) and any(map(os.path.isdir, arguments.files)):
        raise UsageError(
            f"{arguments.files[0]}: no file in this folder has an exercise; zerosim exercises DIR copies them")
    check_writable(arguments, {f"the functions in {file}": file for each in handed for file in each.files})
    console = standard_output(arguments)
    with TemporaryDirectory(prefix="zerosim-") as folder, ThreadPoolExecutor(arguments.jobs) as together:
        copied(handed, folder)
        coming = [(each, [together.submit(graded_copy, folder, file, name)
                          for file, names in each.files.items() for name in names]) for each in handed]
        found = [shown(console, each, asked, arguments, alone=len(handed) == 1) for each, asked in coming]
    if len(found) > 1:
        show_points(console, found)
    if arguments.csv:
        write_text(arguments.csv, table(found))
    if arguments.json:
        write_json(arguments.json, document(found))
    return 0 if all(each.passed for each in found) else 1


def grade_parts(arguments: argparse.Namespace) -> int:
    """Grade the named parts: 0 if all hold, 1 if one does not."""
    for name in arguments.files:
        if not is_python(name):
            raise UsageError(f"{name} is not a part; give parts as FILE.py:NAME, and exercises as files or folders")
    if arguments.csv or arguments.feedback:
        raise UsageError("--csv and --feedback are for exercises; remove them for parts of your own")
    check_writable(arguments, {f"the file of {name}": name.rpartition(":")[0] for name in arguments.files})
    console, loader = standard_output(arguments), Loader()
    found = []
    for name in arguments.files:
        grade = grade_named(name, loader.load(name).value)
        show(console, grade)
        found.append(Graded(name, [grade]))
    if arguments.json:
        write_json(arguments.json, document(found))
    return 0 if all(each.passed for each in found) else 1


def graded_copy(folder: str, file: str, name: str) -> Grade | ScenarioError:
    """The grade of a function in the copy of a file, with the file's own name in messages; or the error."""
    copy = os.path.join(folder, os.path.abspath(file).lstrip(os.sep))
    try:
        grade = grade_apart(copy, name)
    except ScenarioError as error:
        return ScenarioError(str(error).replace(copy, file).partition(": ")[2], file=file)
    return replace(grade, complaint=grade.complaint and grade.complaint.replace(copy, file), items=[
        replace(item, complaint=item.complaint and item.complaint.replace(copy, file)) for item in grade.items])


Asked = Sequence["Future[Grade | ScenarioError]"]
"""The pending grade of each function of a submission."""


def shown(
    console: Console, handed: Submission, asked: Asked, arguments: argparse.Namespace, *, alone: bool
) -> Graded:
    """The results of a submission, printed as they arrive; an unusable one is an error only if it is `alone`."""
    heard = io.StringIO()
    consoles = [console, *([Console(file=heard, width=WIDE, highlight=False)] if arguments.feedback else [])]
    if not alone:
        tell_all(consoles, f"[bold]{escape(handed.name)}[/]")
    trouble, grades = [handed.trouble] if handed.trouble else [], list[Grade]()
    if alone and not handed.files:
        exercises_in(handed.name)
    for coming in asked:
        found = coming.result()
        if isinstance(found, ScenarioError):
            if alone:
                raise found
            trouble += [str(found)] if str(found) not in trouble else []
        else:
            grades.append(found)
            for each in consoles:
                show(each, found)
    for said in trouble:
        tell_all(consoles, f"[red]✗[/] {escape(said)}")
    if grades:
        tell_all(consoles, f"[bold]{escape(summary(grades))}[/]")
    if arguments.feedback:
        os.makedirs(arguments.feedback, exist_ok=True)
        write_text(os.path.join(arguments.feedback, f"{label(handed.name)}.txt"), heard.getvalue())
    return Graded(handed.name, grades, "; ".join(trouble), handed.own)


def tell_all(consoles: Sequence[Console], words: str) -> None:
    for each in consoles:
        each.print(words, soft_wrap=True)


def label(name: str) -> str:
    """The name of a submission in file names: that of its folder, or of the file and its folder.

    >>> label("course/ada"), label("course/ada/mine.py")
    ('ada', 'ada_mine')
    """
    path = Path(os.path.abspath(name))
    return f"{path.parent.name}_{path.stem}" if path.suffix == ".py" else path.name


def show(console: Console, grade: Grade) -> None:
    """Print the verdict on one function, item by item; below each failed item the reason, and the function's output."""
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
    """Print the line of an item, with the reason if it fails."""
    law = f"{item.law}: " if item.law else ""
    style = {"does not hold": "", "cannot be asked": "yellow"}.get(item.state, "dim")
    mark = MARKS.get(item.state, "[red]✗[/]")
    console.print(f"    {mark} {item.earned}/{item.points} {escape(law + item.says)}", style=style, soft_wrap=True)
    tell(console, item.complaint or "", "        ")


def tell(console: Console, words: str, indent: str = "    ") -> None:
    for line in words.splitlines():
        console.print(f"{indent}{escape(line)}", soft_wrap=not console.is_terminal)


def summary(grades: Sequence[Grade]) -> str:
    """The learner's progress, and the next exercise.

    >>> summary([Grade("all_gather", "not yet written"), Grade("all_reduce", "not yet written")])
    '0 of 2 hold, 0 of 26 points. Next: all_gather.'
    """
    holding = [grade for grade in grades if grade.state in ("holds", "holds so far")]
    points = f"{sum(grade.earned for grade in grades)} of {sum(grade.points for grade in grades)} points"
    if len(holding) == len(grades):
        so_far = any(grade.state == "holds so far" for grade in grades)
        praise = "Some checks could not run here." if so_far else "Well done."
        return f"{f'All {len(grades)} hold' if len(grades) > 1 else 'It holds'}, {points}. {praise}"
    waiting = next(grade for grade in grades if grade not in holding)
    return f"{len(holding)} of {len(grades)} hold, {points}. Next: {waiting.function}."


def show_points(console: Console, found: Sequence[Graded]) -> None:
    """Print a line for each submission, and one for the total."""
    points = sum(EXERCISES[name] for name in asked_of_all(found))
    console.print("[bold]points[/]")
    for each in found:
        own = f" (uses zerosim's own: {', '.join(each.own)})" * bool(each.own)
        console.print(f"{each.earned:>6} of {points:<4} {escape((each.trouble or each.file) + own)}", soft_wrap=True)
    console.print(f"{sum(each.earned for each in found):>6} of {points * len(found):<4} in all")


def asked_of_all(found: Sequence[Graded]) -> list[str]:
    """The exercises that occur in any submission."""
    return [name for name in EXERCISES if any(name == grade.function for each in found for grade in each.grades)]


def table(found: Sequence[Graded]) -> str:
    """The points as CSV: a line for each submission, a column for each exercise that occurs in any of them, and the
    total.

    `of` is the same for all. The last columns name failures to grade, and functions of zerosim itself that were used.
    """
    names = asked_of_all(found)
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(["file", *names, "total", "of", "trouble", "uses zerosim's own"])
    points = sum(EXERCISES[name] for name in names)
    for each in found:
        by_name = {grade.function: grade.earned for grade in each.grades}
        lines.writerow([each.file, *(by_name.get(name, "") for name in names), each.earned, points, each.trouble,
                        ", ".join(each.own)])
    return written.getvalue()


def document(found: Sequence[Graded]) -> dict[str, Any]:
    """The grades as JSON: one submission's document, or several in a list."""
    if len(found) == 1:
        return {"schema": "zerosim.grade/1", **found[0].document()}
    points = sum(EXERCISES[name] for name in asked_of_all(found))
    return {"schema": "zerosim.grades/1", "passed": all(each.passed for each in found),
            "earned": sum(each.earned for each in found), "points": points * len(found),
            "files": [{**each.document(), "points": points, "trouble": each.trouble} for each in found]}
