"""The conditions that the keys of a scenario must satisfy together, in one table: keys, when violated, message.

A test gets a row, or [parallel] if there are no variants, as one namespace of the keys of [world], [check], [train],
[model] and [parallel] with some derived numbers. A condition is violated if its test returns anything but an empty
value, `seen` in the message, which may also contain names of the namespace. It is reported at the first of its keys
that an override or the file sets.

Keys without effect on a row, because its stage, its share of the batch, or one rank of a pipeline leaves no choice, are
another matter: a [[variant]] that sets such a key for its own stage is refused. [parallel] applies to all rows, so it
may contain such a key; every report names the rows without its effect, with the reason.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any

from zerosim.collectives.own import SERVING
from zerosim.core.errors import UsageError
from zerosim.core.parts import Name, Named
from zerosim.models import MODELS
from zerosim.models.units import runs_of
from zerosim.scenario.reading import KeyPath
from zerosim.scenario.sections import MEGABYTE, ROW_BY_ROW, ModelKeys, Parallel, Sections
from zerosim.scenario.values import shortened
from zerosim.stages import STAGES, Stage
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.stages.pipeline import pieces

WIDEST_BYTES = 8
"""The widest element of a message in bytes: an integer of an order-free sum, a float64, or a norm."""
CHUNK_BY_CHUNK = ("", "ring", "direct", "rabenseifner")
"""The algorithms that never send neighbouring chunks in one message."""
QUANTIZED = ("quantized_weights", "quantized_gradients")
ON_HOSTS = ("two_level", "two_hop")
"""The orders that add within hosts first."""
NUMBERS_OF_RANKS = ("tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks")
USUAL = Parallel()
IN_EVERY_STAGE = "layered"
"""The accumulation that every stage has."""
OF_MATRICES = {"precision": ("fp32", "fp64"), "publish": ("weights",), "offload_optimizer": ("none",),
               "tensor_ranks": (1,), "expert_ranks": (1,)}
"""Keys that an optimizer of whole matrices needs: weights without a master copy, and no pieces of a matrix."""


BY_STAGE: Mapping[str, Callable[[Stage], str]] = {
    "accumulation": lambda stage: "" if stage.may_reduce_parts else "it reduces once a step, at the boundary",
    "gradients": lambda stage: "its ranks keep shards of gradients, and need no others" if stage.gathers else "",
    "publish": lambda stage: (
        "weights stay sharded, and are gathered when they are used" if stage.gathers else
        "" if stage.publishes else "every rank updates all weights, and publishes none"),
    **dict.fromkeys(
        ("reshard_after_forward", "prefetch", "secondary_ranks", "quantized_weights", "offload_parameters",
         "param_dtype"),
        lambda stage: "" if stage.gathers else "it gathers no weights during the pass"),
}
"""The keys that may have no effect on a stage, and the reason why; empty if they have one."""


def ignored_by_stage(stage: Name, keys: Mapping[str, Any]) -> dict[str, str]:
    """The keys among `keys` without effect on a stage, with the reason.

    >>> ignored_by_stage("ddp", {"prefetch": True, "overlap": True})
    {'prefetch': 'it gathers no weights during the pass'}
    """
    reasons = {key: why(STAGES[stage]) for key, why in BY_STAGE.items()
               if keys.get(key) not in (None, getattr(USUAL, key), IN_EVERY_STAGE)}
    return {key: why for key, why in reasons.items() if why}


def ignored(stage: Name, keys: Mapping[str, Any], micro_batches_each: int) -> dict[str, str]:
    """The keys among `keys` that a row ignores, with the reason; accumulation needs several micro-batches on a rank.

    >>> ignored("zero2", {"accumulation": "micro_batch"}, 1)
    {'accumulation': 'a rank has one micro-batch in a step'}
    """
    reasons = {}
    if keys.get("pipeline_ranks", 1) == 1 and keys.get("schedule", USUAL.schedule) != USUAL.schedule:
        reasons["schedule"] = "it has no pipeline"
    if micro_batches_each == 1 and keys.get("accumulation", "boundary") != "boundary":
        reasons["accumulation"] = "a rank has one micro-batch in a step"
    return {**ignored_by_stage(stage, keys), **reasons}


class Keys(SimpleNamespace):
    """The keys of a row by name, as items too."""

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def sets(self, key: str) -> bool:
        """Whether a key of [parallel] has another than its usual value."""
        return bool(self[key] != getattr(USUAL, key))


Test = Callable[[Keys], Any]
Condition = tuple[str, Test, str]


def keys_of(scenario: Sections, parallel: Parallel, rows: Iterable[str], last: int) -> Keys:
    """The namespace of a row; `last` is the last layer."""
    sections = (scenario.world, scenario.check, scenario.train, scenario.model, parallel)
    row = Keys(**{key.name: getattr(section, key.name) for section in sections for key in fields(section)})
    places = parallel.directions.places
    ranks = scenario.world.ranks // places
    lower = row.micro_batches // ranks * ranks if ranks else 0
    vars(row).update(
        parallel=parallel, model=scenario.model, names=list(rows), last=last,
        data_ranks=ranks, group=row.shard_ranks or ranks, numbers=(ranks, *row.same_bits_on),
        words=f"{'data ' * (places > 1)}ranks", shared=f" / {places} that share each" if places > 1 else "",
        places=places, least=ranks * WIDEST_BYTES, nearest=f"{lower} or {lower + ranks}" if lower else f"{ranks}",
        split=next((key for key in NUMBERS_OF_RANKS if row[key] > 1), ""), listed="; ".join(rows),
        of_rank=row.micro_batches // ranks if ranks else 0)
    return row


def paths(keys: str, variant: int | None) -> Iterator[KeyPath]:
    """The paths of keys; those of [parallel] are first sought in the row's variant.

    >>> list(paths("parallel.order world.ranks", 0))
    [('variant', 0, 'order'), ('parallel', 'order'), ('world', 'ranks')]
    """
    for key in keys.split():
        path = tuple(key.split("."))
        if path[0] == "parallel" and variant is not None:
            yield ("variant", variant, *path[1:])
        yield path


def refuse(scenario: Sections, rows: Iterable[str]) -> None:
    """Raise `ScenarioError` for the first violated condition of a scenario with these rows."""
    names, origin, model = tuple(rows), scenario.origin, scenario.model
    for key in model.others_keys:
        if getattr(model, key) != getattr(ModelKeys, key):
            kinds = " or ".join(name for name, kind in MODELS.items() if key in kind.own_keys)
            raise origin.error(f"model.{key} is for model.kind {kinds}, and this is {model.kind}; leave it out, or set "
                               f"model.kind to {kinds}", ("model", key), at_key=True)
    with origin.blaming(("model", "kind")):
        last = model.layer_count - 1
    for index, variant in enumerate(scenario.variant):
        for key, why in ignored_by_stage(variant.stage, variant.keys_set).items():
            raise origin.error(
                f"variant[{index}].{key} = {json.dumps(variant.keys_set[key])} does nothing in stage {variant.stage}: "
                f"{why}; leave it out, or name another stage", ("variant", index, key), at_key=True)
    cases: list[tuple[int | None, Keys]] = [
        (index, keys_of(scenario, variant.applied(scenario.parallel), names, last))
        for index, variant in enumerate(scenario.variant)]
    cases = cases or [(None, keys_of(scenario, scenario.parallel, names, last))]
    for keys, test, message in CONDITIONS:
        for number, row in cases:
            row.seen = test(row)
            if row.seen:
                words = {key: str(item).lower() if isinstance(item, bool) else item for key, item in vars(row).items()}
                raise origin.error(message.format_map(words), *paths(keys, number))


def first(seen: Iterable[Any]) -> str:
    """The first of what was seen, in words; empty if nothing was."""
    return next(map(str, seen), "")


def pieces_problem(row: Keys) -> str:
    """Why the layers cannot be divided into the pieces of a pipeline."""
    try:
        pieces(row.model.units_of(row.units), row.parallel.pieces, row.pipeline_layers)
    except UsageError as error:
        return str(error)
    return ""


def misses_layers(row: Keys) -> str:
    """The layers that units name, if they are not all layers, each once, and in order but for the ends in one unit."""
    if isinstance(row.units, str):
        return ""
    named = [layer for unit in row.units for layer in unit]
    ends = any({0, row.last} <= set(unit) for unit in row.units)
    right = (sorted(named) if ends else named) == list(range(row.last + 1)) and (ends or not row.model.tied)
    return "" if right else shortened(str(named))


def serves_not(kind: str, row: Keys) -> str:
    """The limit of a named algorithm, and the number of ranks that it does not serve."""
    counts = (row.group, row.data_ranks // max(row.group, 1))[: 2 if kind == "reduce_scatter" else 1]
    return first(f"{SERVING[kind][row[kind]].limit}, not {count} {row.words}" for count in counts
                 if row[kind] and not SERVING[kind][row[kind]].serves(count))


def needs(key: str, does: str, other: str, usual: object) -> Condition:
    """The refusal of a key of [parallel] that does nothing while another has its usual value."""
    return (f"parallel.{key} parallel.{other}", lambda row: row.sets(key) and row[other] == usual,
            f"parallel.{key} {does}; set parallel.{other} too, or leave {key} out")


def excludes(key: str, why: str, other: str, test: Test | None = None) -> Condition:
    """The refusal of a key of [parallel] beside another key: where `test` holds or, without one, both are set."""
    section, _, name = other.rpartition(".")
    return (f"parallel.{key} {section or 'parallel'}.{name}",
            lambda row: row.sets(key) and (test(row) if test else row.sets(name)),
            f"parallel.{key} = {{{key}}} {why}, and {section or 'parallel'}.{name} is {{{name}}}; change one of them")


def in_pipeline(keys: str, test: Test, why: str) -> Condition:
    """The refusal of keys that do not go with a pipeline."""
    return (f"{keys} parallel.pipeline_ranks", lambda row: row.pipeline_ranks > 1 and test(row),
            f"{keys.split(maxsplit=1)[0]} does not go with parallel.pipeline_ranks: {why}")


def split(keys: str, test: Test, why: str) -> Condition:
    """The refusal of keys that do not go with ranks that train one copy of the model."""
    return keys, lambda row: row.split and test(row), f"{keys} does not go with parallel.{{split}}: {why}; remove one"


CONDITIONS: tuple[Condition, ...] = (
    ("check.mfu", lambda row: len(row.mfu) not in (0, 2) and len(row.mfu),
     "check.mfu must be an array of length 2, the least and the greatest, found {seen}"),
    # Ranks that train one copy of the model.
    (" ".join(f"parallel.{key}" for key in NUMBERS_OF_RANKS) + " world.ranks",
     lambda row: row.ranks % row.places and " times ".join(
         f"{key} = {row[key]}" for key in NUMBERS_OF_RANKS if row[key] > 1),
     "parallel.{seen} does not divide world.ranks = {ranks}; set world.ranks to a multiple of {places}"),
    *(needs(key, "gives each tensor rank a piece", "tensor_ranks", 1)
      for key in ("sequence_parallel", "vocabulary_parallel", "partition_activations")),
    needs("context_by", "is how context ranks compute attention", "context_ranks", 1),
    *(needs(key, "is for the ranks of a pipeline", "pipeline_ranks", 1) for key in ("model_chunks", "pipeline_layers")),
    split("check.same_bits_on", lambda row: row.same_bits_on, "it counts ranks of one direction"),
    split("parallel.order", lambda row: row.order in ON_HOSTS, "hosts have ranks of several directions"),
    (" ".join(f"parallel.{key}" for key in QUANTIZED),
     lambda row: row.split not in ("", "pipeline_ranks") and first(key for key in QUANTIZED if row.sets(key)),
     "parallel.{seen} does not go with parallel.{split}: places would round copies apart; remove one"),
    in_pipeline("parallel.stages", lambda row: "zero3" in row.stages,
                "Stage III would gather a rank's weights twice for every micro-batch; leave zero3 out"),
    in_pipeline("parallel.stages", lambda row: any(isinstance(stage, Named) for stage in row.stages),
                "a schedule has the loops that a stage of yours writes; name shipped stages"),
    in_pipeline("parallel.accumulation", lambda row: row.accumulation == "layered",
                "its ranks run one micro-batch after another; choose boundary or micro_batch"),
    *(in_pipeline(f"parallel.{key}", partial(Keys.sets, key=key),
                  "inputs of several micro-batches are in use at once; leave it out")
      for key in ("offload_activations", "partition_activations")),
    in_pipeline("parallel.quantized_gradients", lambda row: row.sets("quantized_gradients") and any(
        runs_of(unit)[1:] for unit in row.model.units_of(row.units)),
                "embeddings that both ends share would lose two parts; untie them"),
    in_pipeline("model.frozen", lambda row: row.frozen,
                "no gradient would reach the ranks of frozen layers; train all layers"),
    in_pipeline("parallel.model_chunks parallel.schedule",
                lambda row: (row.model_chunks > 1) != (row.schedule == "interleaved_1f1b"),
                "interleaved_1f1b has several chunks a rank, and other schedules one; change one of them"),
    ("train.micro_batches parallel.schedule",
     lambda row: row.schedule == "interleaved_1f1b" and row.of_rank % row.pipeline_ranks,
     "parallel.schedule {schedule} needs a multiple of {pipeline_ranks} micro-batches a rank, and there are {of_rank}"),
    ("parallel.pipeline_layers parallel.pipeline_ranks", lambda row: row.pipeline_ranks > 1 and pieces_problem(row),
     "parallel.pipeline_layers: {seen}"),

    # Micro-batches, ranks and hosts.
    ("train.micro_batches world.ranks", lambda row: row.micro_batches % row.data_ranks,
     "train.micro_batches must be a multiple of world.ranks{shared} = {data_ranks}, found {micro_batches}; set it to "
     "{nearest}, or world.ranks to a divisor of {micro_batches}"),
    ("train.micro_batch parallel.expert_ranks",
     lambda row: "experts" in MODELS[row.kind].own_keys and row.micro_batch % row.expert_ranks,
     "train.micro_batch must be a multiple of parallel.expert_ranks = {expert_ranks}, found {micro_batch}"),
    ("parallel.order world.ranks train.micro_batches", lambda row: row.order == "tree" and any(
        number.bit_count() != 1 for number in (row.micro_batches, *row.numbers)),
     "parallel.order tree needs powers of two for world.ranks{shared} and train.micro_batches, found {data_ranks} and "
     "{micro_batches}; set them so, or parallel.order to exact"),
    ("check.same_bits_on",
     lambda row: first(ranks for ranks in row.same_bits_on if row.micro_batches % ranks or ranks > row.ranks),
     "check.same_bits_on names {seen} ranks; give divisors of train.micro_batches = {micro_batches}, at most {ranks}"),
    ("check.process_memory train.steps", lambda row: row.process_memory and row.steps < 8,
     "check.process_memory compares the last steps with those in the middle, so train.steps must be at least 8, found "
     "{steps}"),
    ("parallel.order", lambda row: row.order in ON_HOSTS and not row.ranks_per_host,
     "parallel.order {order} adds within hosts first; set world.ranks_per_host, or order to ring"),
    ("world.ranks_per_host world.ranks", lambda row: row.ranks_per_host and first(
        number for number in (row.ranks, *row.same_bits_on)
        if number > row.ranks_per_host and number % row.ranks_per_host),
     "world.ranks_per_host = {ranks_per_host} does not divide {seen} ranks; give a divisor, or 0 for the real hosts"),

    # Groups of ranks.
    *((f"parallel.{key} world.ranks",
       lambda row, key=key: row[key] and first(number for number in row.numbers if number % row[key]),
       f"parallel.{key} = {{{key}}} does not divide {{seen}} {{words}}; give a divisor, or 0 for {instead}")
      for key, instead in (
        ("shard_ranks", "one group of all ranks"), ("secondary_ranks", "no second copy"))),
    excludes("secondary_ranks", "keeps a second copy of weights that all ranks share", "shard_ranks",
             lambda row: row.group != row.data_ranks),
    excludes("secondary_ranks", "needs a divisor or a multiple of the ranks of a host", "order",
             lambda row: row.order in ON_HOSTS and row.ranks_per_host and row.secondary_ranks % row.ranks_per_host
             and row.ranks_per_host % row.secondary_ranks),
    excludes("shard_ranks", "makes several groups, whose sums ring, rank and tree add", "order",
             lambda row: row.order in ("exact", *ON_HOSTS) and row.group != row.data_ranks),

    # Precisions and formats.
    *(excludes(key, "has fewer bits than its gradients", "train.precision", lambda row: row.precision == "fp64")
      for key in ("accumulate_dtype", "reduce_dtype", "output_dtype", *QUANTIZED)),
    *(excludes(key, "casts float32 weights", "train.precision", lambda row: row.precision != "fp32")
      for key in ("param_dtype", "autocast")),
    excludes("quantized_gradients", "encodes chunks that are sent one by one, as by ring or rank", "order",
             lambda row: row.order in ("tree", "exact")),
    excludes("quantized_gradients", "adds over all ranks at once", "shard_ranks",
             lambda row: row.group != row.data_ranks),
    excludes("autocast", "casts weights for each operation", "param_dtype"),
    excludes("quantized_gradients", "encodes a whole chunk", "bucket_mb"),
    excludes("quantized_gradients", "sends chunks by the reduce-scatter of parallel.order", "reduce_scatter"),
    excludes("quantized_weights", "sends shards of bytes by the all-gather of parallel.order", "all_gather"),
    excludes("secondary_ranks", "keeps a second copy that a ring gathers", "all_gather"),
    excludes("secondary_ranks", "keeps a second copy for backward", "reshard_after_forward"),
    excludes("prefetch", "gathers weights ahead of each use", "reshard_after_forward"),
    excludes("partition_activations", "divides what all tensor ranks have", "sequence_parallel"),
    excludes("partition_activations", "divides what all tensor ranks have, as an mlp has not", "model.kind",
             lambda row: row.kind == "mlp"),

    # When gradients are added, and weights gathered.
    excludes("accumulation", "adds ranks before micro-batches, as ring and rank can", "order",
             lambda row: row.accumulation == "micro_batch" and row.order in ("tree", "exact")),

    # Layers and units.
    *((f"{section}.{key}", lambda row, key=key: isinstance(row[key], tuple) and first(
        layer for layer in row[key] if layer > row.last), f"{section}.{key} names layer {{seen}}; the last is {{last}}")
      for section, key in (("model", "frozen"), ("parallel", "recompute"))),
    ("model.frozen parallel.units", lambda row: first(
        list(unit) for unit in row.model.units_of(row.units) if 0 < len({*row.frozen} & {*unit}) < len(unit)),
     "the unit of layers {seen} is partly frozen; freeze all of its layers or none, or change parallel.units"),
    ("parallel.units model.tied_embeddings", misses_layers,
     "parallel.units must name layers 0 to {last}, each once and in order, tied ones in one unit; found {seen}"),
    ("parallel.bucket_mb world.ranks",
     lambda row: row.bucket_mb and row.parallel.bucket_bytes < row.least and f"{row.least / MEGABYTE:g}",
     "parallel.bucket_mb must be 0, or hold an element for each of {data_ranks} {words}: {seen}, found {bucket_mb:g}"),

    # Recomputation, and optimizers of whole matrices.
    *(needs(key, "is for recomputed units", "recompute", False)
      for key in ("offload_activations", "partition_activations", "recompute_keeps")),
    ("train.optimizer", lambda row: OPTIMIZERS[row.optimizer].of_matrix is not None and first(
        f"{key} = {row[key]}" for key, allowed in OF_MATRICES.items() if row[key] not in allowed),
     "train.optimizer {optimizer} rewrites differences of whole matrices on the device, and {seen}; change one"),

    # Named algorithms.
    *((f"parallel.{kind} world.ranks", partial(serves_not, kind),
       f"parallel.{kind} {{{kind}}} serves {{seen}}; use a different algorithm or a different number of them")
      for kind in SERVING),
    ("parallel.bucket_mb parallel.reduce_scatter parallel.all_gather", lambda row: row.bucket_mb and first(
        row[kind] for kind in ("reduce_scatter", "all_gather") if row[kind] not in CHUNK_BY_CHUNK),
     "parallel.bucket_mb cuts chunks into pieces, and {seen} may send neighbouring chunks in one message; remove one"),
    excludes("reduce_scatter", "adds in a fixed order", "order", lambda row: row.order == "exact"),

    # Checks.
    *((f"check.{key}", lambda row, key=key: len(row[key]) not in (0, len(row.names)) and len(row[key]),
       f"check.{key} has {{seen}} numbers; give one for each row: {{listed}}") for key in ROW_BY_ROW),
)
