"""The schema of a training scenario: every key, its default, and the conditions between keys.

Each variant or stage becomes a `Row` with claims of its own. Rows used to be a name and a position; then a row that
did not fit took another row's claim.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerosim.collectives.own import SERVING
from zerosim.errors import ScenarioError
from zerosim.models import MODELS
from zerosim.parts import Named
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.directions import check_directions
from zerosim.scenario.dtypes import check_dtypes
from zerosim.scenario.fault import Fault
from zerosim.scenario.fields import choice, section, sections, text
from zerosim.scenario.groups import ON_HOSTS, check_groups
from zerosim.scenario.ignored import ignored_by_stage, others_keys
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.offloading import check_delayed
from zerosim.scenario.origin import Origin
from zerosim.scenario.parts import parts_in
from zerosim.scenario.row import Claims, Row
from zerosim.scenario.rules import rules, shortened
from zerosim.scenario.sections import (
    MEGABYTE,
    ROW_BY_ROW,
    Check,
    Checkpoint,
    Data,
    ModelKeys,
    Parallel,
    Train,
    Variant,
    WorldKeys,
)

OFFLOAD_FOLDER = ("parallel", "offload_folder")
WIDEST_BYTES = 8
"""The widest element of a message in bytes: an integer of an order-free sum, a float64, or a norm."""
ENOUGH_TO_JOIN = 8
"""The number of ranks on which an algorithm sends neighbouring chunks in one message, if it ever does."""
DOES_NOT_FIT = ("check", "does_not_fit")


@dataclass(frozen=True)
class Scenario:
    """A whole scenario; `origin` has the positions of its keys and does not count in comparisons.

    >>> Scenario(train=Train(optimizer="adamw")).train.weight_decay
    0.01

    Raises `ScenarioError` if two keys contradict each other.
    """

    kind: str = choice("training", ("training",))
    title: str = text("")
    caption: str = text("")
    world: WorldKeys = section(WorldKeys)
    data: Data = section(Data)
    model: ModelKeys = section(ModelKeys)
    train: Train = section(Train)
    parallel: Parallel = section(Parallel)
    cluster: ClusterKeys = section(ClusterKeys)
    variant: tuple[Variant, ...] = sections(Variant)
    check: Check = section(Check)
    checkpoint: Checkpoint = section(Checkpoint)
    fault: tuple[Fault, ...] = sections(Fault)
    origin: Origin = field(default=Origin(), repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_kind()
        self._check_variants()
        for parallel in [variant.applied(self.parallel) for variant in self.variant] or [self.parallel]:
            check_directions(parallel, self.world, self.train, self.check, self.checkpoint, self.origin)
            self._check_blocks(parallel)
            self._check_tree(parallel)
        self._check_other_ranks()
        self._check_hosts()
        for parallel in (self.parallel, *(variant.applied(self.parallel) for variant in self.variant)):
            ranks = self.world.ranks // parallel.directions.places
            check_groups(parallel, ranks, self.world.ranks_per_host, self.check.same_bits_on, self.origin)
            check_dtypes(parallel, self.train, ranks, self.origin)
            self._check_parts(parallel)
            self._check_layers(parallel)
            self._check_buckets(parallel)
            self._check_offloading(parallel)
            self._check_serving(parallel)
        self._check_rows()
        self._check_faults()

    def _check_faults(self) -> None:
        for index, fault in enumerate(self.fault):
            if fault.step > self.train.steps:
                raise self._no_fault(index, "step", f"step is {fault.step}, but the last step is {self.train.steps}; "
                                                    f"give an existing step")
            if fault.problem is not None:
                raise self._no_fault(index, *fault.problem)

    def _no_fault(self, index: int, key: str, why: str) -> ScenarioError:
        at = ("fault", index)
        return self.origin.error(f"fault[{index}].{why}", (*at, key), (*at, "kind"), at)

    def faults_after(self, restarts: int) -> list[Fault]:
        """The faults of a run after this number of restarts; raises `ScenarioError` if one names a missing rank."""
        due = [(index, fault) for index, fault in enumerate(self.fault) if fault.after_restarts == restarts]
        last = self.world.ranks - 1
        for index, fault in due:
            if fault.rank > last:
                raise self._no_fault(
                    index, "rank", f"rank is {fault.rank}, but the last rank is {last}; give an existing rank")
        return [fault for _, fault in due]

    @property
    def parts(self) -> dict[str, Named]:
        """The users' Python parts, by the key that names them."""
        return dict(parts_in(self))

    def _check_kind(self) -> None:
        kind, default = self.model.kind, ModelKeys()
        for key in others_keys(kind):
            if getattr(self.model, key) == getattr(default, key):
                continue
            if self.origin.is_override(("model", "kind")) and not self.origin.is_override(("model", key)):
                object.__setattr__(self, "model", dataclasses.replace(self.model, **{key: getattr(default, key)}))
            else:
                other = next(name for name, each in MODELS.items() if key in each.own_keys)
                raise self.origin.error(
                    f"model.{key} is for model.kind {other}, and this is {kind}; leave it out, or set model.kind to "
                    f"{other}", ("model", key), at="key")

    def _check_variants(self) -> None:
        for index, variant in enumerate(self.variant):
            for key, why in ignored_by_stage(variant.stage, variant.keys_set).items():
                raise self.origin.error(
                    f"variant[{index}].{key} = {json.dumps(getattr(variant, key))} does nothing in stage "
                    f"{variant.stage}: {why}; leave it out, or name another stage",
                    ("variant", index, key), ("variant", index), at="key")

    def _check_blocks(self, parallel: Parallel) -> None:
        places, micro_batches = parallel.directions.places, self.train.micro_batches
        ranks = self.world.ranks // places
        if micro_batches % ranks:
            below = micro_batches // ranks * ranks
            nearest = f"{below} or {below + ranks}" if below else f"{ranks}"
            shared = f" / {places} that share each" if places > 1 else ""
            raise self.origin.error(
                f"train.micro_batches must be a multiple of world.ranks{shared} = {ranks}, found {micro_batches}; "
                f"set it to {nearest}, or world.ranks to a divisor of {micro_batches}",
                ("train", "micro_batches"), ("world", "ranks"),
            )

    def _check_other_ranks(self) -> None:
        for index, ranks in enumerate(self.check.same_bits_on):
            at = ("check", "same_bits_on", index)
            if self.train.micro_batches % ranks:
                raise self.origin.error(
                    f"check.same_bits_on names {ranks} ranks, which do not divide {self.train.micro_batches} "
                    f"micro-batches; give divisors of train.micro_batches", at,
                )
            if ranks > self.world.ranks:
                raise self.origin.error(
                    f"check.same_bits_on names {ranks} ranks, but world.ranks is {self.world.ranks}; set world.ranks "
                    f"to the largest", at,
                )

    def _check_tree(self, parallel: Parallel) -> None:
        ranks = self.world.ranks // parallel.directions.places
        numbers = [ranks, self.train.micro_batches, *self.check.same_bits_on]
        if parallel.order == "tree" and any(number.bit_count() != 1 for number in numbers):
            raise self.origin.error(
                "parallel.order tree needs powers of two for world.ranks and train.micro_batches, found "
                f"{ranks} and {self.train.micro_batches}; set them so, or parallel.order to exact",
                ("parallel", "order"), ("world", "ranks"), ("train", "micro_batches"),
            )

    def _check_hosts(self) -> None:
        per_host = self.world.ranks_per_host
        if self.parallel.order in ON_HOSTS and not per_host:
            raise self.origin.error(
                f"parallel.order {self.parallel.order} adds within hosts first; set world.ranks_per_host to the ranks "
                "of a host, or order to ring", ("parallel", "order"))
        for ranks in (self.world.ranks, *self.check.same_bits_on):
            if per_host and ranks > per_host and ranks % per_host:
                raise self.origin.error(
                    f"world.ranks_per_host = {per_host} does not divide {ranks} ranks; give a divisor, or 0 for the "
                    f"real hosts", ("world", "ranks_per_host"), ("world", "ranks"))

    def _check_rows(self) -> None:
        rows = self.names({})
        for key, given in ((key, getattr(self.check, key)) for key in ROW_BY_ROW):
            if len(given) not in (0, len(rows)):
                raise self.origin.error(
                    f"check.{key} has {len(given)} numbers for {len(rows)} rows; give one for each: {'; '.join(rows)}",
                    ("check", key),
                )
        stages = [variant.stage for variant in self.variant] or self.parallel.stages
        changed = self.origin.overridden("parallel", "variant") and not self.origin.is_override(DOES_NOT_FIT)
        for index, stage in enumerate(self.check.does_not_fit):
            if stage not in stages and not changed:
                raise self.origin.error(
                    f"check.does_not_fit names {stage}, but no row uses it; rows are {'; '.join(rows)}",
                    (*DOES_NOT_FIT, index),
                )

    def _check_parts(self, parallel: Parallel) -> None:
        if parallel.accumulation == "micro_batch" and parallel.order in ("tree", "exact"):
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
        if self.train.warmup_steps > self.train.steps:
            raise self.origin.error(
                f"train.warmup_steps must be at most train.steps = {self.train.steps}, found {self.train.warmup_steps}",
                ("train", "warmup_steps"), ("train", "steps"),
            )

    def _check_buckets(self, parallel: Parallel) -> None:
        ranks = self.world.ranks // parallel.directions.places
        least = ranks * WIDEST_BYTES
        if parallel.bucket_mb and parallel.bucket_bytes < least:
            raise self.origin.error(
                f"parallel.bucket_mb must be 0, or hold an element for each of {ranks} ranks, "
                f"{least} bytes = {least / MEGABYTE:g}, found {parallel.bucket_mb:g}",
                ("parallel", "bucket_mb"), ("world", "ranks"),
            )

    def _check_serving(self, parallel: Parallel) -> None:
        """Check that the named algorithms support a group, a sum the replicas too, and declare an order."""
        data_ranks = self.world.ranks // parallel.directions.places
        ranks = parallel.group_of(data_ranks)
        for kind in SERVING:
            name = getattr(parallel, kind)
            if not name:
                continue
            algorithm = SERVING[kind][name]
            for count in (ranks, data_ranks // ranks) if kind == "reduce_scatter" else (ranks,):
                if not algorithm.serves(count):
                    raise self.origin.error(
                        f"parallel.{kind} {name} serves {algorithm.limit}, not {count}; use another algorithm or "
                        f"another number of ranks", ("parallel", kind), ("world", "ranks"))
            joins = algorithm.users or any(
                len(message) > 1 for rank in range(ENOUGH_TO_JOIN)
                for message in algorithm.volume(rank, ENOUGH_TO_JOIN, 0))
            if parallel.bucket_mb and joins and kind != "broadcast":
                raise self.origin.error(
                    "parallel.bucket_mb cuts chunks into pieces that are not contiguous, and "
                    f"parallel.{kind} {name} may send neighbouring chunks in one message; remove one of them",
                    ("parallel", kind), ("parallel", "bucket_mb"))
            if kind == "reduce_scatter" and parallel.order == "exact":
                raise self.origin.error(
                    f"parallel.reduce_scatter {name} adds in a fixed order, and order exact has none; set order to "
                    f"ring, rank or tree, or remove it", ("parallel", kind), ("parallel", "order"))

    def _check_offloading(self, parallel: Parallel) -> None:
        if parallel.offload_activations and not parallel.recompute:
            raise self.origin.error(
                "parallel.offload_activations offloads the inputs of recomputed units; set parallel.recompute to true "
                "or to layers too, or remove it",
                ("parallel", "offload_activations"), ("parallel", "recompute"),
            )
        if parallel.recompute_keeps and not parallel.recompute:
            raise self.origin.error(
                "parallel.recompute_keeps is for recomputed units; set parallel.recompute to true or to layers "
                "as well, or leave it out",
                ("parallel", "recompute_keeps"), ("parallel", "recompute"),
            )
        check_delayed(parallel, self.train, self.origin)
        if "\0" in parallel.offload_folder:
            raise self.origin.error("parallel.offload_folder: a path cannot contain a NUL byte", OFFLOAD_FOLDER)

    def _check_layers(self, parallel: Parallel) -> None:
        with self.origin.blaming(("model", "kind")):
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
        tied = self.model.tied
        together = any({0, layers - 1} <= set(unit) for unit in units)
        if (sorted(named) if tied or together else named) != list(range(layers)):
            raise self.origin.error(
                f"parallel.units must name layers 0 to {layers - 1}, each once{'' if tied else ' and in order'}, "
                f"found {shortened(str(named))}",
                ("parallel", "units"),
            )
        if tied and not together:
            raise self.origin.error(
                f"model.tied_embeddings: layers 0 and {layers - 1} share their weights, so parallel.units must name "
                "them in one unit; or untie them", ("parallel", "units"), ("model", "tied_embeddings"),
            )

    @property
    def rows(self) -> "list[Row]":
        """The rows in the order of training: each variant or, without any, each stage.

        >>> [(row.stage, row.claims.volume) for row in Scenario(
        ...     parallel=Parallel(stages=("ddp", "zero3")), check=Check(volumes=(2, 3))).rows]
        [('ddp', 2), ('zero3', 3)]
        """
        named = [(variant.name, variant.applied(self.parallel)) for variant in self.variant]
        alone = [("", dataclasses.replace(self.parallel, stages=(stage,))) for stage in self.parallel.stages]
        return [self._row(number, name, parallel) for number, (name, parallel) in enumerate(named or alone)]

    def names(self, titles: Mapping[str, str]) -> list[str]:
        """The name of each row, with `titles` for stages; names are unique.

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
            name, stage, self.world.ranks // parallel.directions.places, parallel.directions, self.world.ranks_per_host,
            round(1000 * self.cluster.short_gather_kb), self.world.memory_limit_mb, self.model, self.train, parallel,
            self._layers(parallel), claims,
        )

    def _layers(self, parallel: Parallel) -> tuple[tuple[int, ...], ...]:
        """The layers of each unit; raises `ScenarioError` if only a part of a unit would be frozen."""
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
                    f"the unit of layers {list(unit)} is partly frozen; freeze all of its layers or none, or change "
                    "parallel.units", ("model", "frozen"), ("parallel", "units"),
                )
        return found


def resolved(scenario: "Scenario | CollectiveScenario") -> dict[str, Any]:
    """Every key with its value, defaults filled in, in JSON's own types.

    >>> resolved(Scenario())["data"]
    {'source': 'digits', 'target': '', 'test_every': 0}
    """
    return {name: plain(getattr(scenario, name)) for name in rules(type(scenario))}


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        found = {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return found | found.pop("own", {})
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value
