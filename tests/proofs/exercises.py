"""The declarations of the exercises' skeletons, for programs that are written without them; changes of a program."""

from dataclasses import replace
from pathlib import Path

from zerosim.core.parts.loading import Declared, load_file

FEW_RANKS = (1, 2, 3, 4, 8)
"""In place of 1 to 17 ranks, for programs that are right: the shipped algorithms and examples are tried on all."""
SKELETONS = Path(__file__).parents[2] / "docs" / "exercises"


def skeletons():
    return {name: part for file in sorted(SKELETONS.glob("[1-4]_*.py"))
            for name, part in vars(load_file(str(file))).items() if isinstance(part, Declared)}


def as_exercise(function):
    """A function with the declarations of the exercise of its name; other functions as they are."""
    part = skeletons().get(function.__name__)
    return function if part is None else replace(part, **{part.WRITTEN: function})


def changed(program, folder):
    """The text of a program with the changes made: of each, lines with − go, those with + come, others are there."""
    text = "\n" + (folder / f"{program['of']}.py").read_text()
    for lines in (change.splitlines() for change in program["change"].split("\n\n")):
        old, new = ("".join(f"\n{line[1:]}" for line in lines if line[0] in kinds) + "\n" for kinds in (" -", " +"))
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text.lstrip()
