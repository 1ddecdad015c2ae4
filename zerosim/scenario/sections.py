"""The sections of a scenario: every key, its default, and the allowed values. Their meanings are in `docs/scenario.md`.

`train.momentum` is 0.9 by default. PyTorch's SGD has 0, which for an optimizer named `momentum` would silently be
plain SGD.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from zerosim.autograd.operations.elementwise import ACTIVATIONS, GELUS
from zerosim.autograd.operations.normalization import EPSILON
from zerosim.autograd.selection import SELECTIONS
from zerosim.collectives.own import SERVING, as_collective
from zerosim.core.orders import ORDERS
from zerosim.core.parts import Name, Named
from zerosim.core.parts.signature import as_source
from zerosim.core.precisions import PRECISIONS
from zerosim.core.sharding import Directions
from zerosim.core.wires import CODES
from zerosim.models import MODELS
from zerosim.models.transformer import FAMILIES
from zerosim.models.users_model import as_model
from zerosim.scenario.fault import Fault
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.reading import Origin, made_in
from zerosim.scenario.values import SOME, Counted, Finite, Natural, Number, Portion, below, bounded, in_words, one_of
from zerosim.stages import STAGES
from zerosim.stages.gathering import PUBLISHING
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.stages.schedules import SCHEDULES
from zerosim.stages.users_optimizer import as_optimizer
from zerosim.stages.users_stage import as_stage

STAGE_KEYS = tuple(STAGES)
AUTOCASTS = ("none", *(name for name, precision in PRECISIONS.items() if precision.mixed))
WIRES = ("weights", *(name for name, precision in PRECISIONS.items() if name != "fp64" and precision.master))
MOST_RANKS = 2**20
MEGABYTE = 10**6
MOST_LAYERS = 1000
LARGEST_SIZE = 10**6
"""The largest dimension of a model: byte counts of its products then fit in 64 bits, so a plan can report a misfit."""
BY_OPTIMIZER: Any = None
ROW_BY_ROW = ("volumes", "messages", "largest_messages", "activations", "beyond_peak", "beyond_peak_laid_out",
              "between_bytes", "kept_bytes", "collective_bytes")
"""The keys of [check] with a number for each row."""

Units = Annotated[
    Annotated[str, one_of(("layer", "model"))] | Annotated[
        tuple[Annotated[tuple[Natural, ...], Meta(min_length=1)], ...], Meta(min_length=1)],
    in_words("layer, model or an array of arrays of layer numbers such as [[0, 1], [2]]")]
"""The layers of each unit, `layer` for one each, or `model` for one unit."""
Ranks = Annotated[int, bounded(1, MOST_RANKS)]
Size = Annotated[int, bounded(0, LARGEST_SIZE)]
"""A dimension of a model; 0 for the usual one."""
Heads = Annotated[int, bounded(1, 10_000)]
StageName = Annotated[str, one_of(STAGES)]
WireName = Annotated[str, one_of(WIRES)]
FormatName = Annotated[str, one_of(("none", *CODES))]
TierName = Annotated[str, one_of(("none", "host"))]


class Section:
    """A section whose keys may name parts, in Python also as objects: functions and declared parts."""

    names_parts: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {}
    """The keys that name parts, and what makes a part from its name and a user's Python object."""
    free: ClassVar[Collection[str]] = ()
    """The keys that a part may define as its own, because they are those of some shipped parts alone."""

    def __post_init__(self) -> None:
        origin = Origin()
        for key, make in self.names_parts.items():
            value = made_in(getattr(self, key), make, (key,), origin)
            object.__setattr__(self, key, tuple(value) if isinstance(value, list) else value)
            if own := getattr(getattr(value, "part", None), "keys", {}):
                object.__setattr__(self, "own", {**own, **getattr(self, "own", {})})


def serving(kind: str) -> Meta:
    """The names of the algorithms of a kind of collective; empty for that of `parallel.order`."""
    return one_of(("", *SERVING[kind]))


@dataclass(frozen=True)
class WorldKeys:
    ranks: Ranks = 4
    ranks_per_host: Annotated[int, bounded(0, MOST_RANKS)] = 0
    memory_limit_mb: Natural = 0
    timeout_seconds: Annotated[float, below(0.1, 1e6)] = 60.0


