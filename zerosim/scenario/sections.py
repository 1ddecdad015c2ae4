"""The sections of a scenario: every key, its default, and the allowed values. Their meanings are in `docs/scenario.md`.

`train.momentum` is 0.9 by default. PyTorch's SGD has 0, which for an optimizer named `momentum` would silently be
plain SGD.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.selection import SELECTIONS
from zerosim.collectives.own import SERVING, as_collective
from zerosim.models import MODELS
from zerosim.models.own import as_model
from zerosim.models.transformer import PARTS
from zerosim.numerics.orders import ORDERS
from zerosim.numerics.own import as_wire
from zerosim.numerics.precisions import PRECISIONS
from zerosim.numerics.wires import FORMATS
from zerosim.optim.optimizers import OPTIMIZERS
from zerosim.optim.own import as_optimizer
from zerosim.parts import Table
from zerosim.parts.signature import as_source
from zerosim.scenario.fault import Fault
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.origin import Origin
from zerosim.scenario.rules import (
    ArrayOr,
    ArrayRule,
    Choice,
    Either,
    Integer,
    Number,
    PartOf,
    Rule,
    Section,
    SourceOf,
    Switch,
    Tables,
    TextRule,
    key,
    rules,
    section,
)
from zerosim.sharding import Directions
from zerosim.stages import SCHEDULES, STAGES
from zerosim.stages.own import as_stage
from zerosim.stages.publishing import PUBLISHING

FAR = ("none", "host", "disk")
STAGE_KEYS = tuple(STAGES)
WIRES = ("weights", *(name for name in PRECISIONS if name != "fp64"))
PUBLICATIONS = tuple(PUBLISHING)
MOST_RANKS = 2**20
MEGABYTE = 10**6
MOST_LAYERS = 1000
LARGEST_SIZE = 10**6
"""The largest dimension of a model: byte counts of its products then fit in 64 bits, so a plan can report a misfit."""
BY_OPTIMIZER: Any = None
ROW_BY_ROW = ("volumes", "messages", "largest_messages", "activations", "beyond_peak", "beyond_peak_laid_out",
              "between_bytes", "kept_bytes", "collective_bytes")
"""The keys of [check] with a number for each row."""


Units = str | tuple[tuple[int, ...], ...]
"""The layers of each unit, `layer` for one each, or `model` for one unit."""


def part_of(default: str | None, table: Table[Any], made: Callable[[str, Any], Any]) -> Any:
    """A key that names a part of `table`, or a user's; its section then accepts the part's keys too."""
    return key(default, PartOf(tuple(table), made, brings_keys=True, optional=not default))


def serving(default: str | None, kind: str) -> Any:
    """A key that names an algorithm of a kind of collective, or a user's."""
    return part_of(default, SERVING[kind], as_collective(kind))


@dataclass(frozen=True)
class WorldKeys:
    ranks: int = key(4, Integer(1, MOST_RANKS))
    ranks_per_host: int = key(0, Integer(0, MOST_RANKS))
    memory_limit_mb: int = key(0, Integer())
    timeout_seconds: float = key(60.0, Number(0.1, 1e6))


