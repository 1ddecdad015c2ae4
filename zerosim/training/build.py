"""Constructors for a row: the replica of one rank, and the reference, which trains in one process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.autograd.operations import dropout
from zerosim.autograd.player import Perform, perform
from zerosim.autograd.shelf import in_memory, offloaded, partitioned
from zerosim.autograd.tape import Policy, Tape, Total
from zerosim.autograd.tape_collectives import ALONE, Direction, TapeGroup, TapeGroups, over
from zerosim.collectives import ring
from zerosim.collectives.narrow import OnNarrowWires, WireFormat
from zerosim.core.allocation import Allocator, Array
from zerosim.core.comm import Communicator
from zerosim.models.parameters import Coordinates
from zerosim.models.places import side_by_side
from zerosim.models.units import ParameterPlace, Unit
from zerosim.observe.observed import Observed, observed
from zerosim.observe.trace import WAIT
from zerosim.stages import Stage
from zerosim.stages.adding import add_replicas, widening
from zerosim.stages.gathering import PUBLISHING, OfMatrices, gathering
from zerosim.stages.pipeline import Neighbours, Pipeline
from zerosim.stages.replica import Batch, Collectives, Initial, Replica
from zerosim.stages.schedules import SCHEDULES, Slot
from zerosim.stages.second_channel import SecondChannel
from zerosim.stages.square_sums import SquareSums
from zerosim.stages.storage import HOST, WEIGHTS, HostMemory, Storage, TrainingState
from zerosim.training.buckets import Buckets
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


@dataclass(frozen=True)
class Parts:
    """The parts of a replica that differ between a run, shapes and a plan: the update rule, norms, the channels of
    prefetches and of overlapped reductions, the allocator of states, the shelf's group, and wire formats."""

    rule: Any
    norms: SquareSums
    gathers: SecondChannel
    reducing: SecondChannel
    allocate: Allocator
    shelf_group: TapeGroup | None = None
    weights_wire: WireFormat | None = None
    gradients_wire: WireFormat | None = None


def replica(
    config: Config, comm: Observed, allocate: Allocator, second_channel: Communicator | None = None, *,
    perform: Perform = perform, host: HostMemory = HOST, groups: TapeGroups = ALONE, pipeline: TapeGroups = ALONE,
    policy: Policy | None = None, parts: Parts | None = None,
) -> Replica:
    """One rank's replica, without states yet; the instruments of `comm` observe its collectives and computations.

    Prefetches and overlapped reductions use `second_channel`, if there is one. `perform` runs the operations of the
    tape. The tape's collectives run over `groups`, and the norm is added over `pipeline` too. `policy` replaces the
    configured policy of the tape, and `parts` those of a run.
    """
    if parts is None:
        second = observed(SecondChannel(comm, second_channel), comm.instruments, wait=WAIT)
        units = [unit for unit in (config.whole or config).model.units if not unit.frozen]
        parts = Parts(config.rule, SquareSums(groups, pipeline, units), second, second, allocate)
    arithmetic, addition, parallel, stage = config.arithmetic, config.addition, config.parallel, config.stage
    widens, chunked = arithmetic.accumulate != arithmetic.compute, Buckets(parallel.bucket_bytes).chunked
    state = TrainingState(config.placement.of_rank(comm.rank), config.scaling())

    def draw(out: Array, micro_batch: int, layer: int, operation: int) -> None:
        dropout.uniform(config.train.seed, state.step, out, micro_batch, layer, operation)

    kept = offloaded(allocate, host.allocate, host.carry) if parallel.offload_activations else in_memory
    group = parts.shelf_group or groups.get("tensor", Direction("tensor"))
    storage = Storage(state.placement, parts.allocate, host)
    rule = observed(parts.rule, comm.instruments, update="update", apply="update")
    by_matrix = config.rule.optimizer.of_matrix is not None
    return Replica(
        comm=comm,
        model=config.model,
        tape=watched(config, comm, Tape(
            allocate, widening(addition.accumulate, allocate) if widens else addition.accumulate,
            config.in_one_piece.lowest_trained, draw, config.recomputed,
            partitioned(kept, group, allocate) if parallel.partition_activations else kept, over(groups, perform),
            arithmetic.output, parallel.recompute_keeps, policy or arithmetic.policy, config.model.loss_over,
        )),
        rule=rule,
        arithmetic=arithmetic,
        accumulation=config.accumulation,
        norms=parts.norms.of_gradients,
        collectives=Collectives(
            reduce_scatter=reduce_scatter(config, comm, allocate, parts.gradients_wire or arithmetic.gradients_wire),
            add_replicas=replicas_added(config, comm),
            all_gather=for_owners(chunked, comm.named("all_gather", addition.all_gather)),
            gather_norms=for_owners(chunked, comm.named("gather_norms", ring.all_gather)),
            broadcast=for_owners(Buckets(parallel.bucket_bytes).broadcast, comm.named("broadcast", addition.broadcast)),
        ),
        publishing=OfMatrices() if by_matrix else PUBLISHING[
            parallel.publish if stage.publishes else "weights"](),
        gathering=gathering(state.placement, parts.gathers if parallel.prefetch else None,
                            parts.weights_wire or arithmetic.weights_wire, reshards=parallel.reshard_after_forward),
        overlap=parts.reducing if parallel.overlap else None,
        allocate=allocate,
        storage=storage,
        state=state,
        reduces_to_all=parallel.gradients == "all_reduce",
    )


