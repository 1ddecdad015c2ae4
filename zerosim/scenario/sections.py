"""The sections of a scenario: every key, its default, and the allowed values.

`train.momentum` is 0.9 by default. PyTorch's SGD has 0, which for an optimizer named `momentum` would silently be
plain SGD.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zerosim.autograd.operations.elementwise import ACTIVATIONS
from zerosim.autograd.selection import SELECTIONS
from zerosim.collectives.own import SERVING, as_collective
from zerosim.models import MODELS
from zerosim.models.own import as_model
from zerosim.models.transformer import PARTS
from zerosim.numerics.orders import ORDERS
from zerosim.numerics.precisions import PRECISIONS
from zerosim.numerics.wires import CODES
from zerosim.optim.optimizers import OPTIMIZERS
from zerosim.optim.own import as_optimizer
from zerosim.scenario.fields import (
    choice,
    groups,
    integer,
    integers,
    maybe,
    number,
    number_or_word,
    numbers,
    pair,
    subset,
    switch,
    switch_or_integers,
    text,
    word_or_number,
)
from zerosim.scenario.parts import PartOf, own_keys, part_of, parts_of, settle, source_of
from zerosim.sharding import Directions
from zerosim.stages import STAGES
from zerosim.stages.own import as_stage
from zerosim.stages.publishing import PUBLISHING

QUANTIZED = ("none", *CODES)
FAR = ("none", "host", "disk")
STAGE_KEYS = tuple(STAGES)
ACCUMULATIONS = ("boundary", "micro_batch", "layered")
DTYPES = ("weights", "fp32")
WIRES = ("weights", *(name for name in PRECISIONS if name != "fp64"))
REDUCTIONS = ("reduce_scatter", "all_reduce")
AUTOCASTS = ("none", *(name for name, precision in PRECISIONS.items() if precision.mixed))
RECOMPUTE_KEEPS = ("", *SELECTIONS)
PUBLICATIONS = tuple(PUBLISHING)
MOST_RANKS = 2**20
MEGABYTE = 10**6
MOST_LAYERS = 1000
LARGEST_SIZE = 10**6
"""The largest dimension of a model: byte counts of its products then fit in 64 bits, so a plan can report a misfit."""
BY_OPTIMIZER: Any = None
ROW_BY_ROW = ("volumes", "messages", "largest_messages", "activations", "beyond_peak", "beyond_peak_laid_out",
              "between_bytes", "kept_bytes")
"""The keys of [check] with a number for each row."""


def serving(default: str | None, kind: str) -> Any:
    """A key that names an algorithm of a kind of collective, or a user's."""
    return part_of(default, SERVING[kind], as_collective(kind))


@dataclass(frozen=True)
class WorldKeys:
    ranks: int = integer(4, at_least=1, at_most=MOST_RANKS)
    ranks_per_host: int = integer(0, at_least=0, at_most=MOST_RANKS)
    """The number of neighbouring ranks that count as a host; 0: the real hosts."""
    memory_limit_mb: int = integer(0, at_least=0)
    """The memory that each rank's process may allocate for training; 0 is no limit. For the MPI world."""
    timeout_seconds: float = number(60.0, at_least=0.1, below=1e6)
    """The longest wait of a rank for a message before it ends the run. For the MPI world: the local one detects a
    deadlock itself."""
    transport: str = choice("shared", ("shared", "mpi"))
    """The transport of messages within a host: shared memory or MPI. For the MPI world."""


