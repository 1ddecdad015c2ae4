"""The examination of one function: claim by claim, up to the first that does not hold.

`python -m zerosim.grading.examination FILE FUNCTION` prints the grade as JSON, or why the file cannot be used.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from zerosim.errors import UsageError, ZerosimError
from zerosim.grading.claim import Claims
from zerosim.grading.exercises import Grade
from zerosim.proofs.subject import load_file


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


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = answer(*sys.argv[1:])
    print(json.dumps(found))