def on_rank(
    config: Config, comm: Observed, allocate: Allocator, second: Communicator | None = None,
    host: HostMemory = HOST,
) -> tuple[Replica, Callable[[Batch], Total], list[Slot]]:
    """This rank's replica, with the groups of its directions; its step; and the passes of the last step.

    `comm` has all ranks, as has `second`, the channel of prefetches and overlapped reductions.
    """
    here, directions, passes = config.of_rank(comm.rank), config.directions, list[Slot]()
    neighbours = RanksOfPipeline(comm, directions)
    own_replica = replica(
        here, comm.around(directions.data_ranks(comm)), allocate, second and directions.data_ranks(second),
        host=host, groups=groups_of(comm, directions), pipeline={"pipeline": neighbours})
    return own_replica, stepping(here, config.stage, comm, own_replica, neighbours, passes), passes


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
    """The step of a replica: its stage's or, on a rank of a pipeline, its schedule's, recorded in `passes`."""
    if not config.chunks:
        return partial(stage.step, own_replica)

    def tapes(micro_batch: int) -> Tape:
        return watched(config, comm, own_replica.tape.another(micro_batch))

    here = pipeline(own_replica, neighbours, config.chunks, tapes, passes)
    return partial(here.step, SCHEDULES[config.parallel.schedule])


def reduce_scatter(config: Config, comm: Observed, allocate: Allocator, wire: WireFormat | None) -> Callable[..., Any]:
    """The sum of gradients over the ranks, bucket by bucket if a bucket size is set; `wire` quantises them."""
    addition, name, buckets = config.addition, "reduce_scatter", Buckets(config.parallel.bucket_bytes)
    if addition.collective is None:
        return for_owners(lambda add: buckets.order_free(add, allocate), comm.named(name, addition.reduce_scatter))
    collective = addition.collective if wire is None else OnNarrowWires(addition.collective, wire, allocate)
    return for_owners(
        lambda collective: addition.by(buckets.chunked(collective)).reduce_scatter, comm.named(name, collective))


def replicas_added(config: Config, comm: Observed) -> Callable[..., Any]:
    """The sum of a chunk over the ranks that hold copies of it, in different groups."""
    collective, chunked = config.addition.collective, Buckets(config.parallel.bucket_bytes).chunked
    if config.placement.mesh.replicas == 1 or collective is None:
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


def alone(experiment: Experiment, config: Config) -> Iterator[tuple[Snapshot, ...]]:
    """The snapshots of the places with different tensors, before the first step of a row's run and after each. Each has
    all units: in one process a pipeline makes no difference."""

    def snapshots(place: int, groups: TapeGroups) -> Iterator[Snapshot]:
        steps, after = range(config.done + 1, config.train.steps + 1), None
        if (saved := config.resumed) is not None:
            states = {unit: dict(saved_states(config, saved, unit, place)) for unit in config.model.units}
            weights = {unit: of_unit.pop(WEIGHTS) for unit, of_unit in states.items()}
            scaling = replace(config.scaling(), loss_scale=saved.about["loss_scale"],
                              good_steps=saved.about["good_steps"])
            after = Snapshot(saved.step, saved.losses[-1:], weights, states, {}, saved.about["updates"], scaling)
        ends = [unit for rank_config in config.of_pipeline for unit in rank_config.model.units]
        return Reference(
            config.model, initial_weights(config, place), config.rule, config.scaling,
            partial(dropout.uniform, config.train.seed), config.placement.mesh, config.arithmetic, groups, ends,
        ).train((experiment.micro_batches(config, step) for step in steps), after)

    directions = replace(config.directions, pipeline=1)
    if directions.places == 1:
        return ((snapshot,) for snapshot in snapshots(0, ALONE))
    return side_by_side(directions, snapshots)


def saved_states(config: Config, saved: Saved, unit: Unit, place: int) -> Iterator[tuple[str, Array]]:
    """The `weights` of a unit of a place and, unless it is frozen, its optimizer's slots, without padding."""
    precision, slots = config.precision, () if unit.frozen else config.rule.slots
    dtypes = {WEIGHTS: precision.weights} | dict.fromkeys(slots, precision.state)
    coordinates = config.directions.coordinates(place)
    return ((what, of_place(unit, partial(saved.whole, what), dtype, coordinates)) for what, dtype in dtypes.items())


def restored(config: Config, saved: Saved, replica: Replica, place: int) -> list[Array]:
    """Load into the `replica` of a place the part of a saved state in its layouts; the losses of all steps so far."""
    state = replica.state
    state.step, state.updates = saved.step, saved.about["updates"]
    state.scaling.loss_scale, state.scaling.good_steps = saved.about["loss_scale"], saved.about["good_steps"]
    for unit in replica.units:
        for what, flat in saved_states(config, saved, unit, place):
            replica.load(unit, what, flat)
    return [loss.copy() for loss in saved.losses.reshape(-1, 1)]
