"""Search: the fastest layouts of a model on some devices; and if a plan has no row that fits, a layout that does.

    space     the values of each key that a layout chooses: stage, groups, directions, micro-batch, recomputation
    layout    one value of each; all layouts train on the same batch, and those in which a value has no effect are left
              out

Layouts are planned in ascending order of the least times that they can have, until these exceed the times that are
wanted: so none that is faster is left out.
"""

import dataclasses
import gc
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import accumulate, zip_longest
from math import inf, prod
from operator import attrgetter
from typing import Any, NamedTuple

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.errors import UsageError, ZerosimError
from zerosim.core.parts import Name
from zerosim.core.sharding import Directions
from zerosim.core.words import duration, plural, toml_value
from zerosim.models import MODELS
from zerosim.models.units import Unit
from zerosim.plan.cluster import NS, Cluster
from zerosim.plan.planned_row import PlannedRow, on_ranks, rows_of
from zerosim.plan.rehearsal import rehearse
from zerosim.plan.sharing import Sharing
from zerosim.scenario import Scenario
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.sections import Check, Data, ModelKeys, Parallel
from zerosim.stages.pipeline import pieces
from zerosim.stages.schedules import SCHEDULES
from zerosim.training.config import Config
from zerosim.verdict.resting import unit_bytes

USUAL_MOST = 10
"""The number of layouts that a search returns by default."""
WITHOUT_PIECES = "; sequences stay in one piece: set model.queue_tokens to search context ranks, sequence_parallel"
"""Added to the words of a search of experts whose queues serve whole sequences."""
LEAST_PIECE = 8192
"""The least tokens of a sequence for each context rank, in the default space of a search."""
MOST_STAGES, MOST_CHUNKS, LARGEST = 16, 4, 8
"""The most ranks of a pipeline, the most model chunks of each, and the largest micro-batch, in that space."""
Identity = tuple[tuple[object, ...], ClusterKeys, Data]
"""A layout without its names."""


