"""A plan: for each row of a scenario, on so many ranks, whether it fits, how long a step takes, and what bounds it.

    MFU    model FLOPs utilisation: 6 operations for each parameter and token (of an mlp, sample) and, in a transformer,
           12 · layers · width · sequence for each token, over what the device could do in the time of a step
    HFU    hardware FLOPs utilisation: the same of all matrix products that are computed, recomputation included

MFU is defined in Chowdhery et al., "PaLM: scaling language modeling with pathways" (2022), appendix B, and HFU beside
it in Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022).

Of four fitted numbers for a device three are left. Where plans were off in the same way again and again, the missing
effect was looked for instead of fitting a number: PyTorch's checkpoint stops early, a loss has more passes, an
operation's bytes come after its products, collectives occupy multiprocessors, fused attention is computed again in
backward. Each has a source and lowered the errors; all together were then compared with runs that no fit had seen.

Memory that is nearly full has no number. Four published runs are slow there, because an allocator has to stop the
device; others with as little left are not. A number for that would fit four runs and predict none.

A plan keeps no curve of memory. It has tens of thousands of changes for a model of a hundred blocks, and a sweep
would hold a thousand of them; whoever looks at one has the step rehearsed again.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zerosim.formulas.traffic import due
from zerosim.instruments.memory import KINDS
from zerosim.instruments.trace import ClockOffset, Trace
from zerosim.models import MODELS
from zerosim.models.units import Task
from zerosim.planner.advice import advice
from zerosim.planner.cluster import NS, Cluster, cluster_of
from zerosim.planner.questions import Answer, Answers, Question
from zerosim.planner.rehearsal import Rehearsal, rehearse
from zerosim.scenario.origin import Origin
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Check
from zerosim.stages import STAGES
from zerosim.training.config import Config, configured

SHARE_THAT_BOUNDS = 0.25
"""A row that waits for communication for this share of its step is bound by it."""


@dataclass(frozen=True)
class PlannedRow:
    """One row on so many ranks; `swept` is what a sweep has set for it."""

    config: Config
    cluster: Cluster
    found: Rehearsal
    scenario: Scenario
    """A scenario of this row alone."""
    swept: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join([self.config.name, *self.swept])

    @property
    def peak_bytes(self) -> int:
        return self.found.peak_total

    @property
    def reserved_bytes(self) -> int:
        """What the allocator holds at the peak: what is alive and its reserve, for which there may be less room."""
        wished = self.peak_bytes + round(self.cluster.software.reserve * self.peak_bytes)
        return max(min(wished, int(self.cluster.device.memory)), self.peak_bytes)

    @property
    def missing_bytes(self) -> int:
        """What the device has too little of; 0 where the row fits."""
        return max(self.peak_bytes - int(self.cluster.device.memory), 0)

    @property
    def fits(self) -> bool:
        return self.missing_bytes == 0

    @property
    def step_seconds(self) -> float:
        return self.found.clock.now_ns / NS

    @property
    def update_seconds(self) -> float:
        return self.found.clock.computing_ns["update"] / NS

    @property
    def compute_seconds(self) -> float:
        """Forward, loss, backward and recomputation."""
        return sum(self.found.clock.computing_ns.values()) / NS - self.update_seconds

    @property
    def communication_seconds(self) -> float:
        return sum(self.found.clock.communicating_ns.values()) / NS

    @property
    def exposed_seconds(self) -> float:
        """While nothing is computed because something is communicated."""
        return self.found.clock.exposed_ns / NS

    @property
    def between_bytes_per_host(self) -> int:
        """Bytes that leave the first host in a step, by formula."""
        one = dataclasses.replace(self.config.row, train=dataclasses.replace(self.config.row.train, steps=1))
        config, numbers = dataclasses.replace(self.config, row=one), [*map(self.cluster.host, range(one.ranks))]
        first = range(numbers.count(0))
        return sum(each.between_bytes for rank in first for each in due(config, rank, 1, numbers).values())

    @property
    def units_of_data(self) -> int:
        """Tokens of a rank in a step; of an mlp samples."""
        samples = self.config.samples // self.config.ranks
        task = self.config.model.task
        return samples * task.inputs if task.tokens else samples

    @property
    def tokens_per_second(self) -> float:
        """The tokens that one device trains on in a second."""
        return self.units_of_data / self.step_seconds if self.step_seconds else 0.0

    @property
    def mfu(self) -> float:
        model, shape = self.config.model, self.config.row.model
        each = 6 * model.count
        if model.task.tokens:
            each += 12 * MODELS[shape.kind].attention(shape) * model.task.inputs
        return self._utilisation(each * self.units_of_data)

    @property
    def hfu(self) -> float:
        return self._utilisation(sum(self.found.operations.values()))

    def _utilisation(self, operations: int) -> float:
        possible = self.cluster.device.flops * self.step_seconds
        return operations / possible if possible else 0.0

    @property
    def bound(self) -> str:
        """What bounds the row, in a sentence."""
        device = self.cluster.device
        if not self.fits:
            missing, there = self.missing_bytes / 1e9, device.memory / 1e9
            return f"does not fit: {missing:.1f} GB more than the {there:g} GB of a device"
        exposed = self.exposed_seconds / self.step_seconds if self.step_seconds else 0.0
        if exposed > SHARE_THAT_BOUNDS:
            link = self.cluster.slowest(self.config.ranks)
            return f"communication: {exposed:.0%} of a step waits for it, over {link.title}"
        bound, ns = self.found.clock.bound_ns.most_common(1)[0]
        words = {"products": "matrix products", "attention": "attention", "memory": "the bandwidth of memory",
                 "launches": "launches of kernels with little to do",
                 "offload": f"offloading, over {self.cluster.host_memory.title}"}
        return f"{words[bound]}: {ns / self.found.clock.now_ns:.0%} of a step; {exposed:.0%} waits for communication"

    @property
    def trace(self) -> Trace:
        """A traced step of the rank that stands for all, rehearsed again with its memory, which a plan does not keep.

        Of a rank's micro-batches that follow one another it has `MOST_TRACED` at most, the last among them.
        """
        config = self.config
        if config.at_once == 1 < config.block:
            train = dataclasses.replace(
                config.row.train, micro_batches=config.ranks * min(config.block, MOST_TRACED))
            config = dataclasses.replace(config, row=dataclasses.replace(config.row, train=train))
        step = rehearse(config, self.cluster, curve=True).step
        return Trace([ClockOffset(0, "virtual")], [step])

    def document(self) -> dict[str, Any]:
        """In JSON's own types."""
        return {
            "name": self.name,
            "stage": self.config.row.stage,
            "ranks": self.config.ranks,
            "fits": self.fits,
            "memory": {
                **{kind: self.found.peak[kind] for kind in KINDS},
                "peak": self.peak_bytes,
                "device": int(self.cluster.device.memory),
                "resting": {kind: self.found.resting[kind] for kind in KINDS},
            },
            "step_seconds": self.step_seconds,
            "compute_seconds": self.compute_seconds,
            "communication_seconds": self.communication_seconds,
            "exposed_communication_seconds": self.exposed_seconds,
            "update_seconds": self.update_seconds,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "tokens_per_second_per_device": self.tokens_per_second,
            "sent_bytes": self.found.sent(0)["bytes"],
            "between_bytes_per_host": self.between_bytes_per_host,
            "bound": self.bound,
            "swept": dict(each.split("=", 1) for each in self.swept),
            "ignored": self.config.ignored,
        }


