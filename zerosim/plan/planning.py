"""A plan: for each row of a scenario, on so many ranks, whether it fits, how long a step takes, and what bounds it.

    MFU    model FLOPs utilisation: 6 operations for each parameter and token (of an mlp, sample) and, in a transformer,
           12 · layers · width · sequence for each token, over what the device could do in the time of a step
    HFU    hardware FLOPs utilisation: the same of all matrix products that are computed, recomputation included

MFU is defined in Chowdhery et al., "PaLM: scaling language modeling with pathways" (2022), appendix B, and HFU beside
it in Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zerosim.instruments.memory import KINDS
from zerosim.instruments.trace import Clock, Trace
from zerosim.models import transformer
from zerosim.models.units import Task
from zerosim.plan.cluster import NS, Cluster, cluster_of
from zerosim.plan.rehearsal import Rehearsal, rehearse
from zerosim.scenario.origin import Origin
from zerosim.scenario.schema import Scenario
from zerosim.stages import STAGES
from zerosim.training.config import Config, configured

SHARE_THAT_BOUNDS = 0.25
"""Of a step: who waits that long for communication is bound by it."""


@dataclass(frozen=True)
class PlannedRow:
    """One row on so many ranks; `swept` is what a sweep has set for it."""

    config: Config
    cluster: Cluster
    found: Rehearsal
    swept: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ", ".join([self.config.name, *self.swept])

    @property
    def peak_bytes(self) -> int:
        return self.found.peak_total

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
    def units_of_data(self) -> int:
        """Tokens of a rank in a step; of an mlp samples."""
        samples = self.config.samples // self.config.ranks
        task = self.config.model.task
        return samples * task.inputs if task.tokens else samples

    @property
    def tokens_per_second(self) -> float:
        """Of one device."""
        return self.units_of_data / self.step_seconds if self.step_seconds else 0.0

    @property
    def mfu(self) -> float:
        model, shape = self.config.model, self.config.row.model
        each = 6 * model.count
        if model.task.tokens:
            each += 12 * shape.layers * shape.width * model.task.inputs
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
                 "offload": f"offloading, over {self.cluster.host_memory.title}"}
        return f"{words[bound]}: {ns / self.found.clock.now_ns:.0%} of a step; {exposed:.0%} waits for communication"

    @property
    def trace(self) -> Trace:
        """Of the rank that stands for all, rehearsed once more with its memory, which a plan does not keep.

        Of micro-batches that are reduced by themselves it has the first three.
        """
        step = rehearse(self.config, self.cluster, curve=True).step
        return Trace([Clock(0, "virtual")], [step])

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
            "bound": self.bound,
        }


@dataclass(frozen=True)
class Plan:
    """All rows, and which claims of the scenario they break."""

    scenario: Scenario
    rows: tuple[PlannedRow, ...]

    @property
    def best(self) -> PlannedRow | None:
        """The row that fits with the most tokens a second on each device."""
        fitting = [row for row in self.rows if row.fits]
        return max(fitting, key=lambda row: row.tokens_per_second, default=None)

    @property
    def judged(self) -> list[PlannedRow]:
        """Those that the scenario's claims are of: on its own number of ranks, with no key that was swept."""
        return [row for row in self.rows if row.config.ranks == self.scenario.world.ranks and not row.swept]

    @property
    def broken(self) -> list[str]:
        """The claims that do not hold, each in a sentence."""
        check, own = self.scenario.check, self.judged
        broken = [
            f"{row.name} was claimed {'not ' if claimed else ''}to fit, and {'does' if row.fits else 'does not'}"
            for row in own for claimed, stages in ((False, check.fits), (True, check.does_not_fit))
            if row.config.row.stage in stages and row.fits == claimed
        ]
        fastest = max((row.mfu for row in own if row.fits), default=0.0)
        if check.mfu and own and not check.mfu[0] <= fastest <= check.mfu[1]:
            low, high = check.mfu
            broken.append(f"an MFU of {low:.0%} to {high:.0%} was claimed of the fastest row, and it has {fastest:.1%}")
        return broken

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
            "best": None if self.best is None else self.best.name,
            "rows": [row.document() for row in self.rows],
        }


MOST_TOGETHER = 1_000
"""Micro-batches of a rank that go forward and backward together: each is followed by itself."""

MOST_TOKENS = 2**25
"""Of a micro-batch; a loss has their numbers in memory, 400 MB for so many."""

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
    return Plan(scenario, tuple(rows))


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
        config = configured(dataclasses.replace(row, name=name), task)
        refuse_what_never_ends(config, scenario.origin)
        found.append(PlannedRow(config, cluster, rehearse(config, cluster), swept))
    return found


def refuse_what_never_ends(config: Config, origin: Origin) -> None:
    """Raises `ScenarioError` for what would be planned for hours, or in more memory than there is."""
    train, task = config.row.train, config.model.task
    if config.at_once > MOST_TOGETHER:
        raise origin.error(
            f"{config.name}: {config.at_once:,} micro-batches of a rank go together, and a plan follows at most "
            f"{MOST_TOGETHER:,}; set train.micro_batches to at most {MOST_TOGETHER * config.ranks:,}",
            ("train", "micro_batches"))
    if task.tokens and train.micro_batch * task.inputs > MOST_TOKENS:
        raise origin.error(
            f"a micro-batch of {train.micro_batch:,} sequences of {task.inputs:,} tokens; a plan has at most "
            f"{MOST_TOKENS:,} tokens in one: lower train.micro_batch or model.sequence",
            ("train", "micro_batch"), ("model", "sequence"))


def on_ranks(scenario: Scenario, ranks: int) -> Scenario:
    """The same scenario on so many ranks, each with as many micro-batches."""
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
    if model.kind != "transformer" or not (model.vocabulary and model.sequence):
        return None
    wrong = transformer.problem(transformer.shape_of(model, model.sequence, model.vocabulary))
    if wrong is not None:
        raise scenario.origin.error(f"model.{wrong[0]}: {wrong[1]}", ("model", wrong[0]), ("model", "width"))
    return Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)
