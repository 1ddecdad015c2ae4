"""What a check has to say: findings, and a verdict for each subject."""

from dataclasses import asdict, dataclass, field
from typing import Any

from zerosim.core.words import plural
from zerosim.torch.check.record import Step

WITHIN, EQUAL, NOT_JUDGED = "within the rounding of any order of addition", "equal", "not judged"
SUBJECTS = ("initial weights", "inputs", "weights of the forward", "gradient", "clipping", "update", "replicas",
            "parameters")
TRAINING_APART = ("replicas have drifted apart", "own gradient only", "the mean of a smaller group")


@dataclass
class CheckFinding:
    """One fault: `elements` are how many numbers of the sketch are wrong; `line` is the script's, as file:number."""

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
    """Findings, the first of each cause, and for each subject the verdicts with the reason of the first."""

    findings: dict[tuple[str, str], CheckFinding] = field(default_factory=dict)
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    epochs: set[str] = field(default_factory=set)
    """The epochs that a DistributedSampler has begun."""
    diverged: int = 0
    """The first step before which replicas had different weights."""
    rejoined: bool = False
    """Whether they had the same weights later: the ranks average weights, not gradients."""
    changes: dict[str, list[bool]] = field(default_factory=dict)
    """For each parameter with a gradient, whether each update has changed it."""

    def find(self, what: str, step: Step, cause: str, text: str, parameter: str = "", elements: int = 0,
             line: str = "") -> None:
        finding = CheckFinding(what, step.number, step.rank, cause, text, parameter, elements, line or step.line)
        self.findings.setdefault((what, cause), finding)

    def judge(self, what: str, verdict: str, why: str) -> None:
        self.verdicts.setdefault(what, {}).setdefault(verdict, why)

    def document(self, steps: int) -> dict[str, Any]:
        """The document `zerosim.check/2`."""
        if self.rejoined:
            for key in [key for key in self.findings if key[1] in TRAINING_APART]:
                del self.findings[key]
            for what in ("gradient", "replicas"):
                self.judge(what, NOT_JUDGED, "ranks train apart, and average their weights")
        findings = sorted(self.findings.values(), key=lambda finding: (
            finding.step, SUBJECTS.index(finding.what), finding.rank))
        wrong, judged = {finding.what for finding in findings}, []
        for what in SUBJECTS:
            received = self.verdicts.get(what, {})
            if what not in wrong or NOT_JUDGED in received:
                weakest = next((verdict for verdict in (NOT_JUDGED, WITHIN, EQUAL) if verdict in received), NOT_JUDGED)
                judged.append({"what": what, "verdict": weakest, "why": received.get(weakest, "it was not seen")})
        return {"schema": "zerosim.check/2", "steps": steps, "verdicts": judged,
                "findings": [asdict(finding) for finding in findings]}


def unjudged(document: dict[str, Any]) -> str:
    """Why gradients were not judged; empty if they were, or if they are a finding."""
    return next((verdict["why"] for verdict in document["verdicts"]
                 if (verdict["what"], verdict["verdict"]) == ("gradient", NOT_JUDGED)), "")


def lines(document: dict[str, Any]) -> list[str]:
    """The document as text: one line for each finding and verdict."""
    findings = [f"zerosim: FOUND {CheckFinding(**finding)}" for finding in document["findings"]]
    verdicts = ["zerosim: {what}: {verdict}: {why}".format(**verdict) for verdict in document["verdicts"]]
    outcome = plural(len(findings), "finding") if findings else (
        "gradients were not judged" if unjudged(document) else "no findings")
    return [*findings, *verdicts, f"zerosim: checked {plural(document['steps'], 'step')}: {outcome}"]