class PlanClaim(NamedTuple):
    """What a scenario claims, and in which sentences it is broken: None where what it is about is not planned."""

    words: str
    broken: list[str] | None


PLANNED = ("world", "data", "model", "train", "parallel", "variant", "cluster")
"""The sections of a scenario that say what is planned."""


@dataclass(frozen=True)
class Plan:
    """All rows, and which claims of the scenario they break."""

    scenario: Scenario
    rows: tuple[PlannedRow, ...]
    question: Question | None = None
    advice: str = ""
    """Where no row fits, what would make one fit that lacks least."""

    @property
    def answers(self) -> Answers | None:
        """What each row takes for the tokens that are asked about; None where nothing is asked."""
        question = self.question
        return None if question is None else Answers(question, tuple(Answer(row, question) for row in self.rows))

    @property
    def best(self) -> PlannedRow | None:
        """The row that fits with the most tokens a second on each device."""
        fitting = [row for row in self.rows if row.fits]
        return max(fitting, key=lambda row: row.tokens_per_second, default=None)

    @property
    def judged(self) -> list[PlannedRow]:
        """The rows that the scenario's claims concern: on its own number of ranks, with no key that was swept."""
        return [row for row in self.rows if row.config.ranks == self.scenario.world.ranks and not row.swept]

    @property
    def claims(self) -> list[PlanClaim]:
        """What the scenario's [check] claims of a plan."""
        check = self.scenario.check
        found = [self._claim_of_fit(key, stage) for key in ("fits", "does_not_fit") for stage in getattr(check, key)]
        return [*found, self._claim_of_mfu(*check.mfu)] if check.mfu else found

    def _claim_of_fit(self, key: str, stage: str) -> PlanClaim:
        claimed = key == "fits"
        rows = [row for row in self._rows_of(key) if row.config.row.stage == stage]
        broken = [
            f"{row.name} was claimed {'' if claimed else 'not '}to fit, and {'does' if row.fits else 'does not'}"
            for row in rows if row.fits != claimed
        ]
        return PlanClaim(f"{STAGES[stage].title} {'fits' if claimed else 'does not fit'}", broken if rows else None)

    def _claim_of_mfu(self, low: float, high: float) -> PlanClaim:
        words, rows = f"an MFU of {low:.0%} to {high:.0%}", self._rows_of("mfu")
        fastest = max((row.mfu for row in rows if row.fits), default=0.0)
        broken = [] if low <= fastest <= high else [
            f"{words} was claimed of the fastest row, and it has {fastest:.1%}"]
        return PlanClaim(words, broken if rows else None)

    def _rows_of(self, key: str) -> list[PlannedRow]:
        """What `check.<key>` is about; nothing where an override changes what is planned, and not the claim."""
        origin = self.scenario.origin
        stands = origin.is_override(("check", key)) or not origin.overridden(*PLANNED)
        return self.judged if stands else []

    @property
    def broken(self) -> list[str]:
        """The claims that do not hold, each in a sentence."""
        return [words for claim in self.claims for words in claim.broken or []]

    @property
    def passed(self) -> bool:
        return not self.broken

    def document(self) -> dict[str, Any]:
        """In JSON's own types."""
        return {
            "schema": "zerosim.plan/1",
            "title": self.scenario.title,
            "passed": self.passed,
            "broken": self.broken,
            "not_judged": [claim.words for claim in self.claims if claim.broken is None],
            "best": None if self.best is None else self.best.name,
            "rows": [row.document() for row in self.rows],
            "advice": self.advice,
            "answers": None if self.answers is None else self.answers.document(),
        }


