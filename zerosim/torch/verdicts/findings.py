"""The results of a check: findings, verdicts, observations, and the document of them."""

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from zerosim.torch.places import of_a_library, passes_on

SAME_BITS = "same bits"
WITHIN = "within the rounding of any order of addition"
NOT_JUDGED = "not judged"
STRENGTH = (SAME_BITS, WITHIN, NOT_JUDGED)
"""The three verdicts. Several of one subject count as the last of them in this order."""

SUBJECTS = ("initial weights", "inputs", "weights of the forward", "gradient", "clipping", "update", "replicas",
            "tied weights", "parameters")
"""The subjects of a check, in the order of a step."""

ABSENT = {"clipping": "clip_grad_norm_ was not called", "tied weights": "no model was judged"}


@dataclass(frozen=True)
class CheckFinding:
    """One fault: `elements` are how many of the parameter's are wrong; `line` is the script's, as file:number."""

    what: str
    step: int
    rank: int
    cause: str
    text: str
    parameter: str = ""
    elements: int = 0
    line: str = ""

    def __str__(self) -> str:
        at = f" ({self.line})" if self.line else ""
        return f"step {self.step}, rank {self.rank}: {self.cause}: {self.text}{at}"


@dataclass
class Book:
    """Collects what this rank has to say."""

    findings: dict[tuple[str, str], CheckFinding] = field(default_factory=dict)
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each subject the verdicts that it has received, with the reason of the first."""
    observations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def find(self, what: str, step: int, rank: int, cause: str, text: str, parameter: str = "", elements: int = 0,
             line: str = "") -> None:
        """Keep the first finding of each cause."""
        self.findings.setdefault(
            (what, cause), CheckFinding(what, step, rank, cause, text, parameter, elements, line))

    def judge(self, what: str, verdict: str, why: str) -> None:
        self.verdicts.setdefault(what, {}).setdefault(verdict, why)

    def observe(self, what: str, text: str, sent_bytes: int = 0, line: str = "") -> None:
        """Keep the first observation of each kind; the bytes are those of one rank and step."""
        self.observations.setdefault(what, {"what": what, "text": text, "bytes": sent_bytes, "line": line})


def merged(books: Iterable[Book], steps: int) -> dict[str, Any]:
    """The document `zerosim.check/1` of all ranks' books; the first rank with a finding speaks for the others.

    >>> merged([Book()], 2)["findings"]
    []
    """
    findings: dict[tuple[str, str], CheckFinding] = {}
    verdicts: dict[str, dict[str, str]] = {}
    observations: dict[str, dict[str, Any]] = {}
    for book in books:
        for key, finding in book.findings.items():
            if key not in findings or finding.step < findings[key].step:
                findings[key] = finding
        for what, received in book.verdicts.items():
            for verdict, why in received.items():
                verdicts.setdefault(what, {}).setdefault(verdict, why)
        for what, entry in book.observations.items():
            observations.setdefault(what, entry)
    wrong = {finding.what for finding in findings.values()}
    judged = []
    for what in SUBJECTS:
        received = verdicts.get(what, {})
        if what in wrong and NOT_JUDGED not in received:
            continue
        weakest = max(received or {NOT_JUDGED: ""}, key=STRENGTH.index)
        why = received.get(weakest, ABSENT.get(what, "the script ended before it"))
        judged.append({"what": what, "verdict": weakest, "why": why})
    ordered = sorted(findings.values(), key=lambda each: (each.step, SUBJECTS.index(each.what), each.rank))
    return {"schema": "zerosim.check/1", "steps": steps, "verdicts": judged,
            "findings": [asdict(each) for each in ordered], "observations": [*observations.values()]}


def lines(document: dict[str, Any]) -> list[str]:
    """The document as text: one line for each finding, observation and verdict."""
    found = [str(CheckFinding(**each)) for each in document["findings"]]
    said = [f"zerosim: FOUND {text}" for text in found]
    for each in document["observations"]:
        cost = f", {each['bytes']:,} bytes per rank and step" if each["bytes"] else ""
        said.append(f"zerosim: observed: {each['text']}{cost}{' (' + each['line'] + ')' if each['line'] else ''}")
    said += [f"zerosim: {each['what']}: {each['verdict']}: {each['why']}" for each in document["verdicts"]]
    steps = document["steps"]
    return [*said, f"zerosim: checked {steps} step{'s' * (steps != 1)}: {len(found) or 'no'} "
                   f"finding{'s' * (len(found) != 1)}"]


def script_line() -> str:
    """The innermost line of the user's code that led here, as file:number; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not of_a_library(file) and not passes_on(file):
            return f"{file.rpartition(os.sep)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
