"""The examination of one function: claim by claim, up to the first that does not hold.

`python -m zerosim.grading.examination FILE FUNCTION DESCRIPTOR PARENT` reads a secret from standard input and writes it
to the pipe of that descriptor with the grade as JSON behind it, or why the file cannot be used.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from zerosim.errors import UsageError, ZerosimError
from zerosim.grading.claim import Claims
from zerosim.grading.exercises import Grade
from zerosim.proofs.subject import load_file

PR_SET_PDEATHSIG = 1


def grade(function: Callable[..., Any], name: str, claims: Claims, file: str = "") -> Grade:
    """The grade of one function; `file` is where it was written.

    >>> from zerosim.grading.claim import Claim
    >>> def claims(function):
    ...     yield Claim("it returns 1", lambda: None if function() == 1 else f"it returns {function()}")
    >>> grade(lambda: 2, "one", claims)
    Grade(function='one', state='does not hold yet', held=[], complaint='not so: it returns 1\\nit returns 2')
    """
    held: list[str] = []
    try:
        for claim in claims(function):
            complaint = claim.complaint()
            if complaint is not None:
                return Grade(name, "does not hold yet", held, f"not so: {claim.says}\n{complaint}")
            held.append(claim.says)
    except NotImplementedError:
        return Grade(name, "not yet written", [])
    except Exception as error:
        return Grade(name, "does not hold yet", held, raised(error, file))
    return Grade(name, "holds", held)


def raised(error: Exception, file: str) -> str:
    """An exception in one line, with the line of the learner's file that it came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(file)]
    where = f" in line {lines[-1]}" if lines else ""
    kind = "" if isinstance(error, ZerosimError) else f"{type(error).__name__}: "
    return " ".join([f"{kind}{error}{where}", *getattr(error, "__notes__", [])])


def answer(file: str, name: str) -> dict[str, Any]:
    """The grade as JSON, or why there is none."""
    try:
        from zerosim.grading.claims import CLAIMS  # noqa: PLC0415 - needs Hypothesis, which may not be there

        function = getattr(load_file(file), name)
    except (ImportError, UsageError) as error:
        return {"unusable": str(error).removeprefix(f"{file} ")}
    return asdict(grade(function, name, CLAIMS[name], file))


def end_with(parent: int) -> None:
    """Let Linux end this process when `parent` has ended, however busy this is then."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main(file: str, name: str, descriptor: str, parent: str) -> None:
    """Examine, and answer; what the function prints goes nowhere."""
    end_with(int(parent))
    secret = sys.stdin.read()
    found = json.dumps(answer(file, name))
    with open(int(descriptor), "w", encoding="utf-8") as channel:
        channel.write(f"{secret}{found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