@dataclass(frozen=True)
class Data(Section):
    names_parts = {"source": as_source}  # noqa: RUF012 - never written
    source: str | Named = "digits"
    own: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ModelKeys(Section):
    names_parts = {"kind": as_model}  # noqa: RUF012
    free = {key for kind in MODELS.values() for key in kind.own_keys}  # noqa: RUF012
    kind: Annotated[str, one_of(MODELS)] | Named = "mlp"
    hidden: Annotated[
        tuple[Annotated[int, bounded(1, LARGEST_SIZE)], ...], Meta(max_length=MOST_LAYERS)] = (64, 64)
    activation: Annotated[str, one_of(ACTIVATIONS)] = "relu"
    architecture: Annotated[str, one_of(FAMILIES)] = "gpt2"
    layers: Annotated[int, bounded(1, MOST_LAYERS)] = 2
    width: Annotated[int, bounded(1, LARGEST_SIZE)] = 64
    heads: Heads = 4
    key_value_heads: Natural = 0
    head_size: Annotated[int, bounded(0, 10_000)] = 0
    latent: Size = 0
    query_latent: Size = 0
    rotary_size: Annotated[int, bounded(0, 10_000)] = 0
    inner: Size = 0
    vocabulary: Size = 0
    sequence: Size = 0
    tied_embeddings: bool = False
    norm_epsilon: Number = EPSILON
    gelu: Annotated[str, one_of(GELUS)] = "tanh"
    dropout: Portion = 0.0
    experts: Heads = 4
    experts_per_token: Heads = 1
    capacity_factor: Number = 1.25
    queue_tokens: Size = 0
    shared_inner: Size = 0
    dense_layers: Annotated[int, bounded(0, MOST_LAYERS)] = 0
    dense_inner: Size = 0
    unused_parameters: Annotated[tuple[Natural, ...], Meta(max_length=2)] = ()
    frozen: tuple[Natural, ...] = ()
    weights: str = ""
    own: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def others_keys(self) -> tuple[str, ...]:
        """The keys of other kinds of models, which this kind does not read.

        >>> ModelKeys("transformer").others_keys[:4]
        ('experts', 'experts_per_token', 'capacity_factor', 'queue_tokens')
        """
        own = MODELS[self.kind].own_keys
        return tuple(key for other in MODELS.values() for key in other.own_keys if key not in own)

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

    names_parts = {"optimizer": as_optimizer}  # noqa: RUF012
    free = ("betas", "epsilon", "momentum")
    steps: Natural = 20
    micro_batch: Annotated[int, bounded(1, 10**7)] = 16
    micro_batches: Annotated[int, bounded(1, 10**8)] = 4
    optimizer: Annotated[str, one_of(OPTIMIZERS)] | Named = "adam"
    learning_rate: Number = 1e-3
    betas: tuple[Portion, Portion] = (0.9, 0.999)
    epsilon: Number = 1e-8
    momentum: Number = 0.9
    weight_decay: Number = BY_OPTIMIZER
    decay_biases: bool = True
    schedule: Annotated[str, one_of(("constant", "cosine"))] = "constant"
    warmup_steps: Natural = 0
    clip_norm: Number = 0.0
    precision: Annotated[str, one_of(PRECISIONS)] = "fp32"
    loss_scale: Annotated[str, one_of(("dynamic",))] | Annotated[float, below(1e-38, 1e38)] = "dynamic"
    """Outside of these bounds the scale or its inverse is 0 or infinite in float32."""
    seed: Natural = 0
    own: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay is BY_OPTIMIZER:
            object.__setattr__(self, "weight_decay", OPTIMIZERS[self.optimizer].usual_weight_decay)


OF_ALL_ROWS = ("stages", "order")
"""The keys of [parallel] that all rows share."""


@dataclass(frozen=True)
class Parallel(Section):
    names_parts = {"stages": as_stage, **{kind: as_collective(kind) for kind in SERVING}}  # noqa: RUF012
    stages: Annotated[tuple[StageName | Named, ...], Meta(min_length=1)] = STAGE_KEYS
    order: Annotated[str, one_of(ORDERS)] = "ring"
    units: Units = "layer"
    shard_ranks: Natural = 0
    secondary_ranks: Natural = 0
    tensor_ranks: Ranks = 1
    context_ranks: Ranks = 1
    expert_ranks: Ranks = 1
    pipeline_ranks: Ranks = 1
    schedule: Annotated[str, one_of(SCHEDULES)] = "1f1b"
    model_chunks: Annotated[int, bounded(1, MOST_LAYERS)] = 1
    pipeline_layers: Annotated[tuple[Counted, ...], Meta(max_length=MOST_LAYERS)] = ()
    sequence_parallel: bool = False
    vocabulary_parallel: bool = False
    context_by: Annotated[str, one_of(("ring", "all_to_all"))] = "ring"
    accumulation: Annotated[str, one_of(("boundary", "micro_batch", "layered"))] = "boundary"
    accumulate_dtype: Annotated[str, one_of(("weights", "fp32"))] = "weights"
    param_dtype: WireName = "weights"
    autocast: Annotated[str, one_of(AUTOCASTS)] = "none"
    reduce_dtype: WireName = "weights"
    output_dtype: WireName = "weights"
    reduce_scatter: Annotated[str, serving("reduce_scatter")] | Named = ""
    all_gather: Annotated[str, serving("all_gather")] | Named = ""
    broadcast: Annotated[str, serving("broadcast")] | Named = ""
    quantized_weights: FormatName = "none"
    quantized_gradients: FormatName = "none"
    quantized_block: Annotated[int, bounded(0, 10**9)] = 256
    gradients: Annotated[str, one_of(("reduce_scatter", "all_reduce"))] = "reduce_scatter"
    publish: Annotated[str, one_of(PUBLISHING)] = "weights"
    reshard_after_forward: bool = True
    prefetch: bool = False
    overlap: bool = False
    recompute: bool | tuple[Natural, ...] = False
    recompute_keeps: Annotated[str, one_of(("", *SELECTIONS))] = ""
    offload_activations: bool = False
    partition_activations: bool = False
    offload_optimizer: TierName = "none"
    offload_parameters: TierName = "none"
    bucket_mb: Number = 0.0

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * MEGABYTE)

    @property
    def directions(self) -> Directions:
        """The ranks that train one copy of the model."""
        return Directions(self.tensor_ranks, self.context_ranks, self.expert_ranks, self.pipeline_ranks)

    @property
    def pieces(self) -> int:
        """The number of pieces of the model in a pipeline."""
        return self.pipeline_ranks * self.model_chunks


