"""What a scenario says: every key, its default, and beside each what is allowed."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerosim.errors import ScenarioError
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.fault import Fault
from zerosim.scenario.origin import Origin
from zerosim.scenario.row import Claims, Row
from zerosim.scenario.rules import (
    choice,
    choices,
    groups,
    integer,
    integers,
    maybe,
    maybe_choice,
    maybe_groups,
    maybe_switch_or_integers,
    name_or,
    number,
    number_or_word,
    numbers,
    optional,
    pair,
    rules,
    section,
    sections,
    shortened,
    subset,
    switch,
    switch_or_integers,
    text,
    word_or_number,
)

STAGE_KEYS = ("ddp", "zero1", "zero2", "zero3")
ACCUMULATIONS = ("boundary", "micro_batch")
DTYPES = ("weights", "fp32")
REDUCTIONS = ("reduce_scatter", "all_reduce")
PUBLICATIONS = ("weights", "updates", "broadcasts")
COLLECTIVE_COSTS = ("pipelined", "written")
KERNELS = ("written", "fused")
PRODUCTS = ("weights", "fp8")
MOST_RANKS = 2**20
MEGABYTE = 10**6
OFFLOAD_FOLDER = ("parallel", "offload_folder")
WIDEST_BYTES = 8
"""Of what travels for one element: an integer of an order-free sum, a number of float64, or a norm."""
LARGEST_SIZE = 10**6
"""Of a model's dimensions: their products still count bytes in 64 bits, so that what does not fit is said to be so."""
WEIGHT_DECAY = {"sgd": 0.0, "momentum": 0.0, "adam": 0.0, "adamw": 0.01}
BY_OPTIMIZER: Any = None
ROW_BY_ROW = ("volumes", "messages", "largest_messages", "activations", "beyond_peak", "beyond_peak_laid_out")
"""The keys of [check] that give a number for each row."""


@dataclass(frozen=True)
class World:
    ranks: int = integer(4, at_least=1, at_most=MOST_RANKS)
    memory_limit_mb: int = integer(0, at_least=0)
    """How much memory each rank's process may take for training; 0 is no limit. For the MPI world."""
    timeout_seconds: float = number(60.0, at_least=0.1, below=1e6)
    """How long a rank waits for a message before it ends the run. In the MPI world: the local one knows when nobody can
    go on."""


@dataclass(frozen=True)
class Data:
    source: str = text("digits")


@dataclass(frozen=True)
class Model:
    kind: str = choice("mlp", ("mlp", "transformer"))
    hidden: tuple[int, ...] = integers((64, 64), at_least=1, at_most=LARGEST_SIZE)
    """Widths of an mlp's layers but the last; the keys from `architecture` to `dropout` are a transformer's."""
    activation: str = choice("relu", ("relu", "tanh", "gelu"))
    architecture: str = choice("gpt2", ("gpt2", "llama"))
    layers: int = integer(2, at_least=1, at_most=1000)
    """Blocks; layer 0 is the embedding, layer `layers` + 1 the head."""
    width: int = integer(64, at_least=1, at_most=LARGEST_SIZE)
    heads: int = integer(4, at_least=1, at_most=10_000)
    key_value_heads: int = integer(0, at_least=0)
    """0: as many as `heads`."""
    inner: int = integer(0, at_least=0, at_most=LARGEST_SIZE)
    """Width within a block's perceptron; 0: 4 · width, or for llama 8/3 · width."""
    vocabulary: int = integer(0, at_least=0, at_most=LARGEST_SIZE)
    """0: as many tokens as the data have."""
    sequence: int = integer(0, at_least=0, at_most=LARGEST_SIZE)
    """Tokens of each sample; 0: 64 of a text, 15 of a task (8 digits)."""
    tied_embeddings: bool = switch(False)
    dropout: float = number(0.0, at_least=0, below=1)
    frozen: tuple[int, ...] = integers((), at_least=0)
    """Numbers of layers whose weights stay as they are."""
    weights: str = text("")
    """The safetensors file that the first weights are in; without one they are drawn."""

    @property
    def layer_count(self) -> int:
        return self.layers + 2 if self.kind == "transformer" else len(self.hidden) + 1

    @property
    def layer_units(self) -> tuple[tuple[int, ...], ...]:
        """A unit for each layer; tied embeddings share one."""
        last = self.layer_count - 1
        if self.kind == "transformer" and self.tied_embeddings:
            return ((0, last), *((layer,) for layer in range(1, last)))
        return tuple((layer,) for layer in range(self.layer_count))