@dataclass(frozen=True)
class Data:
    shared: ClassVar[tuple[str, ...]] = ("source", "target", "test_every")
    """The keys that mean the same for every part, and that no part may define."""
    source: str = source_of("digits")
    target: str = text("")
    """The column of a table that is y; empty: the last."""
    test_every: int = integer(0, at_least=0)
    """The interval of test samples in a table or in images; 0: none."""
    own: Mapping[str, Any] = own_keys()

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True)
class ModelKeys:
    shared: ClassVar[tuple[str, ...]] = ("kind", "weights", "frozen")
    """The keys that mean the same for every part, and that no part may define."""
    kind: str = part_of("mlp", MODELS, as_model)
    hidden: tuple[int, ...] = integers((64, 64), at_least=1, at_most=LARGEST_SIZE, most=MOST_LAYERS)
    """The widths of an mlp's layers but the last; the keys from `architecture` to `dropout` are a transformer's."""
    activation: str = choice("relu", tuple(ACTIVATIONS))
    architecture: str = choice("gpt2", tuple(PARTS))
    layers: int = integer(2, at_least=1, at_most=MOST_LAYERS)
    """The number of blocks; layer 0 is the embedding, layer `layers` + 1 the head."""
    width: int = integer(64, at_least=1, at_most=LARGEST_SIZE)
    heads: int = integer(4, at_least=1, at_most=10_000)
    key_value_heads: int = integer(0, at_least=0)
    """The heads of keys and values; 0: as many as `heads`."""
    inner: int = integer(0, at_least=0, at_most=LARGEST_SIZE)
    """The width within a block's perceptron; 0: 4 · width, or for llama 8/3 · width."""
    vocabulary: int = integer(0, at_least=0, at_most=LARGEST_SIZE)
    """The number of tokens; 0: that of the data."""
    sequence: int = integer(0, at_least=0, at_most=LARGEST_SIZE)
    """The tokens of each sample; 0: 64 for a text, 15 for a task (8 digits)."""
    tied_embeddings: bool = switch(False)
    dropout: float = number(0.0, at_least=0, below=1)
    frozen: tuple[int, ...] = integers((), at_least=0)
    """The numbers of layers whose weights are not trained."""
    weights: str = text("")
    """The safetensors file with the initial weights; without one they are drawn."""
    own: Mapping[str, Any] = own_keys()

    def __post_init__(self) -> None:
        settle(self)

    @property
    def layer_count(self) -> int:
        return MODELS[self.kind].layer_count(self)

    @property
    def tied(self) -> bool:
        """Whether the first and the last layer share weights."""
        return MODELS[self.kind].tied(self)

    @property
    def layer_units(self) -> tuple[tuple[int, ...], ...]:
        """A unit for each layer; tied embeddings share one."""
        last = self.layer_count - 1
        if self.tied:
            return ((0, last), *((layer,) for layer in range(1, last)))
        return tuple((layer,) for layer in range(self.layer_count))


@dataclass(frozen=True)
class Train:
    """How to train; the defaults of the optimizers are PyTorch's."""

    shared: ClassVar[tuple[str, ...]] = (
        "steps", "micro_batch", "micro_batches", "optimizer", "learning_rate", "weight_decay", "decay_biases",
        "schedule", "warmup_steps", "clip_norm", "precision", "loss_scale", "seed")
    """The keys that mean the same for every part, and that no part may define."""
    steps: int = integer(20, at_least=0)
    micro_batch: int = integer(16, at_least=1, at_most=10**7)
    micro_batches: int = integer(4, at_least=1, at_most=10**8)
    optimizer: str = part_of("adam", OPTIMIZERS, as_optimizer)
    learning_rate: float = number(1e-3, at_least=0)
    betas: tuple[float, float] = pair((0.9, 0.999), at_least=0, below=1)
    epsilon: float = number(1e-8, at_least=0)
    momentum: float = number(0.9, at_least=0)
    weight_decay: float = number(BY_OPTIMIZER, at_least=0)
    decay_biases: bool = switch(True)
    schedule: str = choice("constant", ("constant", "cosine"))
    warmup_steps: int = integer(0, at_least=0)
    clip_norm: float = number(0.0, at_least=0)
    precision: str = choice("fp32", tuple(PRECISIONS))
    loss_scale: float | str = word_or_number("dynamic", at_least=1e-38, below=1e38)
    """Outside of these bounds the scale or its inverse is 0 or infinite in float32."""
    seed: int = integer(0, at_least=0)
    own: Mapping[str, Any] = own_keys()

    def __post_init__(self) -> None:
        settle(self)
        if self.weight_decay is BY_OPTIMIZER:
            object.__setattr__(self, "weight_decay", OPTIMIZERS[self.optimizer].usual_weight_decay)


OF_ALL_ROWS = ("stages", "order", "offload_folder")
"""The keys of [parallel] that all rows share."""