@dataclass(frozen=True, init=False)
class Variant(Section):
    """A row of its own in the comparison: a stage, with some keys of [parallel] replaced."""

    names_parts = {"stage": as_stage}  # noqa: RUF012
    name: str = ""
    stage: StageName | Named = "zero3"
    keys_set: dict[str, Any] = field(default_factory=dict, hash=False)
    """The keys of [parallel] that it sets."""

    def __init__(self, name: str = "", stage: Name = "zero3", **keys_set: Any) -> None:
        parallel = Parallel(stages=(stage,), **keys_set)
        own = {key.name: getattr(parallel, key.name) for key in dataclasses.fields(Parallel)
               if keys_set.get(key.name) is not None}
        for key, value in (("name", name), ("stage", parallel.stages[0]), ("keys_set", own)):
            object.__setattr__(self, key, value)

    def applied(self, parallel: Parallel) -> Parallel:
        """`parallel` with this variant's stage alone, and its keys."""
        return dataclasses.replace(parallel, stages=(self.stage,), **self.keys_set)

    @property
    def title(self) -> str:
        """The name of the row or, without one, its stage and its keys.

        >>> Variant(stage="zero3", prefetch=True, units=((0, 1),)).title
        'Stage III, units = [[0, 1]], prefetch = true'
        """
        words = [f"{key} = {json.dumps(value) if isinstance(value, bool | int | float | tuple) else value}"
                 for key, value in self.keys_set.items()]
        return self.name or ", ".join([STAGES[self.stage].title, *words])


@dataclass(frozen=True)
class Check:
    """The claims of a run, in addition to the formula for its traffic."""

    reference: bool = True
    test_accuracy: Portion = 0.0
    test_loss: Number = 0.0
    same_bits_on: tuple[Counted, ...] = ()
    does_not_fit: tuple[StageName, ...] = ()
    fits: tuple[StageName, ...] = ()
    mfu: tuple[Finite, ...] = ()
    same_weights: bool | None = None
    volumes: tuple[Finite, ...] = ()
    messages: tuple[Natural, ...] = ()
    largest_messages: tuple[Natural, ...] = ()
    activations: tuple[Natural, ...] = ()
    between_bytes: tuple[Natural, ...] = ()
    kept_bytes: tuple[Natural, ...] = ()
    collectives: tuple[str, ...] = ()
    collective_bytes: tuple[Natural, ...] = ()
    process_memory: bool = False
    fragmentation: bool = False
    beyond_peak: tuple[Natural, ...] = ()
    beyond_peak_laid_out: tuple[Natural, ...] = ()

    @property
    def lifetimes(self) -> bool:
        """Whether fragmentation is checked or shown, which needs the lifetimes of arrays."""
        return bool(self.fragmentation or self.beyond_peak or self.beyond_peak_laid_out)

    def of_row(self, number: int) -> "Check":
        """The checks of row `number`; a key with a number for each row has this row's alone.

        >>> Check(volumes=(2, 3)).of_row(1).volumes
        (3,)
        """
        return dataclasses.replace(self, **{key: getattr(self, key)[number : number + 1] for key in ROW_BY_ROW})


@dataclass(frozen=True)
class Checkpoint:
    """The folder of saved training states; without one nothing is saved."""

    folder: str = ""
    every: Counted = 1
    keep: Counted = 2


@dataclass(frozen=True)
class Sections:
    """All sections of a scenario; `origin`, which does not count in comparisons, tells where a key is written."""

    kind: Annotated[str, one_of(("training", "collective"))] = "training"
    title: str = ""
    caption: str = ""
    world: WorldKeys = field(default_factory=WorldKeys)
    data: Data = field(default_factory=Data)
    model: ModelKeys = field(default_factory=ModelKeys)
    train: Train = field(default_factory=Train)
    parallel: Parallel = field(default_factory=Parallel)
    cluster: ClusterKeys = field(default_factory=ClusterKeys)
    variant: Annotated[tuple[Variant, ...], SOME] = ()
    check: Check = field(default_factory=Check)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    fault: Annotated[tuple[Fault, ...], SOME] = ()
    origin: Origin = field(default=Origin(), repr=False, compare=False)
