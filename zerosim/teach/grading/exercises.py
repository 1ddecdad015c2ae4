"""The exercises in a learner's file, the claims about them, and their grades.

Each function is graded in a separate process with a time limit.
"""

import ast
import linecache
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from zerosim.errors import ScenarioError
from zerosim.files import reason
from zerosim.parts.loading import read_python
from zerosim.teach.proofs.hints import why_it_never_ends
from zerosim.worlds.running import CodePlace

EXERCISES = {
    "reduce_scatter": 13, "all_gather": 11, "all_reduce": 15, "broadcast": 11, "reduce": 11,
    "zero1_step": 10, "zero2_step": 10, "zero3_step": 10,
    "reduce_scatter_left": 8, "reduce_scatter_elsewhere": 8, "all_reduce_two_level": 10,
    "zero2_each_part_step": 10, "zero3_kept_step": 12, "fsdp_step": 12,
    "split_pair": 10, "one_f_one_b_step": 10,
}
"""The points of each exercise, in the order of the course."""

PATIENCE_SECONDS = 60.0
"""The time limit of one examination; a correct function takes a few seconds."""

State = Literal["holds", "holds so far", "does not hold yet", "not yet written", "does not end"]
Found = Literal["holds", "does not hold", "not asked", "cannot be asked"]


@dataclass(frozen=True)
class Claim:
    """One requirement of a function, in a learner's words; `complaint()` returns the error, None if it holds."""

    says: str
    complaint: Callable[[], str | None]
    points: int = 1
    law: str = ""
    """The name of the law, if the claim is a law."""
    first: bool = False
    """Whether nothing further is checked until this claim holds."""
    separable: bool = True
    """Whether it can be checked on ranks in separate processes."""
    needs: str = ""
    """The package that must be installed for the check, in words."""


ClaimsOf = Callable[[Callable[..., Any]], Sequence[Claim]]
"""All claims about a function, the most basic first; none runs until it is checked."""


@dataclass(frozen=True)
class Item:
    """One claim and its result."""

    says: str
    points: int
    state: Found
    law: str = ""
    complaint: str | None = None

    @property
    def earned(self) -> int:
        """All points of the item, or none."""
        return self.points if self.state == "holds" else 0


@dataclass(frozen=True)
class Grade:
    """The result of one function: its items, and a complaint about the first that does not hold.

    The state "holds so far" means that no item failed and that some could not be checked here.
    """

    function: str
    state: State
    items: list[Item] = field(default_factory=list)
    complaint: str | None = None
    printed: list[str] = field(default_factory=list)
    """The output of the function during the first failed item, or during the first item if none failed."""
    own: tuple[str, ...] = ()
    """The solutions of zerosim that the confirming ranks ran."""

    @property
    def held(self) -> list[str]:
        """The claims that hold."""
        return [item.says for item in self.items if item.state == "holds"]

    @property
    def earned(self) -> int:
        return sum(item.earned for item in self.items)

    @property
    def points(self) -> int:
        """The points of a correct solution."""
        return EXERCISES.get(self.function, 0) or sum(item.points for item in self.items)

    def document(self) -> dict[str, Any]:
        """The grade as JSON types."""
        return {
            "function": self.function, "state": self.state, "earned": self.earned, "points": self.points,
            "held": self.held, "complaint": self.complaint, "items": [asdict(item) for item in self.items],
            "printed": self.printed,
        }


def from_document(document: dict[str, Any]) -> Grade:
    """The grade from `Grade.document`. Raises `KeyError`, `TypeError` or `ValueError` for anything else.

    >>> grade = Grade("all_gather", "holds", [Item("it returns", 2, "holds")])
    >>> from_document(grade.document()) == grade
    True
    """
    items = [Item(
        one_line(item["says"]), item["points"], item["state"], one_line(item["law"]),
        item["complaint"] and cleaned(item["complaint"])) for item in document["items"][:MOST_ITEMS]]
    if document["state"] not in get_args(State) or any(item.state not in get_args(Found) for item in items):
        raise ValueError(document["state"])
    for item in items:
        if type(item.points) is not int or item.points < 0:
            raise ValueError(item.points)
    return Grade(cleaned(document["function"]), document["state"], items,
                 document["complaint"] and cleaned(document["complaint"]),
                 [one_line(line, 500) for line in document["printed"][:MOST_ITEMS]])


