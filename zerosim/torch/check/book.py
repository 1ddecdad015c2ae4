"""What the judge has said so far: findings, suspicions, and for each subject the verdicts with reasons and counts."""

from dataclasses import asdict, dataclass, field
from typing import Any

from zerosim.core.words import plural
from zerosim.torch.check.causes import CAUSES
from zerosim.torch.check.record import Step, Term

WITHIN, EQUAL, NOT_JUDGED = "within the rounding of any order of addition", "equal", "not judged"
SUBJECTS = ("initial weights", "inputs", "weights of the forward", "gradient", "clipping", "update", "replicas",
            "parameters")
TRAINING_APART = ("replicas have drifted apart", "own gradient only", "the mean of a smaller group")


@dataclass
class CheckFinding:
    """One fault, or one suspicion: `elements` are how many numbers of the sketch are wrong; `line` is the script's."""

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
    """The first finding and the first suspicion of each cause, and how often each subject got each verdict, and why."""

    known: dict[str, bool] = field(default_factory=dict)
    """Which evidence the run as a whole has, by its name in the table of causes."""
    findings: dict[str, CheckFinding] = field(default_factory=dict)
    suspicions: dict[str, CheckFinding] = field(default_factory=dict)
    verdicts: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    diverged: int = 0
    """The first step before which replicas had different weights."""
    rejoined: bool = False
    """Whether they had the same weights later: the ranks average weights, not gradients."""
    lost: dict[tuple[int, int], list[tuple[Step, Term | None]]] = field(default_factory=dict)
    """For the first rank of a group and an optimizer, its steps, and a term that a loop may have lost in each."""
    scaled: dict[tuple[int, int], list[tuple[Step, float, float]]] = field(default_factory=dict)
    """For the same, the steps whose gradients the script has multiplied, and between which factors."""
    parameters: dict[str, bool] = field(default_factory=dict)
    """For each parameter of an optimizer, whether its gradient was judged in some step."""
    micro_batches: int = 0
    """How many micro-batches of each rank were judged."""

    def find(self, step: Step, cause: str, text: str, parameter: str = "", elements: int = 0, line: str = "",
             proved: bool = True, **evidence: bool) -> None:
        """Write down a finding if all its evidence is there, what the table names and `proved`; else a suspicion."""
        row, known = CAUSES[cause], self.known | evidence
        proved = proved and bool(row.proof) and all(known[need] for need in row.needs)
        text += "" if proved or not row.excluded else f"; this is right with {row.excluded}"
        finding = CheckFinding(row.what, step.number, step.rank, cause, text, parameter, elements, line or step.line)
        (self.findings if proved else self.suspicions).setdefault(cause, finding)

    def judge(self, what: str, verdict: str, why: str) -> None:
        self.verdicts.setdefault(what, {}).setdefault(verdict, []).append(why)

    def verdict(self, what: str) -> dict[str, Any] | None:
        """The strongest verdict on a subject, and how many steps were not judged and why; None if not looked at."""
        received = self.verdicts.get(what, {})
        best = next((verdict for verdict in (WITHIN, EQUAL, NOT_JUDGED) if verdict in received), None)
        if best is None:
            return None
        whys, missing = received[best], received.get(NOT_JUDGED, [])
        judged, why = (0 if best == NOT_JUDGED else len(whys)), whys[0]
        of = judged + len(missing)
        if judged and missing:
            why += f"; {len(missing)} of {of} steps were not judged: {missing[0]}"
        return {"what": what, "verdict": best, "why": why, "judged": judged, "of": of}

    def document(self, steps: int, facts: dict[str, Any]) -> dict[str, Any]:
        """The document `zerosim.check/3`."""
        if self.rejoined:
            for cause in TRAINING_APART:
                self.findings.pop(cause, None)
                self.suspicions.pop(cause, None)
            for what in ("gradient", "replicas"):
                self.verdicts[what] = {NOT_JUDGED: ["ranks train apart, and average their weights"]}
        for cause in self.findings:
            self.suspicions.pop(cause, None)
        wrong = {finding.what for finding in (*self.findings.values(), *self.suspicions.values())}
        verdicts = [verdict for what in SUBJECTS if (verdict := self.verdict(what)) is not None and (
            what not in wrong or verdict["verdict"] == NOT_JUDGED or verdict["judged"] < verdict["of"])]
        return {"schema": "zerosim.check/3", **{name: [asdict(finding) for finding in sorted(
            of_causes.values(), key=lambda finding: (finding.step, SUBJECTS.index(finding.what), finding.rank))]
            for name, of_causes in (("findings", self.findings), ("suspicions", self.suspicions))},
            "steps": steps, **facts, "micro_batches": self.micro_batches, "parameters": len(self.parameters),
            "parameters_judged": sum(self.parameters.values()), "verdicts": verdicts}


def unjudged(document: dict[str, Any]) -> str:
    """Why gradients were not judged; empty if they were in some step, or if they are a finding."""
    if any(finding["what"] == "gradient" for finding in document["findings"]):
        return ""
    return next((("" if verdict["judged"] else verdict["why"]) for verdict in document["verdicts"]
                 if verdict["what"] == "gradient"), "" if any(
                     finding["what"] == "gradient" for finding in document["suspicions"]) else "no step was judged")


def lines(document: dict[str, Any]) -> list[str]:
    """The document as text: one line for each verdict, suspicion and finding; findings come last."""
    said = [f"zerosim: {word} {CheckFinding(**finding)}" for word, name in (
        ("SUSPICIOUS", "suspicions"), ("FOUND", "findings")) for finding in document[name]]
    verdicts = ["zerosim: {what}: {verdict}: {why}".format(**verdict) for verdict in document["verdicts"]]
    outcome = [plural(len(document["findings"]), "finding")] if document["findings"] else []
    outcome += ["gradients were not judged"] if unjudged(document) else [] if outcome else ["no findings"]
    outcome += [plural(len(document["suspicions"]), "suspicion")] if document["suspicions"] else []
    rest = document["updates"] - document["steps"]
    of = f" of {document['updates']:,} (--check-steps A..B checks others)" if rest > 0 else ""
    micro, judged = document["micro_batches"], document["parameters_judged"]
    if judged:
        of += f", {micro:,} micro-batch{'es' * (micro != 1)}, {judged} of {plural(document['parameters'], 'parameter')}"
    return [*verdicts, f"zerosim: checked {plural(document['steps'], 'step')}{of}: {', '.join(outcome)}", *said]
