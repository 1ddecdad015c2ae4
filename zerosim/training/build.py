"""Constructors for a row: the replica of one rank, and the reference, which trains in one process."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.autograd.operations import dropout
from zerosim.autograd.player import Perform, perform
from zerosim.autograd.shelf import Shelf, in_memory, offloaded, partitioned
from zerosim.autograd.tape import Policy, Tape, Total
from zerosim.autograd.tape_collectives import ALONE, Direction, TapeGroups, over
from zerosim.collectives import ring
from zerosim.collectives.narrow import OnNarrowWires, WireFormat
from zerosim.core.allocation import Allocator, Array, Kind
from zerosim.core.comm import Communicator
from zerosim.models.parameters import Coordinates
from zerosim.models.places import side_by_side
from zerosim.models.units import ParameterPlace, Unit
from zerosim.observe.observed import Observed, observed
from zerosim.observe.trace import WAIT
from zerosim.stages import Stage
from zerosim.stages.adding import add_replicas, widening
from zerosim.stages.gathering import (
    PUBLISHING,
    Fill,
    KeptUntilBackward,
    OfMatrices,
    Prefetched,
    Quantized,
    SecondCopy,
    WhenUsed,
    filled,
)
from zerosim.stages.pipeline import Neighbours, Pipeline
from zerosim.stages.replica import (
    Batch,
    Collectives,
    Gathering,
    GradientReduction,
    Initial,
    Publishing,
    Replica,
)
from zerosim.stages.schedules import SCHEDULES, Slot
from zerosim.stages.second_channel import SecondChannel
from zerosim.stages.square_sums import SquareSums
from zerosim.stages.storage import HOST, HostMemory, Layouts, Storage, TrainingState
from zerosim.stages.update import UpdateRule
from zerosim.training.config import Config
from zerosim.training.experiment import Experiment
from zerosim.training.groups import RanksOfPipeline, groups_of
from zerosim.training.reference import Reference, Snapshot
from zerosim.training.state_file import Saved


def initial_weights(config: Config, place: int = 0) -> Initial:
    """The function that returns a unit's first weights on a place in float32, from the seed or a file."""
    file, coordinates = config.initial, config.directions.coordinates(place)
    if file is None:
        return lambda unit: unit.initial(config.train.seed, coordinates)
    return lambda unit: of_place(unit, lambda parameter: file.read(parameter.name), config.precision.losses,
                                 coordinates)


def of_place(
    unit: Unit, read: Callable[[ParameterPlace], Array], dtype: Any, coordinates: Coordinates
) -> Array:
    """The flat buffer of a unit of a place, from the whole array that `read` has of each parameter."""
    flat = np.empty(unit.count, dtype)
    for parameter, view in zip(unit.places, unit.views(flat).values(), strict=True):
        view[...] = parameter.parameter.piece(read(parameter), coordinates)
    return flat


def replica(
    config: Config, comm: Observed, allocate: Allocator, second_channel: Communicator | None = None,
    perform: Perform = perform, host: HostMemory = HOST,
    groups: TapeGroups = ALONE, pipeline: TapeGroups = ALONE, policy: Policy | None = None,
) -> Replica:
    """One rank's replica, without states yet; the instruments of `comm` observe its collectives and computations.

    Prefetches and overlapped reductions use `second_channel`, if there is one. `perform` runs the operations of the
    tape. The tape's collectives run over `groups`, and the norm is added over `pipeline` too. `policy` replaces the
    configured policy of the tape.
    """
    second = observed(SecondChannel(comm, second_channel), comm.instruments, wait=WAIT)
    addition = config.addition
    widens = config.summed != config.computing.weights
    accumulate = widening(addition.accumulate, allocate) if widens else addition.accumulate
    state = TrainingState(Layouts(config.mesh_of(comm.rank), config.stage.sharded), config.scaling())

    def draw(out: Array, micro_batch: int, layer: int, operation: int) -> None:
        dropout.uniform(config.train.seed, state.step, out, micro_batch, layer, operation)

    buckets, every_unit = config.buckets, (config.whole or config).model.units
    storage, rule = storage_of(config, allocate, host, config.rule, comm.instruments)
    return Replica(
        comm=comm,
        model=config.model,
        tape=watched(config, comm, Tape(
            allocate, accumulate, config.in_one_piece.lowest_trained, draw, config.recomputed,
            shelf(config, allocate, host, groups), over(groups, perform),
            config.outputs, config.parallel.recompute_keeps, policy or config.policy,
            config.model.loss_over,
        )),
        rule=rule,
        reduction=GradientReduction(
            wire=config.wire,
            accumulates_in_float32=config.accumulates_in_float32,
            to_all=config.parallel.gradients == "all_reduce",
        ),
        accumulation=config.accumulation,
        norms=SquareSums(groups, pipeline, [unit for unit in every_unit if not unit.frozen]),
        collectives=Collectives(
            reduce_scatter=reduce_scatter(config, comm, allocate),
            add_replicas=replicas_added(config, comm),
            all_gather=for_owners(buckets.chunked, comm.named("all_gather", config.addition.all_gather)),
            gather_norms=for_owners(buckets.chunked, comm.named("gather_norms", ring.all_gather)),
            broadcast=for_owners(buckets.broadcast, comm.named("broadcast", config.broadcast)),
        ),
        publishing=publishing(config),
        gathering=gathering(config, second),
        overlap=second if config.parallel.overlap else None,
        allocate=allocate,
        storage=storage,
        state=state,
        param_dtype=config.computing.weights,
    )


