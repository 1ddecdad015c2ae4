"""The conditions that the keys of a scenario must satisfy together; a violated one is a `Conflict`.

A condition names the keys that it compares as they are written, "parallel.units".
"""

import json
from collections.abc import Iterator, Sequence

from zerosim.collectives.own import SERVING
from zerosim.errors import UsageError
from zerosim.models import MODELS
from zerosim.optim.optimizers import OPTIMIZERS
from zerosim.scenario.directions import KEYS_OF_DIRECTIONS, ON_HOSTS, of_directions
from zerosim.scenario.ignored import ignored_by_stage
from zerosim.scenario.origin import Conflict
from zerosim.scenario.positions import shortened
from zerosim.scenario.sections import MEGABYTE, ROW_BY_ROW, ModelKeys, Parallel, Sections, Train

WIDEST_BYTES = 8
"""The widest element of a message in bytes: an integer of an order-free sum, a float64, or a norm."""
ENOUGH_TO_JOIN = 8
"""The number of ranks on which an algorithm sends neighbouring chunks in one message, if it ever does."""
ALL_AT_ONCE = ("exact", "two_level", "two_hop")
"""The orders without groups of ranks, or with groups of their own."""
NARROWER = {
    "accumulate_dtype": "weights", "reduce_dtype": "weights", "output_dtype": "weights",
    "quantized_weights": "none", "quantized_gradients": "none"}
"""Keys that may name fewer bits than float64 has, and their other value."""
OF_MATRICES = (
    ("precision", ("fp32", "fp64"), "it rewrites the differences of weights that have no master copy"),
    ("publish", ("weights",), "it sends its differences itself"),
    ("offload_optimizer", ("none",), "it rewrites them on the device"),
    ("tensor_ranks", (1,), "each rank has a piece of a matrix"),
    ("expert_ranks", (1,), "each rank has a piece of a matrix"),
)
"""The keys that an optimizer of whole matrices restricts, their allowed values, and why they have no others."""

Conflicts = Iterator[Conflict]