@dataclass(frozen=True)
class Data(Section):
    shared: ClassVar[tuple[str, ...]] = ("source", "target", "test_every")
    """The keys that mean the same for every part, and that no part may define."""
    source: str = key("digits", SourceOf((), as_source, brings_keys=True))
    target: str = key("", TextRule())
    test_every: int = key(0, Integer())
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ModelKeys(Section):
    shared: ClassVar[tuple[str, ...]] = ("kind", "weights", "frozen")
    """The keys that mean the same for every part, and that no part may define."""
    kind: str = part_of("mlp", MODELS, as_model)
    hidden: tuple[int, ...] = key((64, 64), ArrayRule(Integer(1, LARGEST_SIZE), at_most=MOST_LAYERS))
    activation: str = key("relu", Choice(tuple(ACTIVATIONS)))
    architecture: str = key("gpt2", Choice(tuple(PARTS)))
    layers: int = key(2, Integer(1, MOST_LAYERS))
    width: int = key(64, Integer(1, LARGEST_SIZE))
    heads: int = key(4, Integer(1, 10_000))
    key_value_heads: int = key(0, Integer())
    head_size: int = key(0, Integer(0, 10_000))
    latent: int = key(0, Integer(0, LARGEST_SIZE))
    query_latent: int = key(0, Integer(0, LARGEST_SIZE))
    rotary_size: int = key(0, Integer(0, 10_000))
    inner: int = key(0, Integer(0, LARGEST_SIZE))
    vocabulary: int = key(0, Integer(0, LARGEST_SIZE))
    sequence: int = key(0, Integer(0, LARGEST_SIZE))
    tied_embeddings: bool = key(False, Switch())
    dropout: float = key(0.0, Number(0, 1))
    experts: int = key(4, Integer(1, 10_000))
    experts_per_token: int = key(1, Integer(1, 10_000))
    capacity_factor: float = key(1.25, Number())
    queue_tokens: int = key(0, Integer(0, LARGEST_SIZE))
    shared_inner: int = key(0, Integer(0, LARGEST_SIZE))
    dense_layers: int = key(0, Integer(0, MOST_LAYERS))
    dense_inner: int = key(0, Integer(0, LARGEST_SIZE))
    frozen: tuple[int, ...] = key((), ArrayRule(Integer()))
    weights: str = key("", TextRule())
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def others_keys(self) -> tuple[str, ...]:
        """The keys of other kinds of models, which this kind does not read.

        >>> ModelKeys("transformer").others_keys[:4]
        ('experts', 'experts_per_token', 'capacity_factor', 'queue_tokens')
        """
        mine = MODELS[self.kind].own_keys
        return tuple(key for other in MODELS.values() for key in other.own_keys if key not in mine)

    @property
    def layer_count(self) -> int:
        return MODELS[self.kind].layer_count(self)

    @property
    def tied(self) -> bool:
        """Whether the first and the last layer share weights."""
        return MODELS[self.kind].tied(self)

    def units_of(self, units: Units) -> tuple[tuple[int, ...], ...]:
        """The layers of each unit for a value of `parallel.units`; tied embeddings share one."""
        layers = tuple(range(self.layer_count))
        match units:
            case "model":
                return (layers,)
            case "layer" if self.tied:
                return ((0, layers[-1]), *((layer,) for layer in layers[1:-1]))
            case "layer":
                return tuple((layer,) for layer in layers)
        return tuple(unit for unit in units if not isinstance(unit, str))


@dataclass(frozen=True)
class Train(Section):
    """How to train; the defaults of the optimizers are PyTorch's."""

    shared: ClassVar[tuple[str, ...]] = (
        "steps", "micro_batch", "micro_batches", "optimizer", "learning_rate", "weight_decay", "decay_biases",
        "schedule", "warmup_steps", "clip_norm", "precision", "loss_scale", "seed")
    """The keys that mean the same for every part, and that no part may define."""
    steps: int = key(20, Integer())
    micro_batch: int = key(16, Integer(1, 10**7))
    micro_batches: int = key(4, Integer(1, 10**8))
    optimizer: str = part_of("adam", OPTIMIZERS, as_optimizer)
    learning_rate: float = key(1e-3, Number())
    betas: tuple[float, float] = key((0.9, 0.999), ArrayRule(Number(0, 1), 2, 2))
    epsilon: float = key(1e-8, Number())
    momentum: float = key(0.9, Number())
    weight_decay: float = key(BY_OPTIMIZER, Number())
    decay_biases: bool = key(True, Switch())
    schedule: str = key("constant", Choice(("constant", "cosine")))
    warmup_steps: int = key(0, Integer())
    clip_norm: float = key(0.0, Number())
    precision: str = key("fp32", Choice(tuple(PRECISIONS)))
    loss_scale: float | str = key("dynamic", Either("dynamic", Number(1e-38, 1e38)))
    """Outside of these bounds the scale or its inverse is 0 or infinite in float32."""
    seed: int = key(0, Integer())
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay is BY_OPTIMIZER:
            object.__setattr__(self, "weight_decay", OPTIMIZERS[self.optimizer].usual_weight_decay)


OF_ALL_ROWS = ("stages", "order", "offload_folder")
"""The keys of [parallel] that all rows share."""