def space(scenario: Scenario, batch: int = 0) -> dict[str, Sequence[Any]]:
    """The values of each key that a search tries on the scenario's ranks, doubling; `batch` is by default its."""
    ranks, per_host, model = scenario.world.ranks, scenario.cluster.devices_per_host, scenario.model
    own, size = MODELS[model.kind].own_keys, batch or samples(scenario)
    tensor = doubled(min(per_host, ranks)) if "heads" in own else [1]
    in_pieces = len(tensor) > 1 and not in_one_piece(model)
    return {
        "parallel.stages": [["ddp"], ["zero1"], ["zero2"], ["zero3"]],
        "parallel.tensor_ranks": tensor,
        "parallel.sequence_parallel": [False, True][: 1 + in_pieces],
        "parallel.context_ranks": doubled(min(per_host, model.sequence // LEAST_PIECE)) if in_pieces else [1],
        "parallel.expert_ranks": doubled(min(per_host, model.experts)) if "experts" in own else [1],
        "parallel.pipeline_ranks": doubled(min(MOST_STAGES, model.layer_count, ranks)),
        "parallel.model_chunks": doubled(MOST_CHUNKS),
        "parallel.shard_ranks": [0, per_host][: 1 + (per_host < ranks)],
        "train.micro_batch": [count for count in doubled(LARGEST) if size % count == 0],
        "parallel.accumulation": ["boundary", "micro_batch"],
        "parallel.recompute": [False, True],
    }


def in_one_piece(model: ModelKeys) -> bool:
    """Whether sequences stay in one piece, because the queues of experts serve whole sequences."""
    return "queue_tokens" in MODELS[model.kind].own_keys and not model.queue_tokens


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from searching the thousands of layouts for cycles, of which there are none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def doubled(last: int) -> list[int]:
    """1 and its doubles up to `last`; 1 alone if that is less."""
    return [1 << number for number in range(max(last, 1).bit_length())]


class Searched(NamedTuple):
    """The layouts that a search found, the fastest first; the numbers of all valid layouts, of those that were planned,
    and of the others: those whose memory cannot fit, and those that cannot be among the fastest."""

    rows: tuple[PlannedRow, ...]
    layouts: int
    planned: int
    too_large: int
    slower: int

    @property
    def words(self) -> str:
        return (f"{self.layouts:,} layouts: {self.planned:,} planned; of the others {self.too_large:,} cannot fit and "
                f"{self.slower:,} cannot be faster, by proved bounds")


def fastest(layouts: Sequence[PlannedRow], most: float = USUAL_MOST, further: float = inf) -> Searched:
    """The `most` fastest of the layouts that fit or, if none does, the one whose least memory is the smallest.

    With `further`, only so many are planned once there are enough, and a faster one may be left out.
    """
    rows, refused, planned = list[PlannedRow](), list[ZerosimError](), 0
    held, small, known = list[float](), list[tuple[float, int]](), dict[Any, LayersAlone]()
    for number, layout in enumerate(layouts):
        bytes_, seconds = least_bytes_and_seconds(layout, known)
        held.append(bytes_)
        if bytes_ <= layout.cluster.device.memory:
            small.append((seconds, number))
    for seconds, number in sorted(small):
        if len(rows) == most:
            further -= 1
            if seconds >= rows[-1].step_seconds or further < 0:
                break
        try:
            row, planned = layouts[number].planned(), planned + 1
        except ZerosimError as error:
            refused.append(error)
            continue
        if row.fits:
            rows = sorted([*rows, row], key=attrgetter("step_seconds"))[: int(min(most, 1e6))]
    valid = len(layouts) - len(refused)
    if not valid:
        raise refused[0]
    if not rows:
        rows = [layouts[min(range(len(layouts)), key=lambda number: held[number])].planned()]
    return Searched(tuple(rows), valid, planned, len(layouts) - len(small), len(small) - len(refused) - planned)


def at_rest(row: PlannedRow) -> tuple[float, float]:
    """Bytes that the layout's fullest rank keeps at least between steps, by formula: those of gradients are the second.

    In a pipeline, they are the mean over its ranks.
    """
    config, sharing, kept = row.config, Sharing.of(row.config, row.cluster), defaultdict[str, float](float)
    alike = defaultdict[Any, list[Unit]](list)
    for unit in config.model.units:
        alike[unit.count, unit.frozen, len(unit.segments), sharing.share(unit.name)].append(unit)
    for units in alike.values():
        counts = unit_bytes(config, units[0])
        for kind in MODEL_STATES:
            kept[kind] += len(units) * counts.get(kind, (0, 0))[0] * sharing.share(units[0].name, kind)
    ranks = config.directions.pipeline
    return (kept["parameters"] + kept["optimizer"]) / ranks, kept["gradients"] / ranks


class LayersAlone(NamedTuple):
    """A micro-batch on one data rank: the nanoseconds of each run of layers that is gathered together, forward and
    backward, the loss included; the peak of activations; and what a block adds to them in forward, 0 if unknown."""

    ns: list[int]
    peak: int
    of_block: int = 0


def least_bytes_and_seconds(row: PlannedRow, known: dict[Any, LayersAlone]) -> tuple[float, float]:
    """The least bytes of the layout's fullest rank, and the least seconds of its step, by what `known` has of layers.

    Rank r of p in a pipeline computes its pieces of the model for all m micro-batches. Before, one of them has passed
    pieces 0 … r − 1 forward; after, one passes them backward, in a schedule that does not split it. So the step takes
    at least m Σ t(r + k p) + t(0) + … + t(r − 1), where t(i) is the time of a micro-batch in piece i, both ways.

    A rank has what it keeps between steps except gradients, the activations of a micro-batch and, from the second
    micro-batch on, the gradients of earlier ones: shards, or all of them if they are reduced once a step. Rank r
    of a pipeline has the activations of the micro-batches that its schedule begins before it ends others. The fullest
    rank has at least the mean. If states alone do not fit, there are their bytes, and 0 seconds.

    Layouts that differ in stage, groups, accumulation or pipeline share the rehearsal of their layers, in `known`.
    """
    config, (states, gradients), ranks = row.config, at_rest(row), row.config.directions.pipeline
    if states + gradients > row.cluster.device.memory:
        return states + gradients, 0.0
    key = alone(config).settings, row.scenario.cluster
    if key not in known:
        known[key] = layers_alone(row)
    layers, parallel, earlier = known[key], config.parallel, gradients if config.arithmetic.part_by_part else 0.0
    cuts = pieces(config.layers, *((1,) if ranks == 1 else (parallel.pieces, parallel.pipeline_layers)))
    piece_ns = [sum(layers.ns[cut.start : cut.stop]) for cut in cuts]
    passing = [0] * ranks if parallel.schedule == "zb_h1" else accumulate(piece_ns, initial=0)
    seconds = max(config.block * sum(piece_ns[rank::ranks]) + before
                  for rank, before in zip(range(ranks), passing, strict=False)) / NS
    if config.block > 1 and config.accumulation == "boundary":
        tuned, size = Sharing.of(config, row.cluster).tuned, config.precision.weights.itemsize
        earlier = sum(unit.count * size * tuned.get((unit.name, "gradients"), 1.0)
                      for unit in config.model.units if not unit.frozen) / ranks
    if ranks == 1:
        return states + max(gradients, earlier + layers.peak), seconds
    blocks = [len(cut) - (cut.start == 0) - (cut.stop == cuts[-1].stop) for cut in cuts]
    begun = sum(most_begun(parallel.schedule, rank, ranks, min(config.block, 2 * ranks),
                           tuple(blocks[rank::ranks])) for rank in range(ranks))
    return states + max(gradients, earlier, begun * layers.of_block / ranks), seconds


@lru_cache(maxsize=4096)
def most_begun(schedule: str, rank: int, ranks: int, micro_batches: int, blocks: tuple[int, ...]) -> int:
    """The most blocks that a rank has run forward and not backward; `blocks` has those of each model chunk.

    >>> most_begun("1f1b", 0, 4, 8, (2,)), most_begun("1f1b", 3, 4, 8, (2,))
    (8, 2)
    """
    slots = SCHEDULES[schedule](rank, ranks, micro_batches, len(blocks))
    return max(accumulate({"F": 1, "B": -1}.get(slot.what, 0) * blocks[slot.chunk] for slot in slots))


def layers_alone(row: PlannedRow) -> LayersAlone:
    """The layers of a row on one data rank. Three blocks stand for the equal blocks of a deep model."""
    layers, recompute, dense = row.config.keys.layers, row.config.parallel.recompute, row.config.keys.dense_layers
    equal = row.config.keys.kind in ("transformer", "mixture")
    if equal and layers - dense > SHORTER and isinstance(recompute, bool) and row.config.parallel.units == "layer":
        with suppress(ZerosimError):
            ns, peak, more = runs_alone(shortened(row, dense + 3), row.cluster)
            return LayersAlone([*ns[:-3], *[ns[-4]] * (layers - dense - 3), *ns[-3:]],
                               peak + (layers - dense - 3) * more, 0 if dense else more)
    return runs_alone(row.config, row.cluster)._replace(of_block=0)


SHORTER = 4
"""A model of more blocks is computed from a shorter one."""


def runs_alone(config: Config, cluster: Cluster) -> LayersAlone:
    """The runs of layers by the spans of a step: forward in order, then backward from the last.

    The peak is that from the end of the last block but one forward to the end of the last block backward.
    """
    rehearsal = rehearse(alone(config), cluster, traced=True)
    forward, backward, ended = list[int](), [0], defaultdict[str, list[int]](list)
    for span in rehearsal.clock.spans:
        ended[span.what].append(span.end_ns)
        if span.what == "forward":
            forward.append(span.end_ns - span.begin_ns)
        elif span.what in ("loss", "recompute", "backward"):
            backward[-1] += span.end_ns - span.begin_ns
            backward += [0] * (span.what == "backward")
    ns = [ns + back for ns, back in zip_longest(reversed(forward), backward[: len(forward)], fillvalue=0)][::-1]
    if len(forward) < SHORTER:
        return LayersAlone(ns, rehearsal.peak["activations"])
    held = [(at, kinds.get("activations", 0)) for at, kinds in rehearsal.curve]
    two, one = ([bytes_ for at, bytes_ in held if at <= ended["forward"][number]][-1] for number in (-3, -4))
    between = range(ended["forward"][-3], ended["backward"][1] + 1)
    return LayersAlone(ns, max(count for at, count in held if at in between), two - one)


def shortened(row: PlannedRow, layers: int) -> Config:
    """The layout with so many blocks, on one data rank without a pipeline. Raises `ZerosimError` if it is refused."""
    keys = {"world.ranks": row.config.directions.side_by_side, "model.layers": layers, **{
        f"parallel.{key}": value for key, value in ALONE.items()}}
    (other,) = rows_of(with_keys(row.scenario, keys, row.config.train.micro_batch))
    return other.config


ALONE: Mapping[str, Any] = {"shard_ranks": 0, "secondary_ranks": 0, "pipeline_ranks": 1, "model_chunks": 1,
                            "pipeline_layers": (), "schedule": "1f1b", "accumulation": "boundary"}
"""The keys of [parallel] of one data rank without a pipeline."""


def alone(config: Config) -> Config:
    """The layout on one data rank without a pipeline, with one micro-batch, and a stage that computes the same."""
    stage = "zero3" if config.stage.gathers and config.parallel.param_dtype != "weights" else "ddp"
    return dataclasses.replace(
        by_keys(config, stage, **ALONE), train=dataclasses.replace(config.train, micro_batches=1),
        directions=dataclasses.replace(config.directions, data=1, pipeline=1))


def layouts_of(
    scenario: Scenario, values: Mapping[str, Sequence[Any]], swept: tuple[str, ...] = (), batch: int = 0,
) -> dict[Identity, PlannedRow]:
    """Every layout of a scenario once, by `identity`, without those that are refused or in which a value has no effect.

    `batch` is by default the scenario's. Raises the first error if all are refused.
    """
    layouts, refused = dict[Identity, PlannedRow](), None
    for combination in itertools.product(*values.values()):
        keys = dict(zip(values, combination, strict=True))
        if "train.micro_batch" in keys:     # the samples that experts share
            keys["train.micro_batch"] *= keys.get("parallel.expert_ranks", 1)
        if refused and is_none(keys, scenario.world.ranks, batch or samples(scenario)):
            continue
        if keys.get("parallel.model_chunks", 1) > 1 and scenario.parallel.schedule == Parallel().schedule:
            keys["parallel.schedule"] = "interleaved_1f1b"
        try:
            (row,) = rows_of(with_keys(scenario, keys, batch or samples(scenario)), (
                *swept, *(f"{key}={written(value)}" for key, value in keys.items())))
        except ZerosimError as error:
            refused = refused or error
            continue
        if not any(f"parallel.{key}" in keys for key in row.config.ignored):
            unsaid = {*keys, *(["parallel.schedule"] if row.config.directions.pipeline == 1 else [])}
            kept_words = [word for word in swept if word.partition("=")[0] not in unsaid]
            layouts.setdefault(identity(row), dataclasses.replace(
                row, layout=", ".join([layout_in_words(row.config, keys), *kept_words])))
    if not layouts and refused is not None:
        raise refused
    return layouts


def is_none(keys: Mapping[str, Any], ranks: int, batch: int) -> bool:
    """Whether it is plain from the searched keys alone that they are refused, or that one of them has no effect."""
    tensor, pipeline, places = keys.get(TENSOR), keys.get(PIPELINE), prod(
        keys.get(f"parallel.{name}_ranks", 1) for name in SPLITTING)
    stages, size = keys.get("parallel.stages"), keys.get("train.micro_batch", 1)
    all_places = all(f"parallel.{name}_ranks" in keys for name in SPLITTING)
    group = keys.get("parallel.shard_ranks") or 1
    alone = all_places and "train.micro_batch" in keys and batch == size * ranks // places
    return bool(
        ranks % places or batch % size
        or (all_places and (batch // size % (ranks // places) or ranks // places % group))
        or (tensor == 1 and keys.get("parallel.sequence_parallel"))
        or (pipeline == 1 and keys.get("parallel.model_chunks", 1) > 1)
        or ((pipeline or 1) > 1 and stages == ["zero3"])
        or (keys.get("parallel.accumulation") == "micro_batch" and (alone or stages in (["ddp"], ["zero1"]))))


def identity(layout: PlannedRow) -> Identity:
    """The layout, with one row for what is the same: all data ranks as a group, Stage I on one rank, and every schedule
    of no pipeline."""
    config, scenario = layout.config, layout.scenario
    stage = "ddp" if config.directions.data == 1 and config.stage_key == "zero1" else config.stage_key
    schedule = config.parallel.schedule if config.directions.pipeline > 1 else ALONE["schedule"]
    row = by_keys(config, stage, shard_ranks=config.placement.mesh.group, schedule=schedule)
    return row.settings, scenario.cluster, scenario.data


def by_keys(config: Config, stage: Name, **keys: Any) -> Config:
    """The config with another stage and other keys of [parallel]."""
    parallel = dataclasses.replace(config.parallel, stages=(stage,), **keys)
    return dataclasses.replace(config, stage_key=stage, parallel=parallel)


def with_keys(scenario: Scenario, keys: Mapping[str, Any], batch: int) -> Scenario:
    """The scenario with these keys, and with as many micro-batches as make a batch of so many samples.

    Raises `UsageError` if no number of micro-batches does.
    """
    size = keys.get("train.micro_batch", scenario.train.micro_batch)
    if batch % size:
        raise UsageError(f"--search: micro-batches of {size} do not make a batch of {batch}; set train.micro_batch to "
                         "a divisor of it")
    sections: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    sections["train"] = {"micro_batches": batch // size}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections[section][name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(scenario, **{
        name: dataclasses.replace(getattr(scenario, name), **changes) for name, changes in sections.items()})


TENSOR, PIPELINE = "parallel.tensor_ranks", "parallel.pipeline_ranks"
SPLITTING = (*Directions().sizes, "pipeline")
"""The directions whose ranks train one copy of the model."""
SAID = ("parallel.stages", "parallel.shard_ranks", "parallel.schedule", "train.micro_batch", *(
    f"parallel.{name}_ranks" for name in SPLITTING))
"""The keys of a layout that its words begin with."""


def layout_in_words(config: Config, keys: Mapping[str, Any]) -> str:
    """A layout in words, such as `tp2 × Stage III on 8 × 4 copies, mb2, recompute`: micro-batches of 2."""
    group = config.placement.mesh.group
    copies = [f"{config.directions.data // group} copies"] if group < config.directions.data else []
    parts = [config.directions.words, f"{config.stage.title} on {group}", *copies]
    others = {key.partition(".")[2]: value for key, value in keys.items() if key not in SAID}
    choices = [key if value is True else f"{key} {value}" for key, value in others.items()
               if value != getattr(Parallel(), key)]
    return ", ".join([" × ".join(filter(None, parts)), f"mb{config.train.micro_batch}", *choices])


ENOUGH = 16
"""The greatest multiple of the devices that advice tries."""
FURTHER = 8
"""The layouts that advice plans after the first that fits."""
CHEAPER: Mapping[str, Any] = {"cluster.loss": "chunked", "parallel.offload_optimizer": "host"}
"""The keys that advice sets if no layout fits without."""


@uncollected()
def advised(rows: Sequence[PlannedRow]) -> str:
    """A fast layout that fits, of the row that lacks least memory; else what was tried, in a sentence.

    The whole space but for model chunks, which save time and no memory, is searched on the row's devices, then with a
    chunked loss and with the optimizer on the host, then on twice as many devices, and so on. The batch of a device
    stays.
    """
    scenario, tried, least, most = min(rows, key=lambda row: row.missing_bytes).alone, 0, inf, 0
    for factor in doubled(ENOUGH):
        most = scenario.world.ranks * factor
        own = on_ranks(dataclasses.replace(scenario, check=Check(), fault=()), most)
        for number in range(len(CHEAPER) + 1 if factor == 1 else 1):
            changed = with_keys(own, dict([*CHEAPER.items()][:number]), samples(own))
            with suppress(ZerosimError):
                chunks = {"parallel.model_chunks": sorted({1, changed.parallel.model_chunks})}
                layouts = [*layouts_of(changed, space(changed) | chunks).values()]
                searched = fastest(layouts, 1, FURTHER)
                if searched.rows[0].fits:
                    return (f"{in_keys(searched.rows[0], scenario)} the fastest of {searched.planned:,} planned of "
                            f"{searched.layouts:,} layouts; --search with these keys finds the fastest of all")
                tried, least = tried + searched.layouts, min(least, *(sum(at_rest(row)) for row in layouts))
    return (f"None of {tried:,} layouts fits on up to {most:,} devices: stages, tensor, context, expert and pipeline "
            f"ranks, micro-batches, recomputation and accumulation were searched, a chunked loss and an optimizer on "
            f"the host on {scenario.world.ranks:,}; between steps one keeps {least / 1e9:,.1f} GB at least")


def in_keys(row: PlannedRow, scenario: Scenario) -> str:
    """A row that fits, and the keys by which it differs from the given scenario."""
    new, changes = row.alone, list[str]()
    for section in ("world", "train", "parallel", "cluster"):
        one, other = getattr(new, section), getattr(scenario, section)
        changes += [f"{section}.{key}={written(list(value) if isinstance(value, tuple) else value)}"
                    for key, value in vars(one).items() if value != getattr(other, key)]
    host = f" and {row.host_bytes / 1e9:,.1f} GB of the host's" if row.host_bytes else ""
    devices = plural(row.config.directions.ranks, "device")
    return (f"It fits on {devices} as {row.name}: {row.peak_bytes / 1e9:,.1f} GB{host}, "
            f"{duration(row.step_seconds)} a step. Set {' '.join(changes)}. It is")


def samples(scenario: Scenario) -> int:
    """The samples of a step."""
    return scenario.train.micro_batch * scenario.train.micro_batches


def written(value: Any) -> str:
    """A value as the right-hand side of an override.

    A value without counterpart in JSON, such as a TOML date, becomes text, which only keys of text accept.

    >>> written("adam"), written(True), written([1, 2]), written({"flops": 1e12})
    ('adam', 'true', '[1, 2]', '{ flops = 1000000000000.0 }')
    """
    return value if isinstance(value, str) else toml_value(value)