MOST_TRACED = 8

MOST_TOGETHER = 1_000
"""Micro-batches of a rank that are followed one by one: those that go forward and backward together."""

MOST_IN_TURN = 1_000_000
"""Micro-batches of a rank that go one after another: of these, most do what the one before did."""

MOST_TOKENS = 2**25
"""The largest micro-batch; a loss has its numbers in memory, 400 MB for so many."""

TaskOf = Callable[[Scenario], Task]
Swept = tuple[tuple[str, ...], Scenario]
"""What a sweep has set, and the scenario that this makes."""


def plan(scenario: Scenario, swept: Sequence[Swept], ranks: Sequence[int], task_of: TaskOf) -> Plan:
    """Every row of each swept scenario on each number of ranks, or on its own number if none is given.

    A rank's micro-batches stay as many when ranks change, so that the batch of a step grows with them. `task_of` says
    what data ask of a model. Raises `ScenarioError` where numbers do not go together.
    """
    rows = [
        row
        for names, each in (swept or [((), scenario)])
        for count in ranks or [each.world.ranks]
        for row in planned(on_ranks(each, count), names, task_of)
    ]
    return Plan(scenario, tuple(rows), advice="" if any(row.fits for row in rows) else advised(rows, task_of))


def advised(rows: Sequence[PlannedRow], task_of: TaskOf) -> str:
    """What would make a row fit that lacks least."""
    nearest = min(rows, key=lambda row: row.missing_bytes)
    return f"{nearest.name}: {advice(nearest.scenario, lambda each: planned(each, (), task_of)[0].missing_bytes)}"