def on_rank(
    config: Config, observed: Observed, allocate: Allocator, second: Communicator | None = None,
    host: HostMemory = HOST,
) -> tuple[Replica, Callable[[Batch], Total], list[Slot]]:
    """The replica of this rank of `observed`, with the groups of its directions; its step; the passes of the last one.
    """
    here, directions, passes = config.of_rank(observed.rank), config.directions, list[Slot]()
    neighbours = RanksOfPipeline(observed, directions)
    own_replica = replica(
        here, observed.around(directions.data_ranks(observed)), allocate, second and directions.data_ranks(second),
        host=host, groups=groups_of(observed, directions), pipeline={"pipeline": neighbours})
    return own_replica, stepping(here, config.stage, observed, own_replica, neighbours, passes), passes


def publishing(config: Config) -> Publishing:
    """The way of updated weights to the ranks that do not own them."""
    if config.of_matrices:
        return OfMatrices()
    return PUBLISHING[config.parallel.publish if config.stage.publishes else "weights"]()


def watched(config: Config, comm: Observed, tape: Tape) -> Tape:
    """A tape whose passes the instruments of `comm` observe."""
    return observed(
        tape, comm.instruments, forward="forward", loss="loss", backward="backward",
        backward_input="backward", backward_weights="backward",
        recompute=lambda unit: "recompute" if unit in config.recomputed else "")


def stepping(
    config: Config, stage: Stage, comm: Observed, own_replica: Replica, neighbours: Neighbours, passes: list[Slot],
    pipeline: Callable[..., Pipeline] = Pipeline,
) -> Callable[[Batch], Total]:
    """The step of a replica: that of its stage or, on a rank of a pipeline, of its schedule, which leaves its passes in
    `passes`."""
    if not config.chunks:
        return partial(stage.step, own_replica)

    def tapes(micro_batch: int) -> Tape:
        return watched(config, comm, own_replica.tape.another(micro_batch))

    here = pipeline(own_replica, neighbours, config.chunks, tapes, passes)
    return partial(here.step, SCHEDULES[config.parallel.schedule])


def storage_of(
    config: Config, allocate: Allocator, host: HostMemory, rule: UpdateRule, instruments: Sequence[object]
) -> tuple[Storage, UpdateRule]:
    """The storage of a row's states, and the update rule, which instruments observe."""
    updates = observed(rule, instruments, update="update", differences="update", apply="update")
    return Storage(config.on_host, allocate, host), updates


def shelf(config: Config, allocate: Allocator, host: HostMemory, groups: TapeGroups) -> Shelf:
    """The place where the row's tape keeps the inputs of recomputed units."""
    parallel = config.parallel
    kept = offloaded(allocate, host.allocate, host.carry) if parallel.offload_activations else in_memory
    if not parallel.partition_activations:
        return kept
    return partitioned(kept, groups.get("tensor", Direction("tensor")), allocate)


def reduce_scatter(
    config: Config, comm: Observed, allocate: Allocator, wire: WireFormat | None = None
) -> Callable[..., Any]:
    """The sum of gradients over the ranks, bucket by bucket if the scenario has a bucket size.

    `wire` replaces the format of quantised gradients.
    """
    addition, name, buckets, wire = config.addition, "reduce_scatter", config.buckets, wire or config.gradients_wire
    if addition.collective is None:
        return for_owners(lambda add: buckets.order_free(add, allocate), comm.named(name, addition.reduce_scatter))
    collective = addition.collective if wire is None else OnNarrowWires(addition.collective, wire, allocate)
    return for_owners(
        lambda collective: addition.by(buckets.chunked(collective)).reduce_scatter, comm.named(name, collective))


