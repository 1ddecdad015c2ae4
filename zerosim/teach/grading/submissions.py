"""The submissions of a course: each learner's regular files, copied before any of them runs.

Links, pipes, devices and unreadable files are left out and named in the learner's row. No submission ends the grading
of another.
"""

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerosim.errors import ScenarioError, UsageError, did_you_mean
from zerosim.files import open_regular, reason
from zerosim.parts.loading import read_python
from zerosim.teach.grading.contained import Learner
from zerosim.teach.grading.exercises import EXERCISES, exercises_in
from zerosim.teach.grading.library_use import library_uses

LEFT_OUT = ("site-packages", "node_modules", "__pycache__", "venv", "env")
"""Folders that contain no submissions; folders whose name begins with a dot contain none either."""
MOST_FILES, MOST_DEPTH, MOST_COPIED, MOST_SOURCE = 50_000, 30, 1 << 26, 1 << 24
"""The files of a submission, the folders above each, the bytes copied, and the bytes of source that are read."""
MOST_TOLD = 5
"""The lines of trouble, and of uses of zerosim's own, that are told of a submission."""


@dataclass(frozen=True)
class Submission:
    """One learner's files with exercises, and the errors in the other files."""

    name: str
    """The submitted file or folder."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """The exercises in each file."""
    trouble: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    """The parts of zerosim that the files use."""
    others: tuple[str, ...] = ()
    """The files without exercises, which are copied as well."""

    def copy(self, learner: Learner) -> Iterator[str]:
        """Copy the files into the learner's folder, which is then the learner's alone; yield a line for each failure.
        """
        left = MOST_COPIED
        for file in (*self.files, *self.others):
            try:
                with open_regular(file) as opened:
                    held = opened.read(left + 1)
                if len(held) > left:
                    raise OSError(0, f"the submission has more than {MOST_COPIED:,} bytes")
                goal = learner.copy_of(file)
                os.makedirs(os.path.dirname(goal), exist_ok=True)
                Path(goal).write_bytes(held)
                left -= len(held)
            except OSError as error:
                yield f"{file} is not copied: {reason(error)}"
        learner.closed()


def submissions(given: Sequence[str], skeletons: Sequence[str] = ()) -> list[Submission]:
    """The submissions in files and folders: a file is one; in a folder, each folder and each Python file is one.

    A folder is a single submission if all exercises in it are in files with the names of the `skeletons`, in several of
    them. Raises `UsageError` if a folder cannot be read.
    """
    found: list[Submission] = []
    taken = {os.path.realpath(name) for name in given}
    for name in given:
        if not os.path.isdir(name):
            beside = [path for path in python_beside(name) if os.path.realpath(path) not in taken]
            found.append(submission(name, [name], beside))
            continue
        inside = in_folder(name)
        written = [each for each in inside if each.files]
        if len(written) > 1 and all(os.path.basename(each.name) in skeletons for each in written):
            inside = [of_folder(name)]
        found += inside
    return found


def in_folder(folder: str) -> list[Submission]:
    """The submissions in a folder: those in its folders, then its Python files."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {reason(error)}") from None
    folders = [of_folder(entry.path) if not entry.is_symlink() else odd(entry.path, "a link")
               for entry in entries if handed_in(entry.name) and os.path.isdir(entry.path)]
    files = [submission(entry.path, [entry.path]) if entry.is_file(follow_symlinks=False)
             else odd(entry.path, "a link" if entry.is_symlink() else "not a regular file")
             for entry in entries if entry.name.endswith(".py") and not os.path.isdir(entry.path)]
    return [*folders, *files]


def odd(path: str, what: str) -> Submission:
    return Submission(path, trouble=(f"{path} is {what}; hand in the file or the folder itself",))


def of_folder(folder: str) -> Submission:
    """The submission in a folder and its subfolders."""
    found: list[str] = []
    left: list[str] = []
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            entries = list(os.scandir(here))
        except OSError as error:
            left.append(f"{here}: {reason(error)}")
            continue
        for entry in filter(lambda entry: handed_in(entry.name), entries):
            if entry.is_dir(follow_symlinks=False) and depth < MOST_DEPTH:
                waiting.append((entry.path, depth + 1))
            elif entry.is_file(follow_symlinks=False) and len(found) < MOST_FILES:
                found.append(entry.path)
            else:
                left.append(f"{entry.path} is left out: {why_not(entry)}")
    python = sorted(path for path in found if path.endswith(".py"))
    return submission(folder, python, [path for path in found if not path.endswith(".py")], sorted(left))


def why_not(entry: os.DirEntry[str]) -> str:
    """Why an entry is not copied."""
    if entry.is_symlink():
        return "it is a link"
    if entry.is_dir() or entry.is_file():
        return f"the submission has more than {MOST_FILES:,} files, or {MOST_DEPTH} levels of folders"
    return "it is not a regular file"


def handed_in(name: str) -> bool:
    return not name.startswith(".") and name not in LEFT_OUT


def python_beside(file: str) -> list[str]:
    """The other Python files in the folder of a file."""
    try:
        with os.scandir(os.path.dirname(file) or ".") as found:
            return [entry.path for entry in found if entry.name.endswith(".py") and entry.is_file()]
    except OSError:
        return []


def submission(
    name: str, files: Sequence[str], others: Sequence[str] = (), left: Sequence[str] = ()
) -> Submission:
    """The submission in these Python files and `others`; they are not run. `left` names what was left out."""
    found: dict[str, list[str]] = {}
    wrong: list[str] = []
    used: list[str] = []
    source = MOST_SOURCE
    for file in files:
        text = text_of(file) if source > 0 else b""
        source -= len(text)
        used += [f"{each} of {os.path.basename(file)}" for each in library_uses(text)]
        try:
            found[file] = exercises_in(file)
        except ScenarioError as error:
            wrong.append(nearly(file, text) or str(error))
    have = [f"{name} is in {file}, too" for name, file in twice(found)]
    trouble = [*have, *([] if found else wrong or [f"{name}: no Python file"]), *left]
    rest = [file for file in files if file not in found]
    return Submission(name, found, first_of(trouble), first_of(used), (*rest, *others) if found else ())


def first_of(told: Sequence[str]) -> tuple[str, ...]:
    more = len(told) - MOST_TOLD
    return (*told[:MOST_TOLD], *([f"and {more:,} more"] if more > 0 else []))


def twice(found: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Exercises that a second file defines again; they are removed from its list."""
    seen: set[str] = set()
    for file, names in found.items():
        for name in [each for each in names if each in seen]:
            names.remove(name)
            yield name, file
        seen |= {*names}


def text_of(file: str) -> bytes:
    try:
        return read_python(file)
    except OSError:
        return b""


def nearly(file: str, text: bytes) -> str | None:
    """A hint to a function that may be meant as an exercise, by its name or place, in a file without exercises."""
    try:
        tree = ast.parse(text)
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