@dataclass(frozen=True)
class Parallel:
    stages: tuple[str, ...] = parts_of(STAGE_KEYS, STAGES, as_stage)
    order: str = choice("ring", tuple(ORDERS))
    units: str | tuple[tuple[int, ...], ...] = groups()
    shard_ranks: int = integer(0, at_least=0)
    """The number of neighbouring ranks that share one copy of the sharded states; such groups hold copies of each
    other's. 0: all."""
    replicas: int = integer(0, at_least=0)
    """The number of groups that each hold a copy of the sharded states; another way to set shard_ranks. 0: by
    shard_ranks."""
    secondary_ranks: int = integer(0, at_least=0)
    """The number of neighbouring ranks that share a second copy of Stage III's weights, from which backward gathers. 0:
    none."""
    tensor_ranks: int = integer(1, at_least=1, at_most=MOST_RANKS)
    """The number of neighbouring ranks that share a micro-batch, each with a piece of every matrix: Megatron's TP."""
    context_ranks: int = integer(1, at_least=1, at_most=MOST_RANKS)
    """The number of ranks that share a micro-batch, each with a piece of every sequence."""
    expert_ranks: int = integer(1, at_least=1, at_most=MOST_RANKS)
    """The number of ranks that share a micro-batch, each with some of the experts."""
    sequence_parallel: bool = switch(False)
    """Whether tensor ranks have a piece of the sequence each where they would all compute the same."""
    accumulation: str = choice("boundary", ACCUMULATIONS)
    accumulate_dtype: str = choice("weights", DTYPES)
    param_dtype: str = choice("weights", WIRES)
    """The dtype in which Stage III gathers its float32 shards and computes with them: FSDP2's `param_dtype`."""
    autocast: str = choice("none", AUTOCASTS)
    """The dtype of matrix products with float32 weights, which are cast in the graph: `torch.autocast`."""
    reduce_dtype: str = choice("weights", WIRES)
    """The dtype in which gradients are added over ranks; `weights`: the dtype of computation."""
    output_dtype: str = choice("weights", WIRES)
    """The dtype to which the model's outputs are cast before the loss."""
    reduce_scatter: str = serving("", "reduce_scatter")
    """The algorithm that adds gradients over ranks; empty: that of `order`."""
    all_gather: str = serving("", "all_gather")
    """The algorithm that gathers weights, or gradients; empty: that of `order`."""
    broadcast: str = serving("", "broadcast")
    quantized_weights: str = choice("none", QUANTIZED)
    """The wire format in which Stage III gathers weights, in blocks that begin with each shard: qwZ of ZeRO++."""
    quantized_gradients: str = choice("none", QUANTIZED)
    """The wire format of gradients in reductions: decoded before each addition, encoded again for the next hop."""
    quantized_block: int = integer(256, at_least=0, at_most=10**9)
    """The number of elements that share a scale; 0: all of a message."""
    error_feedback: bool = switch(False)
    """Whether the quantisation error of gradients is added to the next quantised values."""
    gradients: str = choice("reduce_scatter", REDUCTIONS)
    publish: str = choice("weights", PUBLICATIONS)
    reshard_after_forward: bool = switch(True)
    prefetch: bool = switch(False)
    overlap: bool = switch(False)
    recompute: bool | tuple[int, ...] = switch_or_integers(False)
    """Whether units keep only their input and are run again before backward; or the layers whose units do."""
    recompute_keeps: str = choice("", RECOMPUTE_KEEPS)
    """The results that these units keep in addition to their input, so that only the rest is computed again."""
    offload_activations: bool = switch(False)
    """Whether these inputs are kept in a file, and read ahead for backward."""
    offload_optimizer: str = choice("none", FAR)
    """The tier that keeps optimizer state, if not the device; the host then updates: ZeRO-Offload, ZeRO-Infinity."""
    offload_parameters: str = choice("none", FAR)
    """The tier that keeps Stage III's shards of the weights, if not the device: ZeRO-Infinity."""
    delayed_update: bool = switch(False)
    """Whether the host updates while the next step computes, so that each step applies the update of the previous one.
    """
    offload_folder: str = text("")
    """The folder of these files; empty: the system's folder of temporary files."""
    bucket_mb: float = number(0.0, at_least=0)
    """The largest buffer of a collective; 0: a unit as a whole."""

    def __post_init__(self) -> None:
        settle(self)

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * MEGABYTE)

    @property
    def directions(self) -> Directions:
        """The ranks that share a micro-batch."""
        return Directions.named(vars(self))

    def group_of(self, ranks: int) -> int:
        """The ranks among `ranks` that share one copy of the sharded states.

        >>> Parallel(replicas=2).group_of(8), Parallel(shard_ranks=2).group_of(8), Parallel().group_of(8)
        (4, 2, 8)
        """
        return self.shard_ranks or ranks // max(self.replicas, 1)


