"""The examination of one function, claim by claim, with its printed output.

`python -m zerosim.teach.grading.examination PARENT DESCRIPTOR PATIENCE FILE FUNCTION` answers with the grade, or with
the reason why the file cannot be used, through `zerosim.teach.grading.channel`.

A failed claim is checked again in a run in which ranks and calls share nothing.
"""

import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from zerosim.errors import UsageError
from zerosim.parts.loading import load_file, read_python
from zerosim.teach.grading.channel import Answering
from zerosim.teach.grading.claims import CLAIMS
from zerosim.teach.grading.exercises import Claim, ClaimsOf, Grade, Item, State
from zerosim.teach.proofs.diagnosis import because
from zerosim.teach.proofs.hints import hint, raised

MOST_PRINTED = 12
"""The lines of a learner's output that are shown."""
MOST_WIDE, MOST_TOLD = 1_000, 10_000
"""The characters kept of a line of output, and of a complaint, so that an answer fits into the channel."""


def grade(function: Callable[..., Any], name: str, claims: ClaimsOf, file: str = "") -> Grade:
    """The grade of one function, which was written in `file`.

    A failed item loses only its own points, but items marked `first` must hold before any later one is checked.

    >>> def claims(function):
    ...     return [Claim("it returns 1", lambda: None if function() == 1 else f"it returns {function()}")]
    >>> found = grade(lambda: 2, "one", claims)
    >>> found.state, found.complaint, found.earned, found.points
    ('does not hold yet', 'not so: it returns 1\\nit returns 2', 0, 1)
    """
    examination = Examination(file)
    try:
        items = list(examination.items(claims(function)))
    except NotImplementedError:
        return Grade(name, "not yet written")
    except Exception as error:
        return Grade(name, "does not hold yet", complaint=error_with_hint(error, os.path.abspath(file)))
    failed = [item for item in items if item.state == "does not hold"]
    complaint = f"not so: {failed[0].says}\n{failed[0].complaint}" if failed else None
    if complaint and not failed[0].law:
        complaint = with_shared_state(complaint, function, claims, items.index(failed[0]), file)
    done: State = "holds" if all(item.state == "holds" for item in items) else "holds so far"
    return Grade(name, "does not hold yet" if failed else done, items, complaint, examination.printed)


class Examination:
    """Claims checked one after the other, with the output printed during the first one of interest."""

    def __init__(self, file: str) -> None:
        self.printed: list[str] = []
        self._file = file

    def items(self, claims: Sequence[Claim]) -> Iterator[Item]:
        """The result of each claim."""
        stopped, failed = False, False
        for number, claim in enumerate(claims):
            if stopped:
                yield Item(claim.says, claim.points, "not asked", claim.law)
            elif claim.needs:
                yield Item(claim.says, claim.points, "cannot be asked", claim.law, f"needs {claim.needs}")
            else:
                complaint, printed = self._asked(claim)
                if number == 0 or (complaint and not failed):
                    self.printed = printed
                failed = failed or complaint is not None
                stopped = claim.first and complaint is not None
                yield Item(claim.says, claim.points, "does not hold" if complaint else "holds", claim.law, complaint)

    def _asked(self, claim: Claim) -> tuple[str | None, list[str]]:
        """The error, if any, and the printed output."""
        heard = Heard()
        with contextlib.redirect_stdout(heard):
            try:
                complaint = claim.complaint()
            except NotImplementedError:
                raise
            except Exception as error:
                complaint = error_with_hint(error, os.path.abspath(self._file))
        return complaint and complaint[:MOST_TOLD], heard.printed_lines()


class Heard(io.TextIOBase):
    """A stream that keeps the first lines printed to it."""

    def __init__(self) -> None:
        self._lines = [""]
        self._more = 0

    def write(self, text: str) -> int:
        *ended, last = text.split("\n")
        for part in ended:
            if len(self._lines) <= MOST_PRINTED:
                self._add(part)
                self._lines.append("")
            else:
                self._more += 1
        if len(self._lines) <= MOST_PRINTED:
            self._add(last)
        return len(text)

    def _add(self, part: str) -> None:
        """Continue the last line, up to `MOST_WIDE` characters."""
        self._lines[-1] += part[: MOST_WIDE - len(self._lines[-1])]

    def printed_lines(self) -> list[str]:
        """The first lines, and the number of further ones.

        >>> heard = Heard()
        >>> print("rank", 0, file=heard)
        >>> heard.printed_lines()
        ['rank 0']
        """
        lines = self._lines if self._lines[-1] else self._lines[:-1]
        return [*lines, f"… and {self._more:,} lines more"] if self._more else lines