@dataclass(frozen=True)
class Parallel(Section):
    stages: tuple[str, ...] = key(STAGE_KEYS, ArrayRule(PartOf(tuple(STAGES), as_stage), 1, distinct=True))
    order: str = key("ring", Choice(tuple(ORDERS)))
    units: Units = key("layer", ArrayOr(
        "layer, model or an array of arrays of layer numbers such as [[0, 1], [2]]", ("layer", "model"),
        ArrayRule(ArrayRule(Integer(), 1), 1)))
    shard_ranks: int = key(0, Integer())
    replicas: int = key(0, Integer())
    secondary_ranks: int = key(0, Integer())
    tensor_ranks: int = key(1, Integer(1, MOST_RANKS))
    context_ranks: int = key(1, Integer(1, MOST_RANKS))
    expert_ranks: int = key(1, Integer(1, MOST_RANKS))
    pipeline_ranks: int = key(1, Integer(1, MOST_RANKS))
    schedule: str = key("1f1b", Choice(tuple(SCHEDULES)))
    model_chunks: int = key(1, Integer(1, MOST_LAYERS))
    pipeline_layers: tuple[int, ...] = key((), ArrayRule(Integer(1), at_most=MOST_LAYERS))
    sequence_parallel: bool = key(False, Switch())
    vocabulary_parallel: bool = key(False, Switch())
    context_by: str = key("ring", Choice(("ring", "all_to_all")))
    accumulation: str = key("boundary", Choice(("boundary", "micro_batch", "layered")))
    accumulate_dtype: str = key("weights", Choice(("weights", "fp32")))
    param_dtype: str = key("weights", Choice(WIRES))
    autocast: str = key("none", Choice(("none", *(name for name, precision in PRECISIONS.items() if precision.mixed))))
    reduce_dtype: str = key("weights", Choice(WIRES))
    output_dtype: str = key("weights", Choice(WIRES))
    reduce_scatter: str = serving("", "reduce_scatter")
    all_gather: str = serving("", "all_gather")
    broadcast: str = serving("", "broadcast")
    quantized_weights: str = key("none", PartOf(("none", *FORMATS), as_wire))
    quantized_gradients: str = key("none", PartOf(("none", *FORMATS), as_wire))
    quantized_block: int = key(256, Integer(0, 10**9))
    error_feedback: bool = key(False, Switch())
    gradients: str = key("reduce_scatter", Choice(("reduce_scatter", "all_reduce")))
    publish: str = key("weights", Choice(PUBLICATIONS))
    reshard_after_forward: bool = key(True, Switch())
    prefetch: bool = key(False, Switch())
    overlap: bool = key(False, Switch())
    recompute: bool | tuple[int, ...] = key(False, ArrayOr(
        f"true, false or {ArrayRule(Integer(), distinct=True)}", (True, False), ArrayRule(Integer(), distinct=True)))
    recompute_keeps: str = key("", Choice(("", *SELECTIONS)))
    offload_activations: bool = key(False, Switch())
    partition_activations: bool = key(False, Switch())
    offload_optimizer: str = key("none", Choice(FAR))
    offload_parameters: str = key("none", Choice(FAR))
    delayed_update: bool = key(False, Switch())
    offload_folder: str = key("", TextRule())
    bucket_mb: float = key(0.0, Number())

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * MEGABYTE)

    @property
    def directions(self) -> Directions:
        """The ranks that train one copy of the model."""
        return Directions.named(vars(self))

    @property
    def pipelining(self) -> tuple[object, ...]:
        """The keys of a pipeline."""
        return self.pipeline_ranks, self.schedule, self.model_chunks, self.pipeline_layers

    @property
    def pieces(self) -> int:
        """The number of pieces of the model in a pipeline."""
        return self.pipeline_ranks * self.model_chunks

    def group_of(self, ranks: int) -> int:
        """The ranks among `ranks` that share one copy of the sharded states.

        >>> Parallel(replicas=2).group_of(8), Parallel(shard_ranks=2).group_of(8), Parallel().group_of(8)
        (4, 2, 8)
        """
        return self.shard_ranks or ranks // max(self.replicas, 1)


def unset(rule: Rule) -> Any:
    """The field of a key that a row may leave out; without it the row has that of [parallel]."""
    return key(None, rule)


VariantKeys: Any = dataclasses.make_dataclass("VariantKeys", [
    ("name", str, key("", TextRule())), ("stage", str, part_of("zero3", STAGES, as_stage)),
    *((name, Any, unset(rule)) for name, rule in rules(Parallel).items() if name not in OF_ALL_ROWS),
], frozen=True)
"""A name, a stage, and every key of [parallel] that rows may differ in, unset."""


