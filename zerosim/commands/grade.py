"""`zerosim grade`: grades a learner's functions, or a whole course's: points, and the reason for each missing point."""

import argparse
import csv
import io
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from rich.console import Console
from rich.markup import escape

from zerosim.commands.arguments import whole_number
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.errors import ScenarioError, UsageError
from zerosim.files import check_replaceable, reason, write_text
from zerosim.parts import Loader, is_python
from zerosim.shipped import exercises
from zerosim.teach.grading.confirmed import grade_separately
from zerosim.teach.grading.contained import Learner, containment
from zerosim.teach.grading.exercises import EXERCISES, Grade, Item, cleaned, exercises_in, one_line
from zerosim.teach.grading.parts import grade_named
from zerosim.teach.grading.submissions import Submission, submissions
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
    submitted = submissions(arguments.files, [os.path.basename(place) for place in exercises().values()])
    if not any(each.files for each in submitted) and any(map(os.path.isdir, arguments.files)):
        raise UsageError(
            f"{arguments.files[0]}: no file in this folder has an exercise; zerosim exercises DIR copies them")
    check_writable(arguments, {f"the functions in {file}": file for each in submitted for file in each.files})
    check_feedback(arguments.feedback)
    console = standard_output(arguments)
    if len(submitted) > 1 and not containment():
        console.print(f"[yellow]?[/] {NOT_CONTAINED}", soft_wrap=True)
    hidden = tuple(os.path.realpath(name if os.path.isdir(name) else os.path.dirname(os.path.abspath(name)))
                   for name in arguments.files)
    labels = labels_of([each.name for each in submitted])
    with copies() as folder, ThreadPoolExecutor(arguments.jobs) as together:
        learners = [Learner(os.path.join(folder, str(number)), number, hidden) for number in range(len(submitted))]
        submitted = [replace(each, trouble=(*each.trouble, *each.copy(learner)))
                  for each, learner in zip(submitted, learners, strict=True)]
        coming = [[together.submit(graded_copy, learner, file, name)
                   for file, names in each.files.items() for name in names]
                  for each, learner in zip(submitted, learners, strict=True)]
        found, failed = [], list[OSError]()
        for each, label, asked in zip(submitted, labels, coming, strict=True):
            heard = io.StringIO()
            found.append(shown(console, heard, each, asked, alone=len(submitted) == 1))
            if arguments.feedback:
                written(os.path.join(arguments.feedback, f"{label}.txt"), heard.getvalue(), failed)
    if len(found) > 1:
        show_points(console, found)
    if arguments.csv and not written(arguments.csv, table(found), failed):
        console.print(table(found), markup=False, soft_wrap=True)
    if arguments.json:
        write_json(arguments.json, grades_document(found))
    if failed:
        raise failed[0]
    return 0 if all(each.passed for each in found) else 1


NOT_CONTAINED = ("the submissions run with your rights, and can reach your files and each other's: grade as root, or "
                 "on a machine that has nothing else")


@contextmanager
def copies() -> Iterator[str]:
    """A temporary folder that is removed whatever a submission puts into it."""
    folder = mkdtemp(prefix="zerosim-")
    os.chmod(folder, 0o711)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except RecursionError:
            subprocess.run(["rm", "-rf", "--", folder], check=False)