@dataclass(frozen=True)
class Train:
    """How to train; the defaults of the optimizers are PyTorch's."""

    steps: int = integer(20, at_least=0)
    micro_batch: int = integer(16, at_least=1, at_most=10**7)
    micro_batches: int = integer(4, at_least=1, at_most=10**8)
    optimizer: str = choice("adam", tuple(WEIGHT_DECAY))
    learning_rate: float = number(1e-3, at_least=0)
    betas: tuple[float, float] = pair((0.9, 0.999), at_least=0, below=1)
    epsilon: float = number(1e-8, at_least=0)
    momentum: float = number(0.9, at_least=0)
    weight_decay: float = number(BY_OPTIMIZER, at_least=0)
    decay_biases: bool = switch(True)
    schedule: str = choice("constant", ("constant", "cosine"))
    warmup_steps: int = integer(0, at_least=0)
    clip_norm: float = number(0.0, at_least=0)
    precision: str = choice("fp32", ("fp64", "fp32", "fp16", "bf16"))
    loss_scale: float | str = word_or_number("dynamic", at_least=1e-38, below=1e38)
    """Beyond these, it or what undoes it is 0 or infinite in float32."""
    seed: int = integer(0, at_least=0)

    def __post_init__(self) -> None:
        if self.weight_decay is BY_OPTIMIZER:
            object.__setattr__(self, "weight_decay", WEIGHT_DECAY[self.optimizer])


@dataclass(frozen=True)
class Parallel:
    stages: tuple[str, ...] = choices(STAGE_KEYS, STAGE_KEYS)
    order: str = choice("ring", ("ring", "rank", "tree", "exact"))
    units: str | tuple[tuple[int, ...], ...] = groups()
    accumulation: str = choice("boundary", ACCUMULATIONS)
    accumulate_dtype: str = choice("weights", DTYPES)
    reduce_dtype: str = choice("weights", DTYPES)
    gradients: str = choice("reduce_scatter", REDUCTIONS)
    publish: str = choice("weights", PUBLICATIONS)
    reshard_after_forward: bool = switch(True)
    prefetch: bool = switch(False)
    overlap: bool = switch(False)
    recompute: bool | tuple[int, ...] = switch_or_integers(False)
    """Whether units keep their input alone and are run again before backward; or the layers whose units do."""
    offload_activations: bool = switch(False)
    """Whether these inputs are kept in a file, and read ahead for backward."""
    offload_folder: str = text("")
    """Of these files; empty: where the system has its temporary ones."""
    bucket_mb: float = number(0.0, at_least=0)
    """The most that a collective works on at a time; 0: a unit as a whole."""

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * MEGABYTE)


@dataclass(frozen=True)
class Variant:
    """A row of its own in the comparison: a stage, with some keys of [parallel] set otherwise."""

    name: str = text("")
    stage: str = choice("zero3", STAGE_KEYS)
    units: str | tuple[tuple[int, ...], ...] | None = maybe_groups()
    accumulation: str | None = maybe_choice(ACCUMULATIONS)
    accumulate_dtype: str | None = maybe_choice(DTYPES)
    reduce_dtype: str | None = maybe_choice(DTYPES)
    gradients: str | None = maybe_choice(REDUCTIONS)
    publish: str | None = maybe_choice(PUBLICATIONS)
    reshard_after_forward: bool | None = maybe()
    prefetch: bool | None = maybe()
    overlap: bool | None = maybe()
    recompute: bool | tuple[int, ...] | None = maybe_switch_or_integers()
    offload_activations: bool | None = maybe()
    bucket_mb: float | None = number(None, at_least=0)

    @property
    def said(self) -> dict[str, Any]:
        """The keys of [parallel] that it sets."""
        keys = [each.name for each in dataclasses.fields(self) if each.name not in ("name", "stage")]
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}

    def applied(self, parallel: Parallel) -> Parallel:
        """`parallel` with this variant's stage alone, and its keys."""
        return dataclasses.replace(parallel, stages=(self.stage,), **self.said)

    def named(self, titles: Mapping[str, str]) -> str:
        """Its name or, without one, its stage and what it sets.

        >>> Variant(stage="zero3", prefetch=True, units=((0, 1),)).named({"zero3": "Stage III"})
        'Stage III, units = [[0, 1]], prefetch = true'
        """
        said = [f"{key} = {value if isinstance(value, str) else json.dumps(value)}" for key, value in self.said.items()]
        return self.name or ", ".join([titles.get(self.stage, self.stage), *said])


