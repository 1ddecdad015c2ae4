"""The rows of a plan: whether each fits, the time of a step, its bottleneck, and the utilisation of the device.

A row is made of its scenario at once, and a step of it is rehearsed for the first of its figures.

    MFU    model FLOPs utilisation: 6 operations for each token (in an mlp, sample) and each parameter that it meets,
           plus 12 · layers · width · sequence per token in a transformer, over the device's peak in the time of a step
    HFU    hardware FLOPs utilisation: the same ratio for all matrix products computed, recomputation included

MFU is defined in Chowdhery et al., "PaLM: scaling language modeling with pathways" (2022), appendix B, and HFU beside
it in Korthikanti et al., "Reducing activation recomputation in large transformer models" (2022).
"""

import dataclasses
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import resources
from math import inf, prod
from typing import Any, NamedTuple

from zerosim.autograd.operation import Shape
from zerosim.collectives.own import SERVING
from zerosim.core.errors import ZerosimError
from zerosim.core.words import common_unit, in_unit, joined
from zerosim.models import MODELS, build
from zerosim.models.units import Model, Task, Unit
from zerosim.observe.ledger import MEMORY_KINDS
from zerosim.observe.trace import ClockOffset, RankStep, Trace
from zerosim.plan.cluster import NS, Cluster, cluster_of
from zerosim.plan.rehearsal import Rehearsal, rehearse, turn_of, with_passes
from zerosim.plan.small import plan_fault
from zerosim.scenario.data import load_dataset
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Check, ModelKeys
from zerosim.training.config import Config, configured
from zerosim.training.experiment import check_model
from zerosim.verdict.traffic import counts_due

SHARE_THAT_BOUNDS = 0.25
"""A row is bound by communication if exposed communication exceeds this share of its step."""

EXPERTS_DIMENSIONS = 3
"""The dimensions of a weight with a matrix for each expert."""

MOST_TRACED = 8
"""The greatest number of consecutive micro-batches per rank in a traced step."""


def parameters_met(model: Model, samples: int, experts_per_token: int = 0) -> int:
    """The parameters that a token (in an mlp, a sample) meets: of experts only those that are chosen for it.

    A weight counts as many elements as its products have multiplications per token, at most all: experts have fewer,
    because each multiplies only the tokens that it was sent. A parameter of no product counts whole. Queues of experts
    may be longer than their tokens: with `experts_per_token`, a weight with a matrix for each expert counts at most
    so many of them.

    >>> from zerosim.models.mlp import mlp
    >>> parameters_met(mlp(6, [5], 3, "relu", "cross_entropy"), samples=4)
    53
    """
    shape: Shape = (samples, model.task.inputs)
    tokens = samples * (model.task.inputs if model.task.tokens else 1)
    begun, products = Counter[Unit](), Counter[tuple[Unit, Any]]()
    for unit in model.forward_units:
        graph = unit.segments[begun[unit] % len(unit.segments)].graph(shape)
        begun[unit] += 1
        shape = graph.output.shape
        names = {parameter.slot: name for name, parameter in graph.parameters.items()}
        for instruction in graph.instructions:
            if (viewed := graph.views.get(instruction.output)) in names:
                names[instruction.output] = names[viewed]
            for name in {names[slot] for slot in instruction.inputs.values() if slot in names}:
                products[unit, name] += graph.multiplications(instruction)
    unmet = []
    for (unit, name), count in (+products).items():
        shape, met = unit.places[name].shape, count // tokens
        of_experts = experts_per_token * prod(shape[1:]) if len(shape) == EXPERTS_DIMENSIONS else 0
        unmet.append(int(prod(shape)) - (min(met, of_experts) if of_experts else met))
    return model.count - sum(max(count, 0) for count in unmet)


@cache
def measured() -> dict[str, list[int]]:
    """For each kind of row: published speeds within 15% of their plans, all of them, and the same of memory.

    `python -m tests.accuracy --write` writes them.
    """
    counts: dict[str, list[int]] = tomllib.loads(
        resources.files("zerosim.plan").joinpath("measured.toml").read_text("utf-8"))
    return counts


