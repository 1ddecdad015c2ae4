"""`zerosim grade`: a learner's functions, each with what holds and the smallest example of what does not."""

import argparse
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.grading.exercises import Grade, exercises_in, grade_apart

MARKS = {"holds": "[green]✓[/]", "not yet written": "[dim]·[/]"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim grade`."""
    parser.add_argument("file", help="a Python file with your functions; skeletons are in docs/exercises")
    parser.add_argument("--json", metavar="FILE", help="write what was found; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """0 if at least one function is written and all that are hold, 1 if not."""
    check_writable(arguments, {"the file of your functions": arguments.file})
    console = standard_output(arguments)
    grades = []
    for name in exercises_in(arguments.file):
        grades.append(grade_apart(arguments.file, name))
        show(console, grades[-1])
    written = [grade for grade in grades if grade.state != "not yet written"]
    passed = bool(written) and all(grade.state == "holds" for grade in written)
    console.print(f"[bold]{escape(summary(grades))}[/]")
    if arguments.json:
        write_json(arguments.json, {
            "schema": "zerosim.grade/1",
            "file": arguments.file,
            "passed": passed,
            "functions": [asdict(grade) for grade in grades],
        })
    return 0 if passed else 1


def show(console: Console, grade: Grade) -> None:
    """The verdict on one function; when it does not hold, what does and what does not."""
    console.print(f"{MARKS.get(grade.state, '[red]✗[/]')} [bold]{grade.function}[/] {grade.state}")
    for says in grade.held:
        console.print(f"    so: {escape(says)}", style="dim", soft_wrap=not console.is_terminal)
    for line in (grade.complaint or "").splitlines():
        console.print(f"    {escape(line)}", soft_wrap=not console.is_terminal)


def summary(grades: list[Grade]) -> str:
    """How far the learner has come, and what is next.

    >>> summary([Grade("all_gather", "holds", []), Grade("all_reduce", "not yet written", [])])
    '1 of 2 hold. Next: all_reduce.'
    """
    holding = [grade for grade in grades if grade.state == "holds"]
    if len(holding) == len(grades):
        return f"All {len(grades)} hold. Well done." if len(grades) > 1 else "It holds. Well done."
    waiting = next(grade for grade in grades if grade.state != "holds")
    return f"{len(holding)} of {len(grades)} hold. Next: {waiting.function}."