MOST_ITEMS = 40
"""The items of a grade, and the lines of output, that are read."""


def cleaned(words: str, most: int = 8_000) -> str:
    """Words of a learner's process: at most `most` characters, those that do not print as escapes.

    >>> print(cleaned("a" + chr(27) + "[2J"), cleaned("abc", 2))
    a\\x1b[2J ab …
    """
    if not isinstance(words, str):
        raise TypeError(words)
    shown = "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in words[:most])
    return f"{shown} …" if len(words) > most else shown


def one_line(words: str, most: int = 8_000) -> str:
    """`cleaned` words without line breaks, so that a name or a report cannot add a line to a table.

    >>> one_line("ada" + chr(10) + "151 of 151")
    'ada\\\\n151 of 151'
    """
    return cleaned(words, most).replace("\n", r"\n")


def exercises_in(file: str) -> list[str]:
    """The exercises that `file` defines at its top level, in the order of `EXERCISES`; the file is not run.

    Raises `ScenarioError` for a file that cannot be read or defines no exercise.
    """
    try:
        body = ast.parse(read_python(file), file).body
    except SyntaxError as error:
        raise ScenarioError(
            f"is not Python: {error.msg}", file=file, line=error.lineno or 1, column=error.offset or 1
        ) from error
    except OSError as error:
        raise ScenarioError(f"cannot be read: {reason(error)}", file=file) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScenarioError(f"is not Python: {error}", file=file) from error
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    found = [name for name in EXERCISES if name in defined]
    if not found:
        raise ScenarioError(f"has no function to grade; name it one of {', '.join(EXERCISES)}", file=file)
    return found


def unwritten(file: str, name: str) -> int | None:
    """The line in which a function only raises NotImplementedError; None for other functions."""
    for node in ast.parse(read_python(file), file).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            body = node.body if ast.get_docstring(node) is None else node.body[1:]
            raised = body[0].exc if len(body) == 1 and isinstance(body[0], ast.Raise) else None
            raised = raised.func if isinstance(raised, ast.Call) else raised
            if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
                return body[0].lineno
    return None


def still_busy(patience_seconds: float, file: str, complained: str) -> str:
    """The message about a function that does not end: its time and, if its process has reported it, line and loop."""
    line = busy_line(complained, os.path.abspath(file))
    where = f", in line {line}" if line else ""
    why = (why_it_never_ends([CodePlace(file, line, {})], file) or no_return(file, line)) if line else None
    return f"still busy after {patience_seconds:g} seconds{where}: {why or 'look for a loop that never ends'}"


def no_return(file: str, line: int) -> str:
    """A message that names a line outside any loop that has not returned.

    >>> no_return(os.devnull, 3)
    'it has not returned'
    """
    written = linecache.getline(file, line).strip()
    return f"{written} has not returned" if written else "it has not returned"


def busy_line(complained: str, file: str) -> int | None:
    """The line of `file` in which a thread runs that is not waiting for its turn, from `faulthandler`'s output.

    >>> busy_line('Thread 0x1 (most recent call first):\\n  File "/mine.py", line 7 in all_gather\\n', "/mine.py")
    7
    """
    named = re.escape(file.encode("ascii", "backslashreplace").decode())
    for thread in complained.split("(most recent call first):")[1:]:
        waits = re.match(r'\s*File "[^"]*", line \d+ in (_wait|wait|_live|_pass_turn)\n', thread)
        found = re.search(rf'File "{named}", line (\d{{1,7}})\b', thread)
        if found and not waits:
            return int(found[1])
    return None