@dataclass(frozen=True)
class Functions:
    """Numbers a second that calls of a function go through; 0: as many as memory's bandwidth lets pass."""

    exp: float = number(0.0, at_least=0)
    tanh: float = number(0.0, at_least=0)
    max: float = number(0.0, at_least=0)
    """As `sum` and `mean`, of the numbers of each row."""
    sum: float = number(0.0, at_least=0)
    mean: float = number(0.0, at_least=0)
    take: float = number(0.0, at_least=0)
    scatter: float = number(0.0, at_least=0)
    copyto: float = number(0.0, at_least=0)
    """Of arrays that no cache holds."""
    update: float = number(0.0, at_least=0)
    """Bytes of weights, gradients and state that an optimizer reads and writes."""


@dataclass(frozen=True)
class Device:
    """What a rank computes with, where its name is in no table."""

    flops: float = number(0.0, at_least=1)
    """Floating-point operations a second in the precision of the weights: what is reached, by large products."""
    memory_bandwidth: float = number(0.0, at_least=1)
    """Bytes a second, as above."""
    memory: float = number(0.0, at_least=1)
    """Bytes."""
    launch_us: float = optional(number(0.0, at_least=0))
    """Of each operation, beyond its work; where `bandwidths` are given, of each call in its text."""
    half_width: float = optional(number(0.0, at_least=0))
    """The narrower side at which a product reaches half of `flops`."""
    working_sets: tuple[float, ...] = optional(numbers())
    """Bytes that a call works on, ascending, and the `bandwidths` that it then has: such a device is charged call by
    call, as the text of an operation has them."""
    bandwidths: tuple[float, ...] = optional(numbers())
    functions: Functions = optional(section(Functions))


@dataclass(frozen=True)
class Link:
    latency_us: float = number(0.0, at_least=0)
    gigabytes_per_second: float = number(0.0, at_least=1e-6)
    """Each way, of 10⁹ bytes: of a device inside its host, of all network cards of a host between hosts."""


@dataclass(frozen=True)
class Cluster:
    """The machine that a plan is for."""

    device: str | Device = name_or(Device, "h100_80gb")
    devices_per_host: int = integer(8, at_least=1, at_most=1024)
    inside: str | Link = name_or(Link, "")
    """The link of a device to the others of its host; without a name, the device's usual one."""
    between: str | Link = name_or(Link, "")
    """The links of a host to other hosts; without a name, the device's usual ones."""
    host_memory: str | Link = name_or(Link, "")
    """The link of a device to its host's memory; without a name, the device's usual one."""
    collectives: str = choice("pipelined", COLLECTIVE_COSTS)
    """What one costs: as libraries pipeline it, or message by message as its text is written."""
    kernels: str = choice("written", KERNELS)
    """What operations have in memory: all that their text does, or what fused ones leave there."""
    products: str = choice("weights", PRODUCTS)
    """In what precision weights are multiplied: their own, or 8 bits, to which both operands are cast each time."""


@dataclass(frozen=True)
class Check:
    """What a run must show to pass, beside the formula for its traffic."""

    reference: bool = switch(True)
    checksums: bool = switch(False)
    """Whether each message of a row brings its checksum and its number, which its receiver looks at."""
    test_accuracy: float = number(0.0, at_least=0, below=1)
    """Of a task's sequences, the share without a mistake."""
    test_loss: float | str = number_or_word(0.0, "bigram", at_least=0)
    """What a text's test loss must be below, in nats a token, or whose, which the data then say. 0: no claim."""
    same_bits_on: tuple[int, ...] = integers((), at_least=1)
    """Other numbers of ranks, to train on as well: the weights must come out the same."""
    does_not_fit: tuple[str, ...] = subset(STAGE_KEYS)
    """The stages that must fail under the memory limit; of a plan, on the device."""
    fits: tuple[str, ...] = subset(STAGE_KEYS)
    """The stages that must fit on a plan's device."""
    mfu: tuple[float, ...] = numbers()
    """The least and the most that the model FLOPs utilisation of a plan's fastest row that fits may be."""
    same_weights: bool | None = maybe()
    """Whether all rows must end with the same weights, or must not."""
    volumes: tuple[float, ...] = numbers()
    """What each row must send in a step, in units of P (N − 1)/N."""
    messages: tuple[int, ...] = integers((), at_least=0)
    """How many messages each row must send in a step: those of the rank that sends the most."""
    largest_messages: tuple[int, ...] = integers((), at_least=0)
    """How many bytes the largest message of each row must have."""
    activations: tuple[int, ...] = integers((), at_least=0)
    """How many bytes of activations a rank of each row must hold at the peak: the rank that holds the most."""
    fragmentation: bool = switch(False)
    """Whether to find out what allocators with a fixed address space would need for the last step."""
    beyond_peak: tuple[int, ...] = integers((), at_least=0)
    """How many bytes beyond the peak each row must need by first fit."""
    beyond_peak_laid_out: tuple[int, ...] = integers((), at_least=0)
    """And with what is long-lived laid out in one block beforehand."""

    def of_row(self, number: int) -> dict[str, Any]:
        """The claims that have one value for each row, as those of row `number`."""
        names = {"volumes": "volume", "largest_messages": "largest_message"}
        return {names.get(key, key): getattr(self, key)[number] for key in ROW_BY_ROW if getattr(self, key)}


