"""The exercises in a learner's file, each graded in a process of its own.

One that never ends is ended, and what it prints or breaks is its own affair.
"""

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from zerosim.errors import ScenarioError
from zerosim.files import reason
from zerosim.proofs.subject import read_python

EXERCISES = (
    "reduce_scatter", "all_gather", "all_reduce", "broadcast", "reduce", "zero1_step", "zero2_step", "zero3_step",
)
PATIENCE_SECONDS = 60.0
"""How long the examination of one function may take; that of an honest one takes a few seconds."""

State = Literal["holds", "does not hold yet", "not yet written", "does not end"]


@dataclass(frozen=True)
class Grade:
    """What was found out about one function: the claims that hold, and a complaint about the first that does not."""

    function: str
    state: State
    held: list[str]
    complaint: str | None = None


def exercises_in(file: str) -> list[str]:
    """The exercises that `file` defines at its top level, in their own order; nothing in it is run.

    Raises `ScenarioError` for a file that cannot be read or has none of them.
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


def grade_apart(file: str, name: str, patience_seconds: float = PATIENCE_SECONDS) -> Grade:
    """The grade of one function, in a process that lives no longer than `patience_seconds`.

    Raises `ScenarioError` where the file cannot be imported.
    """
    command = [sys.executable, "-m", "zerosim.grading.examination", file, name]
    try:
        ended = subprocess.run(
            command, timeout=patience_seconds, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        advice = f"still busy after {patience_seconds:g} seconds: look for a loop that never ends"
        return Grade(name, "does not end", [], advice)
    if not ended.stdout:
        last = ended.stderr.strip().rpartition("\n")[2]
        return Grade(name, "does not hold yet", [], f"its process ended with code {ended.returncode} {last}".strip())
    answer = json.loads(ended.stdout)
    if "unusable" in answer:
        raise ScenarioError(answer["unusable"], file=file)
    return Grade(**answer)