def planned(scenario: Scenario, swept: tuple[str, ...], task_of: TaskOf) -> list[PlannedRow]:
    """The rows of one scenario."""
    cluster = cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)
    if scenario.parallel.order == "exact":
        raise scenario.origin.error(
            "parallel.order exact adds integers, as many as values ask for, and has no plan; take ring, rank or tree",
            ("parallel", "order"))
    task = task_of(scenario)
    names = scenario.names({key: stage.title for key, stage in STAGES.items()})
    found = []
    for name, row in zip(names, scenario.rows, strict=True):
        with scenario.origin.blaming(("model", "kind")):
            config = configured(dataclasses.replace(row, name=name), task)
        refuse_what_never_ends(config, scenario.origin)
        alone = dataclasses.replace(scenario, variant=(), check=Check(), parallel=dataclasses.replace(
            row.parallel, stages=(row.stage,)))
        found.append(PlannedRow(config, cluster, rehearse(config, cluster), alone, swept))
    return found


def refuse_what_never_ends(config: Config, origin: Origin) -> None:
    """Raises `ScenarioError` for what would be planned for hours, or in more memory than there is."""
    train, task = config.row.train, config.model.task
    one_by_one = config.at_once > 1 or config.row.parallel.order == "tree"
    most = MOST_TOGETHER if one_by_one else MOST_IN_TURN
    if config.block > most:
        raise origin.error(
            f"{config.name}: {config.block:,} micro-batches on a rank, and a plan follows at most {most:,}; set "
            f"train.micro_batches to at most {most * config.ranks:,}", ("train", "micro_batches"))
    if task.tokens and train.micro_batch * task.inputs > MOST_TOKENS:
        raise origin.error(
            f"a micro-batch of {train.micro_batch:,} sequences of {task.inputs:,} tokens; a plan has at most "
            f"{MOST_TOKENS:,} tokens in one: lower train.micro_batch or model.sequence",
            ("train", "micro_batch"), ("model", "sequence"))


def on_ranks(scenario: Scenario, ranks: int) -> Scenario:
    """The scenario on so many ranks, each with as many micro-batches as before."""
    if ranks == scenario.world.ranks:
        return scenario
    each = scenario.train.micro_batches // scenario.world.ranks
    return dataclasses.replace(
        scenario,
        world=dataclasses.replace(scenario.world, ranks=ranks),
        train=dataclasses.replace(scenario.train, micro_batches=each * ranks),
        check=dataclasses.replace(scenario.check, same_bits_on=()),
    )


def task_in_words(scenario: Scenario) -> Task | None:
    """What a scenario's own keys say of its data: all, of a transformer with a vocabulary and a sequence."""
    model = scenario.model
    kind = MODELS[model.kind]
    if not (kind.reads_tokens and model.vocabulary and model.sequence):
        return None
    wrong = kind.problem(model, model.sequence, model.vocabulary)
    if wrong is not None:
        raise scenario.origin.error(f"model.{wrong[0]}: {wrong[1]}", ("model", wrong[0]), ("model", "width"))
    return Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)