@dataclass(frozen=True)
class Checkpoint:
    """Where training states are saved while rows train; nowhere without a folder."""

    folder: str = text("")
    every: int = integer(1, at_least=1)
    """How many steps lie between two; the last step is always saved."""
    keep: int = integer(2, at_least=1)
    """How many of each row stay."""


@dataclass(frozen=True)
class Scenario:
    """A whole scenario; `origin` says where its keys were written and is no part of what it says.

    >>> Scenario(train=Train(optimizer="adamw")).train.weight_decay
    0.01

    Raises `ScenarioError` where two keys do not agree.
    """

    kind: str = choice("training", ("training",))
    title: str = text("")
    caption: str = text("")
    world: World = section(World)
    data: Data = section(Data)
    model: Model = section(Model)
    train: Train = section(Train)
    parallel: Parallel = section(Parallel)
    cluster: Cluster = section(Cluster)
    variant: tuple[Variant, ...] = sections(Variant)
    check: Check = section(Check)
    checkpoint: Checkpoint = section(Checkpoint)
    fault: tuple[Fault, ...] = sections(Fault)
    origin: Origin = field(default=Origin(), repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_blocks()
        self._check_other_ranks()
        self._check_tree()
        for parallel in (self.parallel, *(variant.applied(self.parallel) for variant in self.variant)):
            self._check_parts(parallel)
            self._check_layers(parallel)
            self._check_buckets(parallel)
            self._check_offloading(parallel)
        self._check_rows()
        self._check_faults()

    def _check_faults(self) -> None:
        for index, fault in enumerate(self.fault):
            if fault.step > self.train.steps:
                raise self._no_fault(index, "step", f"step is {fault.step}, and the last step is {self.train.steps}; "
                                                    "name one that there is")
            if fault.problem is not None:
                raise self._no_fault(index, *fault.problem)

    def _no_fault(self, index: int, key: str, why: str) -> ScenarioError:
        at = ("fault", index)
        return self.origin.error(f"fault[{index}].{why}", (*at, key), (*at, "kind"), at)

    def faults_after(self, restarts: int) -> list[Fault]:
        """The faults of a run that was begun anew so often; raises `ScenarioError` where it has not their ranks."""
        due = [(index, fault) for index, fault in enumerate(self.fault) if fault.after_restarts == restarts]
        last = self.world.ranks - 1
        for index, fault in due:
            if fault.rank > last:
                raise self._no_fault(
                    index, "rank", f"rank is {fault.rank}, and the last rank is {last}; name one that there is")
        return [fault for _, fault in due]

    def _check_blocks(self) -> None:
        ranks, micro_batches = self.world.ranks, self.train.micro_batches
        if micro_batches % ranks:
            below = micro_batches // ranks * ranks
            nearest = f"{below} or {below + ranks}" if below else f"{ranks}"
            raise self.origin.error(
                f"train.micro_batches must be a multiple of world.ranks = {ranks}, found {micro_batches}; "
                f"set it to {nearest}, or world.ranks to a divisor of {micro_batches}",
                ("train", "micro_batches"), ("world", "ranks"),
            )

    def _check_other_ranks(self) -> None:
        for index, ranks in enumerate(self.check.same_bits_on):
            at = ("check", "same_bits_on", index)
            if self.train.micro_batches % ranks:
                raise self.origin.error(
                    f"check.same_bits_on names {ranks} ranks, over which {self.train.micro_batches} micro-batches "
                    "do not divide; name divisors of train.micro_batches", at,
                )
            if ranks > self.world.ranks:
                raise self.origin.error(
                    f"check.same_bits_on names {ranks} ranks, world.ranks has {self.world.ranks}; "
                    "let world.ranks be the largest", at,
                )

    def _check_tree(self) -> None:
        numbers = [self.world.ranks, self.train.micro_batches, *self.check.same_bits_on]
        if self.parallel.order == "tree" and any(number.bit_count() != 1 for number in numbers):
            raise self.origin.error(
                "parallel.order tree needs powers of two for world.ranks and train.micro_batches, "
                f"found {self.world.ranks} and {self.train.micro_batches}; set them so, or parallel.order to exact",
                ("parallel", "order"), ("world", "ranks"), ("train", "micro_batches"),
            )

    def _check_rows(self) -> None:
        rows = self.names({})
        for key, given in ((key, getattr(self.check, key)) for key in ROW_BY_ROW):
            if len(given) not in (0, len(rows)):
                raise self.origin.error(
                    f"check.{key} has {len(given)} numbers for {len(rows)} rows; give one for each: {'; '.join(rows)}",
                    ("check", key),
                )
        stages = [variant.stage for variant in self.variant] or self.parallel.stages
        for index, stage in enumerate(self.check.does_not_fit):
            if stage not in stages:
                raise self.origin.error(
                    f"check.does_not_fit names {stage}, by which no row trains; rows are {'; '.join(rows)}",
                    ("check", "does_not_fit", index),
                )

    def _check_parts(self, parallel: Parallel) -> None:
        if parallel.accumulation == "micro_batch" and parallel.order not in ("ring", "rank"):
            raise self.origin.error(
                f"parallel.accumulation micro_batch adds ranks before micro-batches, which order {parallel.order} "
                "cannot; set parallel.order to ring or rank, or accumulation to boundary",
                ("parallel", "accumulation"), ("parallel", "order"),
            )
        if parallel.prefetch and not parallel.reshard_after_forward:
            raise self.origin.error(
                "parallel.prefetch gathers weights ahead of each use, reshard_after_forward = false only once; "
                "choose one of them", ("parallel", "prefetch"), ("parallel", "reshard_after_forward"),
            )
        if self.train.precision == "fp64":
            for key in ("accumulate_dtype", "reduce_dtype"):
                if getattr(parallel, key) == "fp32":
                    raise self.origin.error(
                        f"parallel.{key} fp32 has fewer bits than the gradients of train.precision fp64; "
                        "leave it at weights", ("parallel", key), ("train", "precision"),
                    )
        if self.train.warmup_steps > self.train.steps:
            raise self.origin.error(
                f"train.warmup_steps must be at most train.steps = {self.train.steps}, found {self.train.warmup_steps}",
                ("train", "warmup_steps"), ("train", "steps"),
            )

    def _check_buckets(self, parallel: Parallel) -> None:
        least = self.world.ranks * WIDEST_BYTES
        if parallel.bucket_mb and parallel.bucket_bytes < least:
            raise self.origin.error(
                f"parallel.bucket_mb must be 0, or hold an element for each of {self.world.ranks} ranks, "
                f"{least} bytes = {least / MEGABYTE:g}, found {parallel.bucket_mb:g}",
                ("parallel", "bucket_mb"), ("world", "ranks"),
            )

    def _check_offloading(self, parallel: Parallel) -> None:
        if parallel.offload_activations and not parallel.recompute:
            raise self.origin.error(
                "parallel.offload_activations is for the inputs of units that are run again; set parallel.recompute to "
                "true or to layers as well, or leave it out",
                ("parallel", "offload_activations"), ("parallel", "recompute"),
            )
        if "\0" in parallel.offload_folder:
            raise self.origin.error("parallel.offload_folder: a path has no NUL byte in it", OFFLOAD_FOLDER)

    def _check_layers(self, parallel: Parallel) -> None:
        layers = self.model.layer_count
        for index, layer in enumerate(self.model.frozen):
            if layer >= layers:
                raise self.origin.error(
                    f"model.frozen names layer {layer}; there are layers 0 to {layers - 1}", ("model", "frozen", index)
                )
        if isinstance(parallel.recompute, tuple):
            for index, layer in enumerate(parallel.recompute):
                if layer >= layers:
                    raise self.origin.error(
                        f"parallel.recompute names layer {layer}; there are layers 0 to {layers - 1}",
                        ("parallel", "recompute", index), ("parallel", "recompute"),
                    )
        if isinstance(parallel.units, tuple):
            self._check_units(parallel.units, layers)

    def _check_units(self, units: tuple[tuple[int, ...], ...], layers: int) -> None:
        named = [layer for unit in units for layer in unit]
        tied = self.model.kind == "transformer" and self.model.tied_embeddings
        expected = sorted(named) if tied else named
        if expected != list(range(layers)):
            raise self.origin.error(
                f"parallel.units must name layers 0 to {layers - 1}, each once{'' if tied else ' and in order'}, "
                f"found {shortened(str(named))}",
                ("parallel", "units"),
            )
        if tied and not any({0, layers - 1} <= set(unit) for unit in units):
            raise self.origin.error(
                f"model.tied_embeddings: layers 0 and {layers - 1} share their weights, so parallel.units must name "
                "them in one unit; or untie them", ("parallel", "units"), ("model", "tied_embeddings"),
            )

    @property
    def rows(self) -> "list[Row]":
        """What is trained one after the other: each variant or, without any, each stage.

        >>> [(row.stage, row.claims.volume) for row in Scenario(
        ...     parallel=Parallel(stages=("ddp", "zero3")), check=Check(volumes=(2, 3))).rows]
        [('ddp', 2), ('zero3', 3)]
        """
        named = [(variant.name, variant.applied(self.parallel)) for variant in self.variant]
        alone = [("", dataclasses.replace(self.parallel, stages=(stage,))) for stage in self.parallel.stages]
        return [self._row(number, name, parallel) for number, (name, parallel) in enumerate(named or alone)]

    def names(self, titles: Mapping[str, str]) -> list[str]:
        """What each row is called, with `titles` for stages: no two rows alike.

        >>> Scenario(variant=(Variant("a"), Variant("a"), Variant(stage="ddp"))).names({"ddp": "DDP"})
        ['a', 'a (2)', 'DDP']
        """
        found: dict[str, None] = {}
        numbers: dict[str, int] = {}
        given = [variant.named(titles) for variant in self.variant]
        for name in given or [titles.get(stage, stage) for stage in self.parallel.stages]:
            another = name
            while another in found:
                numbers[name] = numbers.get(name, 1) + 1
                another = f"{name} ({numbers[name]})"
            found[another] = None
        return list(found)

    def _row(self, number: int, name: str, parallel: Parallel) -> Row:
        (stage,) = parallel.stages
        if parallel.offload_folder:
            folder = self.origin.folder(OFFLOAD_FOLDER) / parallel.offload_folder
            parallel = dataclasses.replace(parallel, offload_folder=str(folder))
        claims = Claims(
            **self.check.of_row(number),
            fragmentation=bool(self.check.fragmentation or self.check.beyond_peak or self.check.beyond_peak_laid_out),
            does_not_fit=stage in self.check.does_not_fit,
            test_accuracy=self.check.test_accuracy,
            test_loss=self.check.test_loss if isinstance(self.check.test_loss, float) else 0.0,
            reference=self.check.reference,
        )
        return Row(
            name, stage, self.world.ranks, self.world.memory_limit_mb, self.model, self.train, parallel,
            self._layers(parallel), claims,
        )

    def _layers(self, parallel: Parallel) -> tuple[tuple[int, ...], ...]:
        """The layers of each unit; raises `ScenarioError` where a unit would be frozen in part."""
        layers = tuple(range(self.model.layer_count))
        found: tuple[tuple[int, ...], ...]
        match parallel.units:
            case "layer":
                found = self.model.layer_units
            case "model":
                found = (layers,)
            case units:
                found = tuple(unit for unit in units if not isinstance(unit, str))
        frozen = set(self.model.frozen)
        for unit in found:
            if 0 < len(frozen & set(unit)) < len(unit):
                raise self.origin.error(
                    f"the unit of layers {list(unit)} is frozen in part; freeze all of it or none, or change "
                    "parallel.units", ("model", "frozen"), ("parallel", "units"),
                )
        return found


def resolved(scenario: "Scenario | CollectiveScenario") -> dict[str, Any]:
    """Every key with its value, defaults filled in, in JSON's own types.

    >>> resolved(Scenario())["data"]
    {'source': 'digits'}
    """
    return {name: plain(getattr(scenario, name)) for name in rules(type(scenario))}


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value