def error_with_hint(error: Exception, file: str) -> str:
    """An exception in one line, with the last line of the learner's file in its traceback, then its meaning."""
    return "\n".join([raised(error, file), *because(hint(error))])


def answer(file: str, name: str) -> dict[str, Any]:
    """The grade as JSON, or the reason why there is none."""
    claims, judge = CLAIMS[name], grade
    try:
        function = getattr(load_file(file), name)
    except UsageError as error:
        return {"unusable": str(error).removeprefix(f"{file} ")}
    return judge(function, name, claims, file).document()


def limit_memory() -> None:
    """Limit this process to `MOST_BYTES` more memory than it has, on systems that support limits."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415 - Windows has none

        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + MOST_BYTES, has + MOST_BYTES))


MOST_BYTES = 4 << 30


def main(parent: str, descriptor: str, patience_seconds: str, file: str, name: str) -> None:
    """Examine the function and answer."""
    answering = Answering(parent, descriptor, patience_seconds)
    limit_memory()
    with contextlib.redirect_stdout(sys.stderr):
        found = answer(file, name)
    answering.say(found)


def with_shared_state(
    complaint: str, function: Callable[..., Any], claims: ClaimsOf, failed: int, file: str
) -> str:
    """The complaint, with another cause if the error is gone when ranks and calls share no state of the module.

    An error without a known cause need only be another then. All claims up to the failed one are checked again, since
    later ones judge the runs of earlier ones.
    """
    name = getattr(function, "__name__", "")
    try:
        source = read_python(file).decode()
        named = [*shared_state(source)] if f"def {name}(" in source else []
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return complaint
    if not named or "MemoryError" in complaint:
        return complaint
    asked = [claim for claim in claims(afresh(source, file, name, function))[: failed + 1]
             if not (claim.law or claim.needs)]
    try:
        left = next(filter(None, (claim.complaint() for claim in asked)), None)
    except Exception:
        return complaint
    said = complaint.split("\n")[1]
    if left and ("\nwhy: " in complaint or re.sub(r"\d+", "", left.split("\n")[0]) == re.sub(r"\d+", "", said)):
        return complaint
    lines = [each for each in complaint.split("\n") if not each.startswith(("why: ", "seen: "))]
    last = [lines.pop()] if lines[-1].startswith("see: ") else []
    why = (f"why: {' and '.join(named)} is shared by all ranks and all calls; create it within the call. With a "
           f"separate module for each call the error is {'another' if left else 'gone'}")
    return "\n".join([*lines, why, *last])


def afresh(source: str, file: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which executes its module again for each rank and each call."""
    code = compile(source, file, "exec")

    @wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        module: dict[str, Any] = {"__name__": "afresh", "__file__": file}
        exec(code, module)
        return module[name](*given, **named)

    return called


def shared_state(source: str) -> Iterator[str]:
    """The mutable state of the module and of its functions, by name and line.

    >>> list(shared_state("CACHE = {}\\ndef f(x, seen=[]):\\n    CACHE[x] = seen"))
    ['`CACHE` of line 1', 'the default of `seen` in line 2']
    """
    tree = ast.parse(source)
    used = {node.id for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)
            for node in ast.walk(each) if isinstance(node, ast.Name)}
    for each in tree.body:
        if isinstance(each, ast.Assign | ast.AnnAssign) and not isinstance(each.value, ast.Constant | ast.Lambda):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id in used:
                    yield f"`{target.id}` of line {each.lineno}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            defaults = zip(node.args.args[::-1], node.args.defaults[::-1], strict=False)
            for argument, default in [*defaults][::-1]:
                if isinstance(default, ast.List | ast.Dict | ast.Set | ast.Call):
                    yield f"the default of `{argument.arg}` in line {argument.lineno}"
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield (f"`{', '.join(node.names)}`, {'global' if isinstance(node, ast.Global) else 'nonlocal'} in line "
                   f"{node.lineno}")


if __name__ == "__main__":
    main(*sys.argv[1:])