def conflicts(scenario: Sections, rows: Sequence[str], *, changed: bool) -> Conflicts:
    """All violated conditions of a scenario with these rows; `changed`: overrides have changed them, not the claims."""
    train, model = scenario.train, scenario.model
    yield from between_kinds(model)
    try:
        layers = model.layer_count
    except UsageError as error:
        yield Conflict(f"model.kind: {error}", "model.kind")
        return
    sections = [variant.applied(scenario.parallel) for variant in scenario.variant] or [scenario.parallel]
    data_ranks = [scenario.world.ranks // parallel.directions.places for parallel in sections]
    groups = [parallel.group_of(ranks) for parallel, ranks in zip(sections, data_ranks, strict=True)]
    yield from within_variants(scenario)
    for parallel in sections:
        split = any(getattr(parallel, key) != getattr(Parallel(), key) for key in KEYS_OF_DIRECTIONS)
        yield from of_directions(parallel, scenario) if split else ()
        yield from of_micro_batches(parallel, scenario)
    yield from of_ranks(scenario)
    for parallel, ranks, group in zip(sections, data_ranks, groups, strict=True):
        yield from of_groups(parallel, scenario, ranks, grouped=group != ranks)
        yield from of_dtypes(parallel, train)
        yield from of_quantized_gradients(parallel, grouped=group != ranks)
        if parallel.all_gather and parallel.quantized_weights != "none":
            yield leave_one_out("quantized_weights", "sends shards of bytes by the all-gather of parallel.order",
                                "all_gather")
        yield from of_steps(parallel, train)
        yield from of_layers(parallel, model, layers)
        yield from of_buckets(parallel, ranks)
        yield from of_offloading(parallel, train)
        if OPTIMIZERS[train.optimizer].of_matrix is not None:
            yield from of_matrices(parallel, train)
        yield from of_algorithms(parallel, group, ranks // max(group, 1))
    yield from of_rows(scenario, rows, changed=changed)
    yield from of_faults(scenario)


def between_kinds(model: ModelKeys) -> Conflicts:
    """Keys of another kind of model."""
    default = ModelKeys()
    for key in model.others_keys:
        if getattr(model, key) != getattr(default, key):
            other = " or ".join(name for name, each in MODELS.items() if key in each.own_keys)
            yield Conflict(
                f"model.{key} is for model.kind {other}, and this is {model.kind}; leave it out, or set model.kind to "
                f"{other}", f"model.{key}", at_key=True)


def within_variants(scenario: Sections) -> Conflicts:
    """Keys that a row's stage ignores."""
    for index, variant in enumerate(scenario.variant):
        for key, why in ignored_by_stage(variant.stage, variant.keys_set).items():
            yield Conflict(
                f"variant[{index}].{key} = {json.dumps(getattr(variant, key))} does nothing in stage {variant.stage}: "
                f"{why}; leave it out, or name another stage", f"variant.{index}.{key}", f"variant.{index}",
                at_key=True)


def of_micro_batches(parallel: Parallel, scenario: Sections) -> Conflicts:
    """Micro-batches whose number or whose samples the ranks of a row cannot share, or that are no tree of additions."""
    places, micro_batches = parallel.directions.places, scenario.train.micro_batches
    ranks, shared = scenario.world.ranks // places, f" / {places} that share each" if places > 1 else ""
    if micro_batches % ranks:
        below = micro_batches // ranks * ranks
        nearest = f"{below} or {below + ranks}" if below else f"{ranks}"
        yield Conflict(
            f"train.micro_batches must be a multiple of world.ranks{shared} = {ranks}, found {micro_batches}; set it "
            f"to {nearest}, or world.ranks to a divisor of {micro_batches}", "train.micro_batches", "world.ranks")
    samples, sharing = scenario.train.micro_batch, parallel.expert_ranks
    if "experts" in MODELS[scenario.model.kind].own_keys and samples % sharing:
        yield Conflict(
            f"train.micro_batch must be a multiple of parallel.expert_ranks = {sharing}, which share its samples, "
            f"found {samples}; set it to a multiple of {sharing}", "train.micro_batch", "parallel.expert_ranks")
    numbers = (ranks, micro_batches, *scenario.check.same_bits_on)
    if parallel.order == "tree" and any(number.bit_count() != 1 for number in numbers):
        yield Conflict(
            f"parallel.order tree needs powers of two for world.ranks{shared} and train.micro_batches, found "
            f"{ranks} and {micro_batches}; set them so, or parallel.order to exact",
            "parallel.order", "world.ranks", "train.micro_batches")


def of_ranks(scenario: Sections) -> Conflicts:
    """Different numbers of ranks that cannot share the micro-batches, and hosts that do not divide the ranks."""
    ranks, micro_batches, order = scenario.world.ranks, scenario.train.micro_batches, scenario.parallel.order
    others, per_host = scenario.check.same_bits_on, scenario.world.ranks_per_host
    for index, other in enumerate(others):
        if micro_batches % other:
            yield Conflict(
                f"check.same_bits_on names {other} ranks, which do not divide {micro_batches} micro-batches; give "
                f"divisors of train.micro_batches", f"check.same_bits_on.{index}")
        if other > ranks:
            yield Conflict(
                f"check.same_bits_on names {other} ranks, but world.ranks is {ranks}; set world.ranks to the largest",
                f"check.same_bits_on.{index}")
    if order in ON_HOSTS and not per_host:
        yield Conflict(
            f"parallel.order {order} adds within hosts first; set world.ranks_per_host to the ranks of a host, or "
            "order to ring", "parallel.order")
    for number in (ranks, *others):
        if per_host and number > per_host and number % per_host:
            yield Conflict(
                f"world.ranks_per_host = {per_host} does not divide {number} ranks; give a divisor, or 0 for the real "
                "hosts", "world.ranks_per_host", "world.ranks")


def of_groups(parallel: Parallel, scenario: Sections, ranks: int, *, grouped: bool) -> Conflicts:
    """Groups that do not divide the ranks, or that another key has no use for."""
    numbers = (ranks, *scenario.check.same_bits_on)
    otherwise = {"shard_ranks": "for one group of all ranks", "replicas": "for as many as shard_ranks makes",
                 "secondary_ranks": "for no second copy"}
    for key, instead in otherwise.items():
        group = getattr(parallel, key)
        for number in numbers:
            if group and number % group:
                divisors = ", ".join(str(each) for each in range(1, min(number, 64) + 1) if number % each == 0)
                yield Conflict(
                    f"parallel.{key} = {group} does not divide {ranks_in_words(number, parallel)}; give a divisor "
                    f"({divisors}), or 0 {instead}", f"parallel.{key}", "world.ranks")
    product, places = parallel.shard_ranks * parallel.replicas, parallel.directions.places
    shared = f" / {places} that share a micro-batch" if places > 1 else ""
    for number in numbers:
        if product not in (0, number):
            yield Conflict(
                f"parallel.shard_ranks = {parallel.shard_ranks} times replicas = {parallel.replicas} is {product}, "
                f"but world.ranks{shared} is {number}; remove one of them",
                "parallel.shard_ranks", "parallel.replicas", "world.ranks")
    key = "shard_ranks" if parallel.shard_ranks else "replicas"
    group = f"{key} = {getattr(parallel, key)}"
    if parallel.secondary_ranks:
        if grouped:
            yield no_copy(f"of weights that all ranks share, but {group} makes groups", key)
        yield from of_second_copy(parallel, scenario.world.ranks_per_host)
    if grouped and parallel.order in ALL_AT_ONCE:
        yield Conflict(
            f"parallel.{group} makes several groups, but order {parallel.order} adds all ranks at once; set order to "
            f"ring, rank or tree, or {key} to 0", f"parallel.{key}", "parallel.order")


def ranks_in_words(ranks: int, parallel: Parallel) -> str:
    """A number of ranks, among which those that share a micro-batch count once."""
    return f"{ranks} {'data ' * (parallel.directions.places > 1)}ranks"


def of_second_copy(parallel: Parallel, per_host: int) -> Conflicts:
    secondary = parallel.secondary_ranks
    if parallel.all_gather:
        yield no_copy("that a ring gathers, but all_gather names another algorithm", "all_gather")
    if not parallel.reshard_after_forward:
        yield no_copy("for backward to gather from, but reshard_after_forward = false needs none",
                      "reshard_after_forward")
    if parallel.order in ON_HOSTS and secondary % per_host and per_host % secondary:
        yield no_copy(f"over {secondary} ranks, but order {parallel.order} needs a divisor or a multiple of "
                      f"{per_host}, the ranks of a host", "order")


def no_copy(why: str, key: str) -> Conflict:
    return Conflict(f"parallel.secondary_ranks keeps a second copy {why}; remove one of them",
                    "parallel.secondary_ranks", f"parallel.{key}")


def of_dtypes(parallel: Parallel, train: Train) -> Conflicts:
    """A dtype that would lose bits of another, or a second cast of the same weights."""
    for key, otherwise in NARROWER.items():
        if train.precision == "fp64" and (dtype := getattr(parallel, key)) != otherwise:
            yield Conflict(
                f"parallel.{key} {dtype} has fewer bits than the gradients of train.precision fp64; leave it at "
                f"{otherwise}", f"parallel.{key}", "train.precision")
    if train.precision != "fp32" and parallel.param_dtype != "weights":
        yield Conflict(
            f"parallel.param_dtype {parallel.param_dtype} casts float32 shards before the all-gather, but "
            f"train.precision {train.precision} keeps none; set train.precision to fp32, or param_dtype to weights",
            "parallel.param_dtype", "train.precision")
    if parallel.autocast == "none":
        return
    if train.precision != "fp32":
        yield Conflict(
            f"parallel.autocast {parallel.autocast} casts float32 weights for each operation, but train.precision "
            f"{train.precision} has none; set train.precision to fp32, or autocast to none",
            "parallel.autocast", "train.precision")
    if parallel.param_dtype != "weights":
        yield Conflict(
            f"parallel.autocast {parallel.autocast} casts weights for each operation, and parallel.param_dtype "
            f"{parallel.param_dtype} casts them before the all-gather; remove one of them",
            "parallel.autocast", "parallel.param_dtype")


def of_quantized_gradients(parallel: Parallel, *, grouped: bool) -> Conflicts:
    """Chunks that are not sent one by one, each in one message."""
    if parallel.quantized_gradients == "none":
        if parallel.error_feedback:
            yield Conflict(
                "parallel.error_feedback adds the errors of quantised gradients, but parallel.quantized_gradients is "
                "none; name a format there, or set error_feedback to false",
                "parallel.error_feedback", "parallel.quantized_gradients")
        return
    if parallel.order in ("tree", "exact"):
        yield Conflict(
            f"parallel.quantized_gradients encodes chunks that are sent one by one, and order {parallel.order} sends "
            "none; set order to ring, rank, two_level or two_hop", "parallel.quantized_gradients", "parallel.order")
    if grouped:
        yield Conflict(
            "parallel.quantized_gradients adds over all ranks at once, but shard_ranks or replicas makes several "
            "groups; remove one of them", "parallel.quantized_gradients", "parallel.shard_ranks")
    if parallel.bucket_mb:
        yield leave_one_out("quantized_gradients", "encodes a whole chunk", "bucket_mb")
    if parallel.reduce_scatter:
        yield leave_one_out("quantized_gradients", "sends chunks by the reduce-scatter of parallel.order",
                            "reduce_scatter")


def leave_one_out(key: str, why: str, other: str) -> Conflict:
    return Conflict(f"parallel.{key} {why}, and parallel.{other} conflicts with it; remove one of them",
                    f"parallel.{key}", f"parallel.{other}")


def of_steps(parallel: Parallel, train: Train) -> Conflicts:
    """Two keys that decide when gradients are added, or weights gathered; a warm-up beyond the last step."""
    if parallel.accumulation == "micro_batch" and parallel.order in ("tree", "exact"):
        yield Conflict(
            f"parallel.accumulation micro_batch adds ranks before micro-batches, which order {parallel.order} cannot; "
            "set parallel.order to ring or rank, or accumulation to boundary",
            "parallel.accumulation", "parallel.order")
    if parallel.prefetch and not parallel.reshard_after_forward:
        yield Conflict(
            "parallel.prefetch gathers weights ahead of each use, reshard_after_forward = false only once; choose one "
            "of them", "parallel.prefetch", "parallel.reshard_after_forward")
    if train.warmup_steps > train.steps:
        yield Conflict(f"train.warmup_steps must be at most train.steps = {train.steps}, found {train.warmup_steps}",
                       "train.warmup_steps", "train.steps")


def of_layers(parallel: Parallel, model: ModelKeys, layers: int) -> Conflicts:
    """Layers that the model does not have, and units that do not have each layer once."""
    named = {"model.frozen": model.frozen}
    if isinstance(parallel.recompute, tuple):
        named["parallel.recompute"] = parallel.recompute
    for key, numbers in named.items():
        for index, layer in enumerate(numbers):
            if layer >= layers:
                yield Conflict(
                    f"{key} names layer {layer}; there are layers 0 to {layers - 1}", f"{key}.{index}", key)
    if isinstance(parallel.units, tuple):
        yield from of_units(parallel.units, model, layers)


def of_units(units: tuple[tuple[int, ...], ...], model: ModelKeys, layers: int) -> Conflicts:
    named = [layer for unit in units for layer in unit]
    together = any({0, layers - 1} <= set(unit) for unit in units)
    if (sorted(named) if model.tied or together else named) != list(range(layers)):
        yield Conflict(
            f"parallel.units must name layers 0 to {layers - 1}, each once{'' if model.tied else ' and in order'}, "
            f"found {shortened(str(named))}", "parallel.units")
    if model.tied and not together:
        yield Conflict(
            f"model.tied_embeddings: layers 0 and {layers - 1} share their weights, so parallel.units must name them "
            "in one unit; or untie them", "parallel.units", "model.tied_embeddings")


def of_frozen(parallel: Parallel, model: ModelKeys) -> Conflicts:
    """Units of a row that are partly frozen."""
    frozen = set(model.frozen)
    for unit in model.units_of(parallel.units):
        if 0 < len(frozen & set(unit)) < len(unit):
            yield Conflict(
                f"the unit of layers {list(unit)} is partly frozen; freeze all of its layers or none, or change "
                "parallel.units", "model.frozen", "parallel.units")


def of_buckets(parallel: Parallel, ranks: int) -> Conflicts:
    least = ranks * WIDEST_BYTES
    if parallel.bucket_mb and parallel.bucket_bytes < least:
        yield Conflict(
            f"parallel.bucket_mb must be 0, or hold an element for each of {ranks_in_words(ranks, parallel)}, {least} "
            f"bytes = {least / MEGABYTE:g}, found {parallel.bucket_mb:g}", "parallel.bucket_mb", "world.ranks")


def of_offloading(parallel: Parallel, train: Train) -> Conflicts:
    """Keys for recomputed units without any, and an update that the host cannot compute one step late."""
    for key, does in (("offload_activations", "offloads"), ("partition_activations", "divides")):
        if getattr(parallel, key) and not parallel.recompute:
            yield Conflict(f"parallel.{key} {does} the inputs of recomputed units; set parallel.recompute to true or "
                           "to layers too, or remove it", f"parallel.{key}", "parallel.recompute")
    if parallel.recompute_keeps and not parallel.recompute:
        yield Conflict(
            "parallel.recompute_keeps is for recomputed units; set parallel.recompute to true or to layers as well, or "
            "leave it out", "parallel.recompute_keeps", "parallel.recompute")
    if parallel.delayed_update:
        if parallel.offload_optimizer != "host":
            tier = parallel.offload_optimizer if parallel.offload_optimizer != "none" else "device"
            yield Conflict(
                "parallel.delayed_update lets the host update while the next step computes, and the optimizer is on "
                f"the {tier}; set parallel.offload_optimizer to host, or leave it out",
                "parallel.delayed_update", "parallel.offload_optimizer")
        in_float16 = "fp16" in (train.precision, parallel.param_dtype, parallel.autocast)
        for other, why, refused in (
            ("parallel.offload_parameters", "the step reads weights there while they are updated",
             parallel.offload_parameters != "none"),
            ('parallel.publish = "updates"', "updates are applied where weights are", parallel.publish == "updates"),
            ('train.loss_scale = "dynamic"', "a step may be skipped and leave no gradient",
             in_float16 and isinstance(train.loss_scale, str)),
        ):
            if refused:
                yield Conflict(f"parallel.delayed_update does not go with {other}: {why}; leave one of them out",
                               "parallel.delayed_update")
    if "\0" in parallel.offload_folder:
        yield Conflict("parallel.offload_folder: a path cannot contain a NUL byte", "parallel.offload_folder")


def of_matrices(parallel: Parallel, train: Train) -> Conflicts:
    """The refused keys of a row whose optimizer needs whole matrices."""
    for name, allowed, why in OF_MATRICES:
        section, keys = ("train", train) if hasattr(train, name) else ("parallel", parallel)
        found, due = getattr(keys, name), " or ".join(map(json.dumps, allowed))
        if found not in allowed:
            yield Conflict(f"{section}.{name} = {json.dumps(found)} does not go with an optimizer of whole matrices: "
                           f"{why}; set it to {due}", f"{section}.{name}", "train.optimizer")


def of_algorithms(parallel: Parallel, group: int, replicas: int) -> Conflicts:
    """Named algorithms that do not serve a group or, for a sum, the replicas, or that no order declares."""
    for kind in SERVING:
        name = getattr(parallel, kind)
        if not name:
            continue
        algorithm = SERVING[kind][name]
        for count in (group, replicas) if kind == "reduce_scatter" else (group,):
            if not algorithm.serves(count):
                yield Conflict(
                    f"parallel.{kind} {name} serves {algorithm.limit}, not {ranks_in_words(count, parallel)}; use a "
                    f"different algorithm or a different number of them", f"parallel.{kind}", "world.ranks")
        joins = algorithm.users or any(
            len(message) > 1 for rank in range(ENOUGH_TO_JOIN)
            for message in algorithm.volume(rank, ENOUGH_TO_JOIN, 0))
        if parallel.bucket_mb and joins and kind != "broadcast":
            yield Conflict(
                "parallel.bucket_mb cuts chunks into pieces that are not contiguous, and "
                f"parallel.{kind} {name} may send neighbouring chunks in one message; remove one of them",
                f"parallel.{kind}", "parallel.bucket_mb")
        if kind == "reduce_scatter" and parallel.order == "exact":
            yield Conflict(
                f"parallel.reduce_scatter {name} adds in a fixed order, and order exact has none; set order to ring, "
                f"rank or tree, or remove it", f"parallel.{kind}", "parallel.order")


def of_rows(scenario: Sections, rows: Sequence[str], *, changed: bool) -> Conflicts:
    """Claims without a row, and rows without a claim."""
    check, listed = scenario.check, "; ".join(rows)
    for key in ROW_BY_ROW:
        given = len(getattr(check, key))
        if given not in (0, len(rows)):
            yield Conflict(
                f"check.{key} has {given} numbers for {len(rows)} rows; give one for each: {listed}", f"check.{key}")
    stages = [variant.stage for variant in scenario.variant] or scenario.parallel.stages
    for index, stage in enumerate(check.does_not_fit):
        if stage not in stages and not changed:
            yield Conflict(f"check.does_not_fit names {stage}, but no row uses it; rows are {listed}",
                           f"check.does_not_fit.{index}")


def of_faults(scenario: Sections) -> Conflicts:
    """Faults in no step, or with keys of other kinds."""
    for index, fault in enumerate(scenario.fault):
        if fault.step > scenario.train.steps:
            yield no_fault(index, "step", f"step is {fault.step}, but the last step is {scenario.train.steps}; "
                                          f"give an existing step")
        if fault.problem is not None:
            yield no_fault(index, *fault.problem)


def no_fault(index: int, key: str, why: str) -> Conflict:
    return Conflict(f"fault[{index}].{why}", f"fault.{index}.{key}", f"fault.{index}.kind", f"fault.{index}")