def replicas_added(config: Config, comm: Observed) -> Callable[..., Any]:
    """The sum of a chunk over the ranks that hold copies of it, in different groups."""
    collective, chunked = config.addition.collective, config.buckets.chunked
    if config.mesh.replicas == 1 or collective is None:
        return lambda *_: None
    halves = comm.named("all_reduce", collective), comm.named("all_reduce", ring.all_gather)

    def call(owner: str, comm: Communicator, chunk: Array) -> None:
        add_replicas(*(chunked(partial(half, owner)) for half in halves))(comm, chunk)

    return call


def for_owners(wrap: Callable[[Any], Callable[..., Any]], named: Callable[..., Any]) -> Callable[..., Any]:
    """A function of an owner and a collective's arguments that calls the collective as changed by `wrap`."""

    def call(owner: str, *args: Any) -> Any:
        return wrap(partial(named, owner))(*args)

    return call


def gathering(config: Config, second_channel: SecondChannel, wire: WireFormat | None = None) -> Gathering:
    """Stage III's gathering of weights; `wire` replaces the format of quantised weights."""
    secondary, quantized = config.parallel.secondary_ranks, config.weights_wire
    fill: Fill = filled if quantized is None else Quantized(wire or quantized)
    if secondary:
        fill = SecondCopy(secondary, fill)
    if config.parallel.prefetch:
        return Prefetched(second_channel, fill)
    return WhenUsed(fill) if config.parallel.reshard_after_forward else KeptUntilBackward(fill)


def reference(config: Config, place: int = 0, groups: TapeGroups = ALONE) -> Reference:
    """The reference of a row: the training of one place in one process."""
    return Reference(
        model=config.model,
        groups=groups,
        ends=[unit for rank_config in config.of_pipeline for unit in rank_config.model.units],
        initial=initial_weights(config, place),
        rule=config.rule,
        scaling=config.scaling,
        draw=partial(dropout.uniform, config.train.seed),
        mesh=config.mesh,
        order=config.order,
        arithmetic=config.arithmetic,
    )


def alone(experiment: Experiment, config: Config) -> Iterator[tuple[Snapshot, ...]]:
    """The snapshots of the places with different tensors, before the first step of a row's run and after each. Each has
    all units: in one process a pipeline makes no difference."""

    def of_place(place: int, groups: TapeGroups) -> Iterator[Snapshot]:
        after = None if config.resumed is None else saved_snapshot(config, config.resumed, place)
        return reference(config, place, groups).train(experiment.all_ranks(config, config.done), after)

    directions = replace(config.directions, pipeline=1)
    if directions.places == 1:
        return ((snapshot,) for snapshot in of_place(0, ALONE))
    return side_by_side(directions, of_place)


def saved_snapshot(config: Config, saved: Saved, place: int) -> Snapshot:
    """The state of a checkpoint in the units of a place."""
    coordinates = config.directions.coordinates(place)

    def read(unit: Unit, what: str, dtype: Any) -> Array:
        return of_place(unit, partial(saved.whole, what), dtype, coordinates)

    weights = {unit: read(unit, "weights", config.precision.weights) for unit in config.model.units}
    optimizer = {unit: {slot: read(unit, slot, config.precision.state) for slot in config.rule.slots}
                 for unit in config.model.units if not unit.frozen}
    about = saved.about
    scaling = replace(config.scaling(), loss_scale=about["loss_scale"], good_steps=about["good_steps"])
    return Snapshot(saved.step, saved.losses[-1:], weights, optimizer, {}, about["updates"], scaling)


def restored(config: Config, saved: Saved, replica: Replica, place: int) -> list[Array]:
    """Load into the `replica` of a place the part of a saved state in its layouts; the losses of all steps so far."""
    state, precision, coordinates = replica.state, config.precision, config.directions.coordinates(place)
    state.step, state.updates = saved.step, saved.about["updates"]
    state.scaling.loss_scale, state.scaling.good_steps = saved.about["loss_scale"], saved.about["good_steps"]

    def filled(unit: Unit, what: str, kind: Kind, dtype: Any) -> Array:
        layout = state.layouts.of(unit, kind)
        kept = replica.storage.allocator(kind)(layout.length, dtype, kind=kind, owner=unit.name)
        own = of_place(unit, partial(saved.whole, what), dtype, coordinates)[layout.start : layout.stop]
        kept[: len(own)], kept[len(own) :] = own, 0
        return kept

    for unit in replica.units:
        state.weights[unit] = filled(unit, "weights", "parameters", precision.weights)
        if not unit.frozen:
            state.optimizer[unit] = {
                slot: filled(unit, slot, "optimizer", precision.state) for slot in replica.rule.slots}
    return [loss.copy() for loss in saved.losses.reshape(-1, 1)]