def unset(key: "dataclasses.Field[Any]") -> Any:
    """The field of a key that a row may leave out; without it the row has that of [parallel]."""
    rule = key.metadata["rule"]
    return dataclasses.field(
        default=None, metadata={"rule": dataclasses.replace(rule, optional=True) if isinstance(rule, PartOf) else rule})


VariantKeys: Any = dataclasses.make_dataclass("VariantKeys", [
    ("name", str, text("")), ("stage", str, part_of("zero3", STAGES, as_stage)),
    *((key.name, Any, unset(key)) for key in dataclasses.fields(Parallel) if key.name not in OF_ALL_ROWS),
], frozen=True)
"""A name, a stage, and every key of [parallel] that rows may differ in, unset."""


class Variant(VariantKeys):  # type: ignore[misc]
    """A row of its own in the comparison: a stage, with some keys of [parallel] replaced."""

    def __post_init__(self) -> None:
        settle(self)

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

    reference: bool = switch(True)
    checksums: bool = switch(False)
    """Whether each message of a row contains a checksum and its number, which its receiver checks."""
    test_accuracy: float = number(0.0, at_least=0, below=1)
    """The claimed test accuracy; for sequences, the share without a mistake."""
    test_loss: float | str = number_or_word(0.0, "bigram", at_least=0)
    """The upper limit of a text's test loss, in nats per token; or "bigram" for that of the data's bigrams. 0: no
    claim."""
    same_bits_on: tuple[int, ...] = integers((), at_least=1)
    """Other numbers of ranks to train on as well; the weights must be the same."""
    does_not_fit: tuple[str, ...] = subset(STAGE_KEYS)
    """The stages that must not fit under the memory limit; in a plan, on the device."""
    fits: tuple[str, ...] = subset(STAGE_KEYS)
    """The stages that must fit on a plan's device."""
    mfu: tuple[float, ...] = numbers()
    """The allowed range of the model FLOPs utilisation of a plan's fastest row that fits."""
    same_weights: bool | None = maybe()
    """Whether all rows must end with the same weights, or must not."""
    volumes: tuple[float, ...] = numbers()
    """The bytes that each row must send per rank and step, in units of P (N − 1)/N."""
    messages: tuple[int, ...] = integers((), at_least=0)
    """The messages that each row must send in a step, for the rank that sends the most."""
    largest_messages: tuple[int, ...] = integers((), at_least=0)
    """The bytes of the largest message of each row."""
    activations: tuple[int, ...] = integers((), at_least=0)
    """The bytes of activations at the peak of each row, for the rank with the most."""
    between_bytes: tuple[int, ...] = integers((), at_least=0)
    """The bytes that leave hosts in a step of each row, over all ranks."""
    kept_bytes: tuple[int, ...] = integers((), at_least=0)
    """The bytes of model states that a rank of each row keeps between steps, for the rank with the most."""
    fragmentation: bool = switch(False)
    """Whether to compute the memory that allocators with a fixed address space would need for the last step."""
    beyond_peak: tuple[int, ...] = integers((), at_least=0)
    """The bytes beyond the peak that first fit needs for each row."""
    beyond_peak_laid_out: tuple[int, ...] = integers((), at_least=0)
    """The bytes beyond the peak that first fit needs if long-lived arrays are laid out in one block beforehand."""

    def of_row(self, number: int) -> dict[str, Any]:
        """The claims about row `number`, for keys with one value for each row."""
        names = {"volumes": "volume", "largest_messages": "largest_message"}
        return {names.get(key, key): getattr(self, key)[number] for key in ROW_BY_ROW if getattr(self, key)}


@dataclass(frozen=True)
class Checkpoint:
    """The folder of saved training states; without one nothing is saved."""

    folder: str = text("")
    every: int = integer(1, at_least=1)
    """The number of steps between two checkpoints; the last step is always saved."""
    keep: int = integer(2, at_least=1)
    """The number of checkpoints of each row to keep."""