class Variant(VariantKeys, Section):  # type: ignore[misc]
    """A row of its own in the comparison: a stage, with some keys of [parallel] replaced."""

    @property
    def keys_set(self) -> dict[str, Any]:
        """The keys of [parallel] that it sets."""
        keys = [each.name for each in dataclasses.fields(self) if each.name not in ("name", "stage")]
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}

    def applied(self, parallel: Parallel) -> Parallel:
        """`parallel` with this variant's stage alone, and its keys."""
        return dataclasses.replace(parallel, stages=(self.stage,), **self.keys_set)

    def named(self, titles: Mapping[str, str]) -> str:
        """The name of the row or, without one, its stage and its keys.

        >>> Variant(stage="zero3", prefetch=True, units=((0, 1),)).named({"zero3": "Stage III"})
        'Stage III, units = [[0, 1]], prefetch = true'
        """
        keys = self.keys_set.items()
        words = [f"{key} = {value if isinstance(value, str) else json.dumps(value)}" for key, value in keys]
        return self.name or ", ".join([titles.get(self.stage, self.stage), *words])


@dataclass(frozen=True)
class Check:
    """The claims of a run, in addition to the formula for its traffic."""

    reference: bool = key(True, Switch())
    checksums: bool = key(False, Switch())
    test_accuracy: float = key(0.0, Number(0, 1))
    test_loss: float | str = key(0.0, Either("bigram", Number()))
    same_bits_on: tuple[int, ...] = key((), ArrayRule(Integer(1)))
    does_not_fit: tuple[str, ...] = key((), ArrayRule(Choice(STAGE_KEYS), distinct=True))
    fits: tuple[str, ...] = key((), ArrayRule(Choice(STAGE_KEYS), distinct=True))
    mfu: tuple[float, ...] = key((), ArrayRule(Number(-math.inf)))
    same_weights: bool | None = key(None, Switch())
    volumes: tuple[float, ...] = key((), ArrayRule(Number(-math.inf)))
    messages: tuple[int, ...] = key((), ArrayRule(Integer()))
    largest_messages: tuple[int, ...] = key((), ArrayRule(Integer()))
    activations: tuple[int, ...] = key((), ArrayRule(Integer()))
    between_bytes: tuple[int, ...] = key((), ArrayRule(Integer()))
    kept_bytes: tuple[int, ...] = key((), ArrayRule(Integer()))
    collectives: tuple[str, ...] = key((), ArrayRule(TextRule(), distinct=True))
    collective_bytes: tuple[int, ...] = key((), ArrayRule(Integer()))
    fragmentation: bool = key(False, Switch())
    beyond_peak: tuple[int, ...] = key((), ArrayRule(Integer()))
    beyond_peak_laid_out: tuple[int, ...] = key((), ArrayRule(Integer()))

    def of_row(self, number: int) -> dict[str, Any]:
        """The claims about row `number`, for keys with one value for each row."""
        names = {"volumes": "volume", "largest_messages": "largest_message"}
        return {names.get(key, key): getattr(self, key)[number] for key in ROW_BY_ROW if getattr(self, key)}


@dataclass(frozen=True)
class Checkpoint:
    """The folder of saved training states; without one nothing is saved."""

    folder: str = key("", TextRule())
    every: int = key(1, Integer(1))
    keep: int = key(2, Integer(1))


@dataclass(frozen=True)
class Sections:
    """All sections of a scenario; `origin` has the positions of their keys and does not count in comparisons."""

    kind: str = key("training", Choice(("training",)))
    title: str = key("", TextRule())
    caption: str = key("", TextRule())
    world: WorldKeys = section(WorldKeys)
    data: Data = section(Data)
    model: ModelKeys = section(ModelKeys)
    train: Train = section(Train)
    parallel: Parallel = section(Parallel)
    cluster: ClusterKeys = section(ClusterKeys)
    variant: tuple[Variant, ...] = key((), Tables(Variant))
    check: Check = section(Check)
    checkpoint: Checkpoint = section(Checkpoint)
    fault: tuple[Fault, ...] = key((), Tables(Fault))
    origin: Origin = dataclasses.field(default=Origin(), repr=False, compare=False)