def kind_of(scenario: Scenario) -> str:
    """The kind of a row's plan, by which its accuracy is counted."""
    parallel, cluster = scenario.parallel, scenario.cluster
    parts = [cluster.device if isinstance(cluster.device, str) else "a device of its own",
             "mixture" if scenario.model.kind == "mixture" else "dense",
             "with model parallelism" if parallel.directions.places > 1 else "over data ranks alone",
             "8-bit products" if cluster.products != "weights" else "",
             "adapters" if cluster.adapter_rank else "", "offloading" if "host" in (
                 parallel.offload_optimizer, parallel.offload_parameters) or parallel.offload_activations else ""]
    return ", ".join(filter(None, parts))


class Run(NamedTuple):
    """The training of a number of tokens, or samples; `price` is that of a device for an hour, in any currency."""

    tokens: float
    price: float = 0.0

    def of(self, row: "PlannedRow") -> dict[str, float]:
        """Its seconds, device-hours, kilowatt-hours of the devices alone and, with a price, its cost.

        The power is the most that a device takes, so that the energy is at most that.
        """
        hours = self.tokens / (row.tokens_per_second or inf) / 3600
        figures = {"seconds": hours * 3600 / row.config.directions.ranks, "device_hours": hours}
        figures |= {"kilowatt_hours": hours * row.cluster.device.watts / 1000} if row.cluster.device.watts else {}
        return figures | ({"cost": hours * self.price} if self.price else {})


