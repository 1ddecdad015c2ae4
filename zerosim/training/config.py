"""The config of a row, in the terms that stages, reference and formulas share: a model, no data.

Formulas need a row and its model only. The experiment adds the data.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from zerosim.autograd.autocast import Autocast
from zerosim.autograd.tape import as_written
from zerosim.autograd.tape_collectives import Direction
from zerosim.collectives import Algorithm
from zerosim.collectives.own import SERVING
from zerosim.collectives.table import find
from zerosim.core.orders import ORDERS, Order
from zerosim.core.precisions import FLOAT32, PRECISIONS, Precision
from zerosim.core.sharding import Mesh
from zerosim.core.wires import Format
from zerosim.models import build
from zerosim.models.parallel import IN_ONE_PIECE, ModelParallel
from zerosim.models.units import Model, Task, Unit
from zerosim.scenario.conditions import ignored
from zerosim.scenario.data.weights import WeightsFile
from zerosim.scenario.schema import Row
from zerosim.stages import STAGES, Stage
from zerosim.stages.adding import ADDITIONS, Addition
from zerosim.stages.arithmetic import Arithmetic
from zerosim.stages.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.stages.pipeline import Chunk, chunks_of
from zerosim.stages.scaling import INITIAL_SCALE, Scaling
from zerosim.stages.storage import Placement
from zerosim.stages.update import UpdateRule
from zerosim.training.state_file import Saved


@dataclass(frozen=True, eq=False)
class Config(Row):
    """A row with its model; everything else is derived here. Three values have what most readers need: `arithmetic`,
    what decides bits; `placement`, where model states are; and the row's `directions`, who shares with whom."""

    model: Model
    resumed: Saved | None = None
    """The checkpoint from which this run resumes; None for a run from the start."""
    initial: WeightsFile | None = None
    """The file of the first weights; None if they are drawn."""
    chunks: tuple[Chunk, ...] = ()
    """The model chunks of one rank of a pipeline, whose units are those of `model`."""
    whole: "Config | None" = None
    """The config of all ranks of the pipeline, if this is that of one."""

    @property
    def stage(self) -> Stage:
        return STAGES[self.stage_key]

    def of_rank(self, rank: int) -> "Config":
        """The config of a rank, whose model has the units of its rank of the pipeline."""
        configs, directions = self.of_pipeline, self.directions
        assert rank < directions.ranks
        return configs[directions.place(rank) // directions.side_by_side]

    @cached_property
    def of_pipeline(self) -> "tuple[Config, ...]":
        """The config of each rank of the pipeline; without one, this config."""
        size, parallel = self.directions.pipeline, self.parallel
        if size == 1:
            return (self,)
        chunks = chunks_of(
            self.model, parallel.pieces, parallel.pipeline_layers, self.train.micro_batch, self.arithmetic.compute,
            self.arithmetic.policy)
        return tuple(replace(
            self, model=replace(self.model, units=tuple(unit for chunk in own for unit in chunk.units)),
            chunks=tuple(own), whole=self) for own in (chunks[rank::size] for rank in range(size)))

    @property
    def layout(self) -> str:
        """The directions, the stage and its ranks, such as `tp2 × Stage I on 2`; empty if ranks have whole models."""
        words = self.directions.words
        return f"{words} × {self.stage.title} on {self.directions.data}" if words else ""

    @cached_property
    def placement(self) -> Placement:
        """Where rank 0 of a place has the model states."""
        parallel, second = self.parallel, self.parallel.secondary_ranks * self.stage.gathers
        return Placement(
            Mesh(0, self.directions.data, parallel.shard_ranks or self.directions.data), self.stage.sharded,
            self.stage.on_host(parallel.offload_optimizer, parallel.offload_parameters),
            Mesh(0, self.directions.data, second) if second else None)

    @property
    def done(self) -> int:
        """The steps before this run."""
        return self.resumed.step if self.resumed else 0

    @property
    def steps_here(self) -> int:
        """The number of steps in this run."""
        return self.train.steps - self.done

    @property
    def samples(self) -> int:
        """Samples in the global batch of one step."""
        return self.train.micro_batches * self.train.micro_batch

    @property
    def precision(self) -> Precision:
        """The precision of kept weights, gradients and optimizer state."""
        return PRECISIONS[self.train.precision]

    @property
    def addition(self) -> Addition:
        """The order of addition as an `Addition` that stages run, with the algorithms that the row names."""
        addition = ADDITIONS[self.parallel.order].with_hosts(self.ranks_per_host)
        served = {kind: self.serving(kind) for kind in SERVING}
        named: dict[str, Any] = {kind: own.carry_out for kind, own in served.items() if own is not None}
        reduced = named.pop("reduce_scatter", None)
        return replace(addition if reduced is None else addition.by(reduced), **named)

    def serving(self, kind: str) -> Algorithm | None:
        """The algorithm that the row names for a kind of collective; None if it names none."""
        name = getattr(self.parallel, kind)
        if name == "auto":
            return find(kind, name, self.placement.mesh.group)
        return SERVING[kind][name] if name else None

    @cached_property
    def recomputed(self) -> frozenset[Unit]:
        """The units that keep only their input for backward, and run forward again."""
        chosen = self.parallel.recompute
        return frozenset(unit for unit in self.model.units if chosen is True or {*unit.numbers} & {*(chosen or ())})

    @cached_property
    def in_one_piece(self) -> Model:
        """The model of which each place has a piece."""
        whole = replace(self.model.task, parallel=IN_ONE_PIECE)
        return self.model if self.directions.places == 1 else build(self.keys, whole, self.layers)

    @property
    def block(self) -> int:
        """Micro-batches per rank and step."""
        return self.train.micro_batches // self.directions.data

    @property
    def accumulation(self) -> str:
        """The accumulation that the row uses; if the requested one is impossible, `boundary`."""
        requested = "micro_batch" if self.stage.reduces_parts else self.parallel.accumulation
        possible = self.block > 1 and (requested != "micro_batch" or self.stage.may_reduce_parts)
        return requested if possible else "boundary"

    @property
    def ignored(self) -> dict[str, str]:
        """The keys of [parallel] that have no effect on the row, and why."""
        return ignored(self.stage_key, vars(self.parallel), self.block)

    @property
    def reductions(self) -> int:
        """The number of reductions of a gradient per step; before each a rank adds as many micro-batches."""
        return self.block if self.arithmetic.part_by_part else 1

    @property
    def at_once(self) -> int:
        """The number of a rank's micro-batches that run forward and backward together."""
        return self.block if self.accumulation == "layered" else 1

    @property
    def passes(self) -> int:
        """The number of forward and backward passes of a rank per step."""
        return self.block // self.at_once

    @property
    def sums_everywhere(self) -> bool:
        """Whether a reduction leaves the sums of all chunks on every rank, not only its own."""
        to_all = self.parallel.gradients == "all_reduce"
        return (self.stage.publishes and to_all) or not self.stage.shares_updates

    @cached_property
    def rule(self) -> UpdateRule:
        """The optimizer step, for any stretch of a unit."""
        train = self.train
        return UpdateRule(
            OPTIMIZERS[train.optimizer],
            Hyperparameters(**{key.name: getattr(train, key.name) for key in fields(Hyperparameters)
                               if hasattr(train, key.name)}),
            self.precision, train.decay_biases, train.schedule, train.warmup_steps, train.steps)

    def scaling(self) -> Scaling:
        """The first loss scale, and the norm for clipping."""
        train = self.train
        if isinstance(train.loss_scale, str):
            dynamic = any(kind.scales_loss for kind in PRECISIONS.values() if kind.weights == self.arithmetic.products)
            return Scaling(INITIAL_SCALE if dynamic else 1.0, dynamic, train.clip_norm)
        return Scaling(train.loss_scale, False, train.clip_norm)

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """Where sums are rounded, and in which order they are added.

        FSDP2 adds micro-batches in `reduce_dtype`, and so does a row with a `param_dtype`, if `reduce_dtype` is wider.
        In float32, applying published updates everywhere is the same computation as applying them once.
        """
        keys, stage, kept = self.parallel, self.stage, self.precision
        computing = kept if keys.param_dtype == "weights" or not stage.gathers else PRECISIONS[keys.param_dtype]
        autocast = PRECISIONS.get(keys.autocast)
        wire = (PRECISIONS.get(stage.wire or keys.reduce_dtype) or computing).weights
        wide = keys.accumulate_dtype == "fp32"
        widened = computing is not kept and wire == FLOAT32
        order, named = ORDERS[keys.order].with_hosts(self.ranks_per_host), self.serving("reduce_scatter")
        if named is not None:
            first = order.words.partition(", then ")[0]
            order = Order(f"{first}, then ranks as {named.name} declares", order.within, named.order)
        codes = keys.quantized_weights if stage.gathers else "none", keys.quantized_gradients
        weights, gradients = (None if code == "none" else Format(code, keys.quantized_block) for code in codes)
        return Arithmetic(
            compute=computing.weights, products=(autocast or computing).weights,
            policy=Autocast(autocast.weights) if autocast else as_written, order=order,
            output=(PRECISIONS.get(keys.output_dtype) or computing).weights, weights_wire=weights,
            gradients_wire=gradients, accumulate=FLOAT32 if wide or widened else computing.weights, wire=wire,
            accumulates_in_float32=wide, part_by_part=self.accumulation == "micro_batch",
            publishes_updates=keys.publish == "updates" and stage.publishes and kept.mixed)

    @property
    def reference_key(self) -> tuple[object, ...]:
        """All that determines the bits of all steps here: rows of a training with equal values share one reference."""
        train, mesh, place = self.train, self.placement.mesh, self.model.task.parallel
        shaped = train.steps if train.schedule != "constant" else 0
        hosts = self.ranks_per_host if self.arithmetic.order.on_hosts else 0
        ends = any(unit.end for rank_config in self.of_pipeline for unit in rank_config.model.units)
        order = self.parallel.order, self.parallel.reduce_scatter, hosts
        begun = self.resumed and self.resumed.about["sha256"]
        return mesh, self.layers, place, order, shaped, ends, self.arithmetic, begun

    @property
    def settings(self) -> tuple[object, ...]:
        """All that a scenario says of the row, except its name."""
        return tuple(getattr(self, field.name) for field in fields(Row) if field.name != "name")

    def on(self, ranks: int) -> "Config":
        """The config on a different number of ranks."""
        return replace(self, directions=replace(self.directions, data=ranks))


def configured(row: Row, task: Task, build: Callable[..., Model] = build) -> Config:
    """The config of a row, with a model for its data: the piece of one place, if ranks share micro-batches."""
    return Config(**vars(row), model=build(row.keys, split_task(row, task), row.layers))


def split_task(row: Row, task: Task) -> Task:
    """The task of one place."""
    (tensor, context, expert), keys = (Direction(*size) for size in row.directions.sizes.items()), row.parallel
    return replace(task, parallel=ModelParallel(
        tensor, context, expert, keys.sequence_parallel, keys.vocabulary_parallel, keys.context_by))
