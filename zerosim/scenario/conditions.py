"""The conditions that the keys of a scenario must satisfy together, in one table: keys, when violated, message.

A test gets a row, or [parallel] if there are no variants, as one namespace of the keys of [world], [check], [train],
[model] and [parallel] with some derived numbers. A condition is violated if its test returns anything but an empty
value, `found` in the message, which may also contain names of the namespace. It is reported at the first of its keys
that an override or the file sets.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from zerosim.collectives.own import SERVING
from zerosim.core.errors import UsageError
from zerosim.core.parts import Named
from zerosim.models import MODELS
from zerosim.models.units import runs_of
from zerosim.scenario.ignored import USUAL, ignored_by_stage
from zerosim.scenario.reading import KeyPath
from zerosim.scenario.sections import MEGABYTE, ROW_BY_ROW, ModelKeys, Parallel, Sections
from zerosim.scenario.values import shortened
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.stages.pipeline import pieces

WIDEST_BYTES = 8
"""The widest element of a message in bytes: an integer of an order-free sum, a float64, or a norm."""
ENOUGH_TO_JOIN = 8
"""The number of ranks on which an algorithm sends neighbouring chunks in one message, if it ever does."""
ON_HOSTS = ("two_level", "two_hop")
"""The orders that add within hosts first."""
NUMBERS_OF_RANKS = ("tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks")


class Keys(dict[str, Any]):
    """The keys of a row by name, as attributes too."""

    def __getattr__(self, key: str) -> Any:
        return self[key]


Test = Callable[[Keys], Any]
Condition = tuple[str, Test, str]
"""The keys between blanks, the test, and the message."""


def keys_of(scenario: Sections, parallel: Parallel, rows: Iterable[str]) -> Keys:
    """The namespace of a row."""
    sections = (scenario.world, scenario.check, scenario.train, scenario.model, parallel)
    row = Keys({each.name: getattr(section, each.name) for section in sections for each in fields(section)})
    places = parallel.directions.places
    ranks = scenario.world.ranks // places
    group = parallel.group_of(ranks)
    key = "shard_ranks" if parallel.shard_ranks else "replicas"
    lower = row.micro_batches // ranks * ranks if ranks else 0
    row.update(
        scenario=scenario, parallel=parallel, model=scenario.model, names=list(rows), listed="; ".join(rows),
        places=places, data_ranks=ranks, group=group, numbers=(ranks, *row.same_bits_on),
        rank_words=f"{'data ' * (places > 1)}ranks", shared=f" / {places} that share each" if places > 1 else "",
        grouping=f"{key} = {row[key]}" if group != ranks else "", least=ranks * WIDEST_BYTES,
        nearest=f"{lower} or {lower + ranks}" if lower else f"{ranks}",
        split=next((each for each in NUMBERS_OF_RANKS if row[each] > 1), ""), in_pipeline=row.pipeline_ranks > 1,
        each=row.micro_batches // ranks if ranks else 0)
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
    names = tuple(rows)
    for key, kinds in others_keys():
        if key in scenario.model.others_keys and getattr(scenario.model, key) != getattr(ModelKeys, key):
            raise scenario.origin.error(
                f"model.{key} is for model.kind {kinds}, and this is {scenario.model.kind}; leave it out, or set "
                f"model.kind to {kinds}", ("model", key), at_key=True)
    with scenario.origin.blaming(("model", "kind")):
        last = scenario.model.layer_count - 1
    cases: list[tuple[int | None, Keys]] = [
        (index, keys_of(scenario, each.applied(scenario.parallel), names))
        for index, each in enumerate(scenario.variant)] or [(None, keys_of(scenario, scenario.parallel, names))]
    for index, variant in enumerate(scenario.variant):
        for key, why in ignored_by_stage(variant.stage, variant.keys_set).items():
            raise scenario.origin.error(
                f"variant[{index}].{key} = {json.dumps(variant.keys_set[key])} does nothing in stage {variant.stage}: "
                f"{why}; leave it out, or name another stage", ("variant", index, key), at_key=True)
    for keys, test, message in CONDITIONS:
        for number, row in cases:
            row["last"] = last
            row["found"] = test(row)
            if row.found:
                raise scenario.origin.error(message.format_map(row), *paths(keys, number))


def others_keys() -> Iterator[tuple[str, str]]:
    """The keys of [model] that only some kinds read, with these kinds."""
    for key in dict.fromkeys(key for kind in MODELS.values() for key in kind.own_keys):
        yield key, " or ".join(name for name, kind in MODELS.items() if key in kind.own_keys)


def first(found: Iterable[Any]) -> str:
    """The first of what was found, in words; empty if nothing was."""
    return next(map(str, found), "")


def is_set(*keys: str) -> Test:
    """The test whether keys of [parallel] have others than their usual values."""
    return lambda row: all(row[key] != getattr(USUAL, key) for key in keys)


def set_and(key: str, test: Test) -> Test:
    """The test whether a key of [parallel] has another than its usual value, and what a test finds then."""
    return lambda row: is_set(key)(row) and test(row)


def is_one(key: str, row: Keys) -> bool:
    return bool(row[key] == 1)


def in_pipeline(test: Test) -> Test:
    return lambda row: row.in_pipeline and test(row)


def twice(key: str) -> Test:
    """The test that finds the first value of a key that has stood before."""
    def test(row: Keys) -> Any:
        values = row[key] if isinstance(row[key], tuple) else ()
        return first(json.dumps(str(each) if isinstance(each, Named) else each)
                     for number, each in enumerate(values) if each in values[:number])

    return test


def pieces_problem(row: Keys) -> str:
    """Why the layers cannot be divided into the pieces of a pipeline."""
    try:
        pieces(row.model.units_of(row.units), row.parallel.pieces, row.pipeline_layers)
    except UsageError as error:
        return str(error)
    return ""


def ends_in_one_unit(row: Keys) -> bool:
    return any({0, row.last} <= set(unit) for unit in row.units)


def misses_layers(row: Keys) -> str:
    """The layers that units name, if they are not all layers, each once."""
    if isinstance(row.units, str):
        return ""
    named = [layer for unit in row.units for layer in unit]
    free = row.model.tied or ends_in_one_unit(row)
    return shortened(str(named)) if (sorted(named) if free else named) != list(range(row.last + 1)) else ""


def no_divisor(key: str, row: Keys) -> str:
    """The number of ranks that a key does not divide, and its divisors."""
    return first(f"{number} {row.rank_words}; give a divisor "
                 f"({', '.join(str(each) for each in range(1, min(number, 64) + 1) if number % each == 0)})"
                 for number in row.numbers if row[key] and number % row[key])


def serves_not(kind: str, row: Keys) -> str:
    """The limit of a named algorithm, and the number of ranks that it does not serve."""
    counts = (row.group, row.data_ranks // max(row.group, 1))[: 2 if kind == "reduce_scatter" else 1]
    return first(f"{SERVING[kind][row[kind]].limit}, not {count} {row.rank_words}" for count in counts
                 if row[kind] and not SERVING[kind][row[kind]].serves(count))


def joins(kind: str, row: Keys) -> bool:
    """Whether a named algorithm may send neighbouring chunks in one message."""
    named = SERVING[kind][row[kind]] if row[kind] else None
    return named is not None and (named.users or any(
        len(message) > 1 for rank in range(ENOUGH_TO_JOIN) for message in named.volume(rank, ENOUGH_TO_JOIN, 0)))


def too_few(key: str, row: Keys) -> str:
    """The number of claims of a key, and that of rows, if they differ."""
    given = len(row[key])
    return f"{given} numbers for {len(row.names)} rows" if given not in (0, len(row.names)) else ""


def unclaimed(row: Keys) -> str:
    """The first stage that is said not to fit and that no row has, unless overrides have changed the rows."""
    origin = row.scenario.origin
    if origin.overridden("parallel", "variant") and not origin.is_override(("check", "does_not_fit")):
        return ""
    stages = [each.stage for each in row.scenario.variant] or row.scenario.parallel.stages
    return first(each for each in row.does_not_fit if each not in stages)


def of_matrices(key: str, allowed: tuple[object, ...], row: Keys) -> str:
    """The value of a key that does not go with an optimizer of whole matrices."""
    whole = OPTIMIZERS[row.optimizer].of_matrix is not None
    return json.dumps(row[key]) if whole and row[key] not in allowed else ""


CONDITIONS: tuple[Condition, ...] = (
    ("parallel.stages", lambda row: twice("stages")(Keys(stages=row.scenario.parallel.stages)),
     "parallel.stages names {found} twice"),
    ("parallel.recompute", twice("recompute"), "parallel.recompute names {found} twice"),
    *((f"check.{key}", twice(key), f"check.{key} names {{found}} twice")
      for key in ("does_not_fit", "fits", "collectives")),

    # Ranks that train one copy of the model.
    (" ".join(f"parallel.{key}" for key in NUMBERS_OF_RANKS) + " world.ranks",
     lambda row: row.ranks % row.places and " times ".join(
         f"{key} = {row[key]}" for key in NUMBERS_OF_RANKS if row[key] > 1),
     "parallel.{found} does not divide world.ranks = {ranks}; set world.ranks to a multiple of {places}"),
    *((f"parallel.{key} parallel.{needs}", set_and(key, partial(is_one, needs)),
       f"parallel.{key} {does}, and {needs} is 1; set {needs}, or leave it out") for key, needs, does in (
        ("sequence_parallel", "tensor_ranks", "gives each tensor rank a piece of the sequence"),
        ("vocabulary_parallel", "tensor_ranks", "gives each tensor rank a piece of the vocabulary"),
        ("partition_activations", "tensor_ranks", "divides inputs by tensor ranks"),
        ("context_by", "context_ranks", "is how context ranks compute attention"),
        ("model_chunks", "pipeline_ranks", "is for the ranks of a pipeline"),
        ("pipeline_layers", "pipeline_ranks", "is for the ranks of a pipeline"))),
    *((key, test, f"{key} does not go with parallel.{{split}}: {why}; remove one") for key, test, why in (
        ("check.same_bits_on", lambda row: row.split and row.same_bits_on, "it counts ranks of one direction"),
        ("parallel.order", lambda row: row.split and row.order in ON_HOSTS, "hosts have ranks of several directions"),
        *((f"parallel.{key}", lambda row, key=key: row[key] != "none" and row.split not in ("", "pipeline_ranks"),
           "places would round copies apart") for key in ("quantized_weights", "quantized_gradients")))),
    *((f"{key} parallel.pipeline_ranks", in_pipeline(test), f"{key} does not go with parallel.pipeline_ranks: {why}")
      for key, test, why in (
        ("parallel.stages", lambda row: "zero3" in row.stages,
         "Stage III would gather a rank's weights twice for every micro-batch; leave zero3 out"),
        ("parallel.stages", lambda row: any(isinstance(each, Named) for each in row.stages),
         "a schedule has the loops that a stage of yours writes; name shipped stages"),
        ("parallel.accumulation", lambda row: row.accumulation == "layered",
         "its ranks run one micro-batch after another; choose boundary or micro_batch"),
        *((f"parallel.{key}", is_set(key), "inputs of several micro-batches are in use at once; leave it out")
          for key in ("offload_activations", "partition_activations")),
        ("parallel.quantized_gradients", set_and(
            "quantized_gradients", lambda row: any(runs_of(each)[1:] for each in row.model.units_of(row.units))),
         "embeddings that both ends share would lose two parts; untie them"),
        ("model.frozen", lambda row: row.frozen,
         "no gradient would reach the ranks of frozen layers; train all layers"),
        ("parallel.model_chunks", lambda row: row.model_chunks > 1 and row.schedule != "interleaved_1f1b",
         "other schedules have one chunk a rank; set parallel.schedule to interleaved_1f1b"),
        ("parallel.schedule", lambda row: row.model_chunks == 1 and row.schedule == "interleaved_1f1b",
         "interleaved_1f1b needs several chunks a rank; set parallel.model_chunks"))),
    ("train.micro_batches parallel.schedule", in_pipeline(
        lambda row: row.schedule == "interleaved_1f1b" and row.each % row.pipeline_ranks),
     "parallel.schedule interleaved_1f1b needs a multiple of pipeline_ranks = {pipeline_ranks} micro-batches on each "
     "rank, found {each}; change train.micro_batches"),
    ("parallel.pipeline_layers", in_pipeline(set_and("pipeline_layers", pieces_problem)),
     "parallel.pipeline_layers: {found}"),
    ("parallel.pipeline_ranks", in_pipeline(pieces_problem), "parallel.pipeline_ranks: {found}"),

    # Micro-batches, ranks and hosts.
    ("train.micro_batches world.ranks", lambda row: row.micro_batches % row.data_ranks,
     "train.micro_batches must be a multiple of world.ranks{shared} = {data_ranks}, found {micro_batches}; set it to "
     "{nearest}, or world.ranks to a divisor of {micro_batches}"),
    ("train.micro_batch parallel.expert_ranks",
     lambda row: "experts" in MODELS[row.kind].own_keys and row.micro_batch % row.expert_ranks,
     "train.micro_batch must be a multiple of parallel.expert_ranks = {expert_ranks}, which share its samples, found "
     "{micro_batch}; set it to a multiple of {expert_ranks}"),
    ("parallel.order world.ranks train.micro_batches", lambda row: row.order == "tree" and any(
        number.bit_count() != 1 for number in (row.micro_batches, *row.numbers)),
     "parallel.order tree needs powers of two for world.ranks{shared} and train.micro_batches, found {data_ranks} and "
     "{micro_batches}; set them so, or parallel.order to exact"),
    ("check.same_bits_on", lambda row: first(each for each in row.same_bits_on if row.micro_batches % each),
     "check.same_bits_on names {found} ranks, which do not divide {micro_batches} micro-batches; give divisors of "
     "train.micro_batches"),
    ("check.same_bits_on", lambda row: first(each for each in row.same_bits_on if each > row.ranks),
     "check.same_bits_on names {found} ranks, but world.ranks is {ranks}; set world.ranks to the largest"),
    ("parallel.order", lambda row: row.order in ON_HOSTS and not row.ranks_per_host,
     "parallel.order {order} adds within hosts first; set world.ranks_per_host to the ranks of a host, or order to "
     "ring"),
    ("world.ranks_per_host world.ranks", lambda row: row.ranks_per_host and first(
        number for number in (row.ranks, *row.same_bits_on)
        if number > row.ranks_per_host and number % row.ranks_per_host),
     "world.ranks_per_host = {ranks_per_host} does not divide {found} ranks; give a divisor, or 0 for the real hosts"),

    # Groups of ranks.
    *((f"parallel.{key} world.ranks", partial(no_divisor, key),
       f"parallel.{key} = {{{key}}} does not divide {{found}}, or 0 {instead}") for key, instead in (
        ("shard_ranks", "for one group of all ranks"), ("replicas", "for as many as shard_ranks makes"),
        ("secondary_ranks", "for no second copy"))),
    ("parallel.shard_ranks parallel.replicas world.ranks", lambda row: row.shard_ranks * row.replicas and first(
        each for each in row.numbers if row.shard_ranks * row.replicas != each),
     "parallel.shard_ranks = {shard_ranks} times replicas = {replicas} is not world.ranks{shared} = {found}; remove "
     "one of them"),
    *((f"parallel.secondary_ranks parallel.{key}", set_and("secondary_ranks", test),
       f"parallel.secondary_ranks keeps a second copy {why}; remove one of them") for key, test, why in (
        ("shard_ranks parallel.replicas", lambda row: row.grouping,
         "of weights that all ranks share, but {grouping} makes groups"),
        ("all_gather", is_set("all_gather"), "that a ring gathers, but all_gather names another algorithm"),
        ("reshard_after_forward", is_set("reshard_after_forward"),
         "for backward to gather from, but reshard_after_forward = false needs none"),
        ("order", lambda row: (row.order in ON_HOSTS and row.secondary_ranks % row.ranks_per_host
                               and row.ranks_per_host % row.secondary_ranks),
         "over {secondary_ranks} ranks, but order {order} needs a divisor or a multiple of {ranks_per_host}, the ranks "
         "of a host"))),
    ("parallel.shard_ranks parallel.replicas parallel.order",
     lambda row: row.order in ("exact", *ON_HOSTS) and row.grouping,
     "parallel.{grouping} makes several groups, but order {order} adds all ranks at once; set order to ring, rank or "
     "tree, or leave the groups out"),

    # Precisions and formats.
    *((f"parallel.{key} train.precision", set_and(key, lambda row: row.precision == "fp64"),
       f"parallel.{key} {{{key}}} has fewer bits than the gradients of train.precision fp64; leave it at "
       f"{getattr(USUAL, key)}")
      for key in ("accumulate_dtype", "reduce_dtype", "output_dtype", "quantized_weights", "quantized_gradients")),
    ("parallel.param_dtype train.precision", set_and("param_dtype", lambda row: row.precision != "fp32"),
     "parallel.param_dtype {param_dtype} casts float32 shards before the all-gather, but train.precision {precision} "
     "keeps none; set train.precision to fp32, or param_dtype to weights"),
    ("parallel.autocast train.precision", set_and("autocast", lambda row: row.precision != "fp32"),
     "parallel.autocast {autocast} casts float32 weights for each operation, but train.precision {precision} has none; "
     "set train.precision to fp32, or autocast to none"),
    ("parallel.autocast parallel.param_dtype", is_set("autocast", "param_dtype"),
     "parallel.autocast {autocast} casts weights for each operation, and parallel.param_dtype {param_dtype} casts them "
     "before the all-gather; remove one of them"),
    ("parallel.quantized_gradients parallel.order",
     set_and("quantized_gradients", lambda row: row.order in ("tree", "exact")),
     "parallel.quantized_gradients encodes chunks that are sent one by one, and order {order} sends none; set order to "
     "ring, rank, two_level or two_hop"),
    ("parallel.quantized_gradients parallel.shard_ranks", set_and("quantized_gradients", lambda row: row.grouping),
     "parallel.quantized_gradients adds over all ranks at once, but shard_ranks or replicas makes several groups; "
     "remove one of them"),
    *((f"parallel.{key} parallel.{other}", is_set(key, other),
       f"parallel.{key} {why}, and parallel.{other} conflicts with it; remove one of them") for key, other, why in (
        ("quantized_gradients", "bucket_mb", "encodes a whole chunk"),
        ("quantized_gradients", "reduce_scatter", "sends chunks by the reduce-scatter of parallel.order"),
        ("quantized_weights", "all_gather", "sends shards of bytes by the all-gather of parallel.order"))),

    # When gradients are added, and weights gathered.
    ("parallel.accumulation parallel.order",
     lambda row: row.accumulation == "micro_batch" and row.order in ("tree", "exact"),
     "parallel.accumulation micro_batch adds ranks before micro-batches, which order {order} cannot; set "
     "parallel.order to ring or rank, or accumulation to boundary"),
    ("parallel.prefetch parallel.reshard_after_forward", is_set("prefetch", "reshard_after_forward"),
     "parallel.prefetch gathers weights ahead of each use, reshard_after_forward = false only once; choose one of "
     "them"),
    ("train.warmup_steps train.steps", lambda row: row.warmup_steps > row.steps,
     "train.warmup_steps must be at most train.steps = {steps}, found {warmup_steps}"),

    # Layers and units.
    *((f"{section}.{key}", lambda row, key=key: isinstance(row[key], tuple) and first(
        each for each in row[key] if each > row.last),
       f"{section}.{key} names layer {{found}}; there are layers 0 to {{last}}")
      for section, key in (("model", "frozen"), ("parallel", "recompute"))),
    ("parallel.units", lambda row: row.model.tied and misses_layers(row),
     "parallel.units must name layers 0 to {last}, each once, found {found}"),
    ("parallel.units", misses_layers,
     "parallel.units must name layers 0 to {last}, each once and in order, found {found}"),
    ("parallel.units model.tied_embeddings",
     lambda row: row.model.tied and not isinstance(row.units, str) and not ends_in_one_unit(row),
     "model.tied_embeddings: layers 0 and {last} share their weights, so parallel.units must name them in one unit; or "
     "untie them"),
    ("parallel.bucket_mb world.ranks", set_and(
        "bucket_mb", lambda row: row.parallel.bucket_bytes < row.least and f"{row.least / MEGABYTE:g}"),
     "parallel.bucket_mb must be 0, or hold an element for each of {data_ranks} {rank_words}, {least} bytes = {found}, "
     "found {bucket_mb:g}"),

    # Recomputation.
    *((f"parallel.{key} parallel.recompute", set_and(key, lambda row: not row.recompute),
       f"parallel.{key} {does}; set parallel.recompute to true or to layers too, or leave it out") for key, does in (
        ("offload_activations", "offloads the inputs of recomputed units"),
        ("partition_activations", "divides the inputs of recomputed units"),
        ("recompute_keeps", "is for recomputed units"))),
    *((f"{section}.{key} train.optimizer", partial(of_matrices, key, allowed),
       f"{section}.{key} = {{found}} does not go with an optimizer of whole matrices: {why}; set it to "
       f"{' or '.join(map(json.dumps, allowed))}") for section, key, allowed, why in (
        ("train", "precision", ("fp32", "fp64"), "it rewrites the differences of weights that have no master copy"),
        ("parallel", "publish", ("weights",), "it sends its differences itself"),
        ("parallel", "offload_optimizer", ("none",), "it rewrites them on the device"),
        ("parallel", "tensor_ranks", (1,), "each rank has a piece of a matrix"),
        ("parallel", "expert_ranks", (1,), "each rank has a piece of a matrix"))),

    # Named algorithms.
    *((f"parallel.{kind} world.ranks", partial(serves_not, kind),
       f"parallel.{kind} {{{kind}}} serves {{found}}; use a different algorithm or a different number of them")
      for kind in SERVING),
    *((f"parallel.{kind} parallel.bucket_mb", set_and("bucket_mb", partial(joins, kind)),
       f"parallel.bucket_mb cuts chunks into pieces that are not contiguous, and parallel.{kind} {{{kind}}} may send "
       "neighbouring chunks in one message; remove one of them") for kind in ("reduce_scatter", "all_gather")),
    ("parallel.reduce_scatter parallel.order", set_and("reduce_scatter", lambda row: row.order == "exact"),
     "parallel.reduce_scatter {reduce_scatter} adds in a fixed order, and order exact has none; set order to ring, "
     "rank or tree, or remove it"),

    # Claims.
    *((f"check.{key}", partial(too_few, key), f"check.{key} has {{found}}; give one for each: {{listed}}")
      for key in ROW_BY_ROW),
    ("check.does_not_fit", unclaimed, "check.does_not_fit names {found}, but no row uses it; rows are {listed}"),
)