def check_feedback(folder: str | None) -> None:
    """Create the folder of feedback. Raises `UsageError` if nothing can be written there."""
    try:
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            check_replaceable(os.path.join(folder, "feedback.txt"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--feedback: cannot write into {folder!r}: {reason(error)}; name a folder") from None


def written(path: str, text: str, failed: list[OSError]) -> bool:
    """Whether `text` could be written to `path`; the error is appended to `failed`."""
    try:
        write_text(path, text)
    except OSError as error:
        failed.append(error)
        return False
    return True


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
        write_json(arguments.json, grades_document(found))
    return 0 if all(each.passed for each in found) else 1


def graded_copy(learner: Learner, file: str, name: str) -> Grade | ScenarioError:
    """The grade of a function in the copy of a file, with the file's own name in messages; or the error.

    No exception passes, so a submission that causes one loses its own points only.
    """
    copy = learner.copy_of(file)

    def original(words: str) -> str:
        return words.replace(copy, file).replace(os.path.relpath(copy, learner.scratch), file)

    try:
        grade = grade_separately(copy, name, learner=learner)
    except ScenarioError as error:
        return ScenarioError(original(str(error)).partition(": ")[2], file=file)
    except Exception as error:
        return ScenarioError(original(cleaned(f"cannot be graded: {type(error).__name__}: {error}", 500)), file=file)
    return replace(grade, complaint=grade.complaint and original(grade.complaint), items=[
        replace(item, complaint=item.complaint and original(item.complaint)) for item in grade.items])


Asked = Sequence["Future[Grade | ScenarioError]"]
"""The pending grade of each function of a submission."""


def shown(console: Console, heard: io.StringIO, submitted: Submission, asked: Asked, *, alone: bool) -> Graded:
    """The results of a submission, printed as they arrive; an unusable one is an error only if it is `alone`."""
    consoles = [console, Console(file=heard, width=WIDE, highlight=False)]
    if not alone:
        tell_all(consoles, f"[bold]{escape(one_line(submitted.name))}[/]")
    trouble, grades = [*submitted.trouble], list[Grade]()
    if alone and not submitted.files:
        exercises_in(submitted.name)
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
        tell_all(consoles, f"[red]✗[/] {escape(one_line(said))}")
    if grades:
        tell_all(consoles, f"[bold]{escape(summary(grades))}[/]")
    own = dict.fromkeys([*submitted.own, *(used for grade in grades for used in grade.own)])
    return Graded(submitted.name, grades, "; ".join(trouble), tuple(own))


def tell_all(consoles: Sequence[Console], words: str) -> None:
    for each in consoles:
        each.print(words, soft_wrap=True)


def labels_of(names: Sequence[str]) -> list[str]:
    """The label of each submission; of equal ones the later have a number.

    >>> labels_of(["course/course_x", "course/x.py"])
    ['course_x', 'course_x_2']
    """
    found: list[str] = []
    for name in names:
        label, number = label_of(name), 2
        while label in found:
            label, number = f"{label_of(name)}_{number}", number + 1
        found.append(label)
    return found


def label_of(name: str) -> str:
    """The name of a submission in file names: that of its folder, or of the file and its folder.

    >>> label_of("course/ada"), label_of("course/ada/mine.py")
    ('ada', 'ada_mine')
    """
    path = Path(os.path.abspath(name))
    label = one_line(f"{path.parent.name}_{path.stem}" if path.suffix == ".py" else path.name)
    return os.fsencode(label)[:MOST_LABEL].decode("utf-8", "replace")


MOST_LABEL = 200
"""The bytes of a label."""


def show(console: Console, grade: Grade) -> None:
    """Print the verdict on one function, item by item; below each failed item the reason, and the function's output."""
    rest = f", {grade.earned} of {plural(grade.points, 'point')}"
    if grade.state == "not yet written":
        rest = f": {grade.complaint}" if grade.complaint else ""
    words = escape(f"{grade.state}{rest}")
    console.print(f"{MARKS.get(grade.state, '[red]✗[/]')} [bold]{escape(grade.function)}[/] {words}")
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
        said = one_line((each.trouble or each.file) + own)
        console.print(f"{each.earned:>6} of {points:<4} {escape(said)}", soft_wrap=True)
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
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["file", *names, "total", "of", "trouble", "uses zerosim's own"])
    points = sum(EXERCISES[name] for name in names)
    for each in found:
        by_name = {grade.function: grade.earned for grade in each.grades}
        lines.writerow([cell(each.file), *(by_name.get(name, "") for name in names), each.earned, points,
                        cell(each.trouble), cell(", ".join(each.own))])
    return text.getvalue()


def cell(words: str) -> str:
    """Words as a cell that no spreadsheet takes for a formula.

    >>> cell("=1+1.py"), cell("ada")
    ("'=1+1.py", 'ada')
    """
    return ("'" * words.startswith(("=", "+", "-", "@", "\t", "\r"))) + one_line(words)


def grades_document(found: Sequence[Graded]) -> dict[str, Any]:
    """The grades as JSON: one submission's document, or several in a list."""
    if len(found) == 1:
        return {"schema": "zerosim.grade/1", **found[0].document()}
    points = sum(EXERCISES[name] for name in asked_of_all(found))
    return {"schema": "zerosim.grades/1", "passed": all(each.passed for each in found),
            "earned": sum(each.earned for each in found), "points": points * len(found),
            "files": [{**each.document(), "points": points, "trouble": each.trouble} for each in found]}
