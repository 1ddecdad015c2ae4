"""The submissions of a course: each learner's files, copied before any of them runs."""

import ast
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerosim.errors import ScenarioError, did_you_mean
from zerosim.grading.borrowed import borrowed
from zerosim.grading.exercises import EXERCISES, exercises_in
from zerosim.parts.loading import read_python

LEFT_OUT = ("site-packages", "node_modules", "__pycache__", "venv", "env")
"""Folders that contain no submissions; folders whose name begins with a dot contain none either."""


@dataclass(frozen=True)
class Submission:
    """One learner's files with exercises, and the errors in the other files."""

    name: str
    """The submitted file or folder."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """The exercises in each file."""
    trouble: str = ""
    own: tuple[str, ...] = ()
    """The parts of zerosim that the files use."""

    def within(self, folder: str) -> str:
        """The path of the copy of a submission in `folder`."""
        return os.path.join(folder, os.path.abspath(self.name).lstrip(os.sep))


def submissions(given: Sequence[str]) -> Iterator[Submission]:
    """The submissions in files and folders: a file is one; in a folder, each folder and each Python file is one."""
    for name in given:
        folder = Path(name)
        if not folder.is_dir():
            yield submission(name, [name])
            continue
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and handed_in(path))
        for path in inside:
            yield submission(str(path), list(map(str, python_files(path))))
        for path in sorted(folder.glob("*.py")):
            yield submission(str(path), [str(path)])


def handed_in(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in LEFT_OUT


def python_files(folder: Path) -> Iterator[Path]:
    """The Python files in a folder and in its subfolders."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and handed_in(path):
            yield from python_files(path)
        elif path.suffix == ".py":
            yield path


def submission(name: str, files: Sequence[str]) -> Submission:
    """The submission in these files; they are not run."""
    found: dict[str, list[str]] = {}
    wrong: list[str] = []
    for file in files:
        try:
            found[file] = exercises_in(file)
        except ScenarioError as error:
            wrong.append(nearly(file) or str(error))
    have = [f"{name} is in {file}, too" for name, file in twice(found)]
    trouble = "; ".join([*have, *([] if found else wrong or [f"{name}: no Python file"])])
    used = [f"{each} of {os.path.basename(file)}" for file in found for each in borrowed(text_of(file))]
    return Submission(name, found, trouble, tuple(used))


def twice(found: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Exercises that a second file defines again; they are removed from its list."""
    seen: set[str] = set()
    for file, names in found.items():
        for name in [each for each in names if each in seen]:
            names.remove(name)
            yield name, file
        seen |= {*names}


def text_of(file: str) -> str:
    try:
        return read_python(file).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def nearly(file: str) -> str | None:
    """A hint to a function that may be meant as an exercise, by its name or place, in a file without exercises."""
    try:
        tree = ast.parse(text_of(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node.name in EXERCISES:
            return (f"{file}:{node.lineno}: {node.name} is an async def; write a plain def")
        if isinstance(node, ast.FunctionDef) and node.name in EXERCISES:
            return f"{file}:{node.lineno}: {node.name} is nested in another definition; move it to the top level"
        if isinstance(node, ast.FunctionDef) and (meant := did_you_mean(node.name, EXERCISES)):
            return f"{file}:{node.lineno}: no exercise is named {node.name}{meant}"
    return None


def copied(handed: Sequence[Submission], folder: str) -> None:
    """Copy each submission into `folder`. Unreadable files are left out and reported when they are graded."""
    for each in handed:
        goal = each.within(folder)
        os.makedirs(os.path.dirname(goal), exist_ok=True)
        if os.path.isdir(each.name):
            shutil.copytree(each.name, goal, ignore=left_out, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        elif os.path.isfile(each.name):
            for beside in Path(each.name).parent.glob("*.py"):
                shutil.copy(beside, os.path.join(os.path.dirname(goal), beside.name))


def left_out(folder: str, names: list[str]) -> set[str]:
    """The names in a folder that are not copied."""
    return {name for name in names if name.startswith(".") or name in LEFT_OUT}