@dataclass(frozen=True, eq=False)
class PlannedRow:
    """One row on one number of ranks, rehearsed for its first figure; `swept` lists the keys that a sweep set."""

    config: Config
    cluster: Cluster
    scenario: Scenario
    """The scenario that has this row."""
    swept: tuple[str, ...] = ()
    layout: str = ""
    """The row in words, if a search found it."""

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """A step of the row. Raises `ScenarioError` if its split model is not the model in one piece."""
        origin = self.scenario.origin
        with origin.blaming(("model", "kind")):
            wrong = plan_fault(self.config)
        if wrong:
            raise origin.error(
                f"the split model of {self.config.name} is not the model in one piece: {wrong}", ("model", "kind"))
        return rehearse(self.config, self.cluster)

    def planned(self) -> "PlannedRow":
        """This row, after its rehearsal. Raises `ScenarioError` as that does."""
        _ = self.rehearsal
        return self

    @property
    def alone(self) -> Scenario:
        """A scenario with this row only."""
        parallel = dataclasses.replace(self.config.parallel, stages=(self.config.stage_key,))
        return dataclasses.replace(self.scenario, variant=(), check=Check(), parallel=parallel)

    @property
    def name(self) -> str:
        return self.layout or ", ".join([self.config.name, *self.swept])

    @property
    def peak_bytes(self) -> int:
        return self.rehearsal.peak_total

    @property
    def reserved_bytes(self) -> int:
        """The memory of the allocator at the peak: live arrays, a reserve, what the software has apart; at most all."""
        software, resting = self.cluster.software, self.rehearsal.resting
        state, weights, bucket = software.apart
        wished = round((1 + software.reserve) * self.peak_bytes + state * resting["optimizer"]
                       + weights * resting["parameters"] + bucket)
        return max(min(wished, int(self.cluster.device.memory)), self.peak_bytes)

    @property
    def missing_bytes(self) -> int:
        """The bytes by which the peak exceeds the device's memory; 0 if the row fits."""
        return max(self.peak_bytes - int(self.cluster.device.memory), 0)

    @property
    def fits(self) -> bool:
        return self.missing_bytes == 0

    @property
    def step_seconds(self) -> float:
        return self.rehearsal.clock.now_ns / NS

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of a step: in all, in `compute` (forward, loss, backward, recomputation), and of `update`; in
        `communication`, and of that `exposed_communication`."""
        clock = self.rehearsal.clock
        update = clock.computing_ns["update"] / NS
        return {"step": self.step_seconds, "compute": sum(clock.computing_ns.values()) / NS - update,
                "communication": sum(clock.communicating_ns.values()) / NS,
                "exposed_communication": clock.exposed_ns / NS, "update": update}

    @property
    def host_bytes(self) -> int:
        """The bytes that a rank needs on the host: the peaks of all kinds together."""
        return sum(self.rehearsal.host_peak.values())

    @property
    def between_bytes_per_host(self) -> int:
        """The bytes that leave the first host per step, by formula: every round of micro-batches sends as much."""
        if self.cluster.hosts(self.config.directions.ranks) == 1:
            return 0
        config = dataclasses.replace(self.config, train=dataclasses.replace(self.config.train, steps=1))
        hosts = [*map(self.cluster.host, range(config.directions.ranks))]

        def between(config: Config) -> int:
            return sum(traffic.between_bytes for rank in range(hosts.count(0))
                       for traffic in counts_due(config, rank, 1, hosts).values())

        rounds = config.passes // turn_of(config)
        if rounds < 3 or config.at_once > 1:
            return between(config)
        one, two = (between(with_passes(config, rounds * turn_of(config))) for rounds in (1, 2))
        return one + (rounds - 1) * (two - one)

    @property
    def data_unit(self) -> str:
        """The unit in which a step's data are counted: tokens, or samples for an mlp."""
        return "tokens" if self.config.model.task.tokens else "samples"

    @property
    def tokens_per_step(self) -> float:
        """The tokens of a rank per step; in an mlp, the samples. Ranks that share a micro-batch have a share each."""
        samples, task = self.config.samples / self.config.directions.ranks, self.config.model.task
        return samples * task.inputs if task.tokens else samples

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second and device."""
        return self.tokens_per_step / self.step_seconds if self.step_seconds else 0.0

    @property
    def mfu(self) -> float:
        model, shape = self.config.in_one_piece, self.config.keys
        per_token = shape.experts_per_token if shape.kind == "mixture" else 0
        per_piece = 6 * parameters_met(model, self.config.train.micro_batch, per_token)
        if model.task.tokens:
            per_piece += 12 * MODELS[shape.kind].attention(shape) * model.task.inputs
        return self._utilisation(per_piece * self.tokens_per_step)

    @property
    def hfu(self) -> float:
        stages = self.rehearsal.stages
        return self._utilisation(sum(stage.operations.total() for stage in stages) / len(stages))

    def _utilisation(self, operations: float) -> float:
        possible = self.cluster.device.flops * self.step_seconds
        return operations / possible if possible else 0.0

    @property
    def bound(self) -> str:
        """The bottleneck of the row, in a sentence."""
        device = self.cluster.device
        if not self.fits:
            missing, there = self.missing_bytes / 1e9, device.memory / 1e9
            return f"does not fit: {missing:.1f} GB more than the {there:g} GB of a device"
        exposed = self.seconds["exposed_communication"] / self.step_seconds if self.step_seconds else 0.0
        if self.rehearsal.bubble > max(exposed, SHARE_THAT_BOUNDS):
            return f"the pipeline: its ranks wait for each other's passes in {self.rehearsal.bubble:.0%} of the step"
        if exposed > SHARE_THAT_BOUNDS:
            link = self.cluster.slowest(self.config.directions.ranks)
            return f"communication: {exposed:.0%} of the step is exposed, over {link.title}"
        bound, ns = self.rehearsal.clock.bound_ns.most_common(1)[0]
        words = {"products": "matrix products", "attention": "attention", "memory": "the bandwidth of memory",
                 "launches": "launch overhead of small kernels",
                 "offload": f"offloading, over {self.cluster.host_memory.title}"}
        share = ns / self.rehearsal.clock.now_ns
        return f"{words[bound]}: {share:.0%} of a step; {exposed:.0%} waits for communication"

    @property
    def error_bar(self) -> str:
        """The measured accuracy of plans of this kind, in a sentence."""
        kind = kind_of(self.alone)
        near, count, memory_near, memory_count = measured().get(kind, [0, 0, 0, 0])
        of = [f"{some} of {all_} published {what} are within 15% of their plans" for some, all_, what in (
            (near, count, "speeds"), (memory_near, memory_count, "peaks of memory")) if all_]
        never = [what for what, all_ in (("speed", count), ("memory", memory_count)) if not all_]
        return f"{kind}: " + ", ".join([*of, *[f"no figure of {' or '.join(never)} of this kind was ever measured"] * (
            len(never) > 0)])

    @property
    def spare(self) -> str:
        """The memory that a fitting row leaves, in words, and what its allocator holds, if that has a reserve."""
        if not self.fits or self.reserved_bytes == self.peak_bytes:
            return ""
        left = (self.cluster.device.memory - self.peak_bytes) / 1e9
        return f"; fits with {left:.1f} GB to spare, and the allocator holds {self.reserved_bytes / 1e9:.1f} GB"

    @property
    def over_directions(self) -> str:
        """The bytes that a rank sends over each of several directions, and the memory of a pipeline's ranks."""
        if not self.config.directions.words:
            return ""
        sent = {name: count for name, count in self.rehearsal.sent_by_direction.items() if count}
        unit = common_unit(max(sent.values(), default=0))
        amounts = [f"{in_unit(count, unit)} {unit.name} over {name} ranks" for name, count in sent.items()]
        words = f"sends {joined(amounts)}"
        if len(self.rehearsal.stages) == 1:
            return words
        peaks = [stage.peak_total for stage in self.rehearsal.stages]
        size = common_unit(max(peaks))
        return f"{words}; memory along the pipeline: {', '.join(in_unit(peak, size) for peak in peaks)} {size.name}"

    @property
    def pricing(self) -> str:
        """The pricing of the collectives that the row names, in a sentence; empty if it names none."""
        named = [algorithm.name for kind in SERVING if (algorithm := self.config.serving(kind)) is not None]
        if not named:
            return ""
        priced = f"{joined(named)} {'is' if len(named) == 1 else 'are'} priced"
        if not self.cluster.pipelined:
            return f"{priced} message by message over the links"
        return (f"{priced} as a pipelined ring, by bytes and messages alone: every algorithm with as many takes the "
                'same time; set cluster.collectives to "written" to tell them apart')

    @property
    def trace(self) -> Trace:
        """A traced step of one rank, planned again with its memory, which a plan does not store.

        If a rank's micro-batches run one after the other, the trace has at most `MOST_TRACED` of them, the last one
        included.
        """
        config = self.config
        if config.at_once == 1 < config.block:
            pipeline = config.directions.pipeline      # an interleaved schedule needs a multiple of its ranks
            config = with_passes(config, min(config.block, max(MOST_TRACED // pipeline, 1) * pipeline))
        step = rehearse(config, self.cluster, traced=True)
        return Trace([ClockOffset(0, "virtual")], [
            RankStep(0, 1, 0, step.clock.now_ns, step.clock.spans, step.curve)])

    def document(self) -> dict[str, Any]:
        """The row as JSON types."""
        return {
            "name": self.name,
            "stage": str(self.config.stage_key),
            "layout": self.config.layout,
            "ranks": self.config.directions.ranks,
            "fits": self.fits,
            "memory": {
                **{kind: self.rehearsal.peak[kind] for kind in MEMORY_KINDS},
                "peak": self.peak_bytes,
                "device": int(self.cluster.device.memory),
                "resting": {kind: self.rehearsal.resting[kind] for kind in MEMORY_KINDS},
                "host": self.host_bytes,
            },
            **{f"{what}_seconds": seconds for what, seconds in self.seconds.items()},
            "mfu": self.mfu,
            "hfu": self.hfu,
            "tokens_per_second_per_device": self.tokens_per_second,
            "sent_bytes": self.rehearsal.sent_bytes,
            "sent_bytes_by_direction": self.rehearsal.sent_by_direction,
            "bubble": self.rehearsal.bubble,
            "pipeline": [
                {"peak": stage.peak_total, "seconds": stage.clock.now_ns / NS, "idle_seconds": stage.clock.idle_ns / NS}
                for stage in self.rehearsal.stages],
            "between_bytes_per_host": self.between_bytes_per_host,
            "bound": self.bound,
            "pricing": self.pricing,
            "measured": self.error_bar,
            "swept": dict(value.split("=", 1) for value in self.swept),
            "ignored": self.config.ignored,
        }


def rows_of(scenario: Scenario, swept: tuple[str, ...] = ()) -> list[PlannedRow]:
    """The rows of one scenario, not yet rehearsed. Raises `ScenarioError` for numbers that do not go together."""
    cluster = cluster_of(scenario.cluster, scenario.origin, scenario.world.ranks)
    if scenario.parallel.order == "exact":
        raise scenario.origin.error(
            "parallel.order exact adds integers whose number depends on values, and cannot be planned; use ring, rank "
            "or tree", ("parallel", "order"))
    task = task_of(scenario)
    check_model(scenario, task)
    rows = []
    for row in scenario.rows:
        with scenario.origin.blaming(("model", "kind")):
            config = configured(row, task, model_of)
        if fault := sharing_fault(config.model, config.train.micro_batch):
            raise scenario.origin.error(
                f"{config.name}: {fault}; change train.micro_batch, model.sequence or the ranks that share them",
                ("train", "micro_batch"), ("model", "sequence"))
        rows.append(PlannedRow(config, cluster, scenario, swept))
    return rows


def task_of(scenario: Scenario) -> Task:
    """The task of the data, which are read only for a model without a vocabulary and a sequence."""
    model = scenario.model
    if MODELS[model.kind].reads_tokens and model.vocabulary and model.sequence:
        return Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)
    dataset = load_dataset(scenario)
    return Task(dataset.inputs, dataset.outputs, dataset.loss, tokens=dataset.kind == "tokens")


@lru_cache(maxsize=64)
def model_of(model: ModelKeys, task: Task, layers: tuple[tuple[int, ...], ...]) -> Model:
    """The model of a row, which rows with the same piece of it share."""
    return build(model, task, layers)


@lru_cache(maxsize=4096)
def sharing_fault(model: Model, samples: int) -> str:
    """The reason for which the model cannot cut a micro-batch into a piece for each rank; empty if it can."""
    shape: tuple[int, ...] = (samples, model.task.inputs)
    try:
        for _, segment in model.segments:
            shape = segment.graph(shape).output.shape
    except ZerosimError as error:
        return str(error)
    return ""


def on_ranks(scenario: Scenario, ranks: int) -> Scenario:
    """The scenario on `ranks` ranks, with the same number of micro-batches per rank."""
    if ranks == scenario.world.ranks:
        return scenario
    micro_batches = scenario.train.micro_batches * ranks // scenario.world.ranks
    return dataclasses.replace(
        scenario,
        world=dataclasses.replace(scenario.world, ranks=ranks),
        train=dataclasses.replace(scenario.train, micro_batches=micro_batches),
        check=dataclasses.replace(scenario.check, same_bits_on=()),
    )


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the document with nested dicts flattened.

    >>> flat({"name": "DDP", "memory": {"peak": 3, "resting": {"parameters": 1}}, "mfu": 0.5})
    {'name': 'DDP', 'peak_bytes': 3, 'resting_parameters_bytes': 1, 'mfu': 0.5}
    """
    flattened: dict[str, Any] = {}
    for key, value in row.items():
        if key == "memory":
            resting = {f"resting_{kind}": count for kind, count in value["resting"].items()}
            flattened |= {f"{kind}_bytes": count for kind, count in (value | resting).items() if kind != "resting"}
        elif isinstance(value, list):
            flattened |= {f"{key}_{name}": "; ".join(str(item[name]) for item in value) for name in value[0]}
        elif isinstance(value, dict):
            flattened[key] = "; ".join(f"{name}: {item}" for name, item in value.items())
        else:
            flattened[key] = value
    return flattened
