"""What a comparison and a verdict make of a few figures: by hand, without a run."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.training import labelled, scenario
from zerosim.autograd.operations.elementwise import relu
from zerosim.autograd.tape import Tape
from zerosim.core.allocation import allocate
from zerosim.core.bits import NOT_A_NUMBER, digest, with_one_nan
from zerosim.core.comm import strided
from zerosim.core.orders import ORDERS
from zerosim.core.sharding import Directions, Layout, Mesh, full, split
from zerosim.models.mlp import mlp
from zerosim.models.units import Layer, Model, Task, grouped
from zerosim.observe.ledger import Ledger
from zerosim.observe.observed import Observed, ObservedAllocator
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.costs import Costs
from zerosim.stages.storage import ACCUMULATED, GRADIENT, Placement, TrainingState
from zerosim.training import build, collect, comparison
from zerosim.training.buckets import Buckets
from zerosim.training.comparison import Fingerprint, comparable, compared
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import different_rows
from zerosim.worlds.local import spawn

UNIT, = mlp(3, [], 2, "relu", "cross_entropy").units                          # 8 numbers
OTHER_NAN = np.array([NOT_A_NUMBER.view(np.uint32) ^ 1], np.uint32).view(np.float32)

# What a rank holds, beside what one process holds.


def state(rank=1, mesh=None, **held):
    """Of 2 ranks, in full, what is given of the unit: numbers from 0 on for what is not."""
    placement = Placement(mesh or Mesh(rank, 2, 2))
    found = TrainingState(placement, SimpleNamespace(loss_scale=1.0, good_steps=0), weights={UNIT: np.arange(8.0)})
    found.gradients[UNIT] = held.get("gradient", np.arange(8.0))
    found.gradient_layouts[UNIT] = full(8, placement.mesh.size)
    return found


def beside_one_process(held, *, sums_everywhere=True, chunks=2):
    """What is said of a rank with that state beside one process that has numbers from 0 on everywhere."""
    due = {what: [digest(chunk) for chunk in split(np.arange(8.0), chunks)] for what in ("weights", GRADIENT)}
    mesh = held.placement.mesh
    replica = SimpleNamespace(state=held, units=[UNIT], mesh=mesh, comm=SimpleNamespace(rank=mesh.rank))
    expected = Fingerprint(0, b"", (due,), comparison.counts(held.updates, held.scaling), None)
    return compared(replica, mesh.rank, expected, [UNIT], np.zeros(0), sums_everywhere=sums_everywhere)


def test_where_all_ranks_have_all_sums_every_chunk_is_compared():
    wrong = np.arange(8.0)
    wrong[2] = 7                                                               # in the chunk of rank 0
    for everywhere, chunk in ((True, 0), (False, None)):
        _, evidence = beside_one_process(state(gradient=wrong), sums_everywhere=everywhere)
        assert (evidence and evidence.chunk) == chunk


@pytest.mark.parametrize(("layout", "kept"), [
    (full(8, 4), True), (Layout(8, 4, 2, 4), True), (Layout(8, 4, 1, 4), True), (Layout(8, 4, 3, 4), False),
    (Layout(8, 4, 2, 3), False), (Layout(8, 4, 0, 2), False),
])
def test_of_a_group_a_gradient_is_kept_if_all_of_the_own_chunks_are(layout, kept):
    """Of 4 ranks in groups of 2, rank 3 owns chunks 2 and 3."""
    held = state(rank=3, mesh=Mesh(3, 4, 2), gradient=np.arange(8.0)[layout.start : layout.stop])
    held.gradient_layouts[UNIT] = layout
    said = None if kept else "after step 0 rank 3 keeps no gradient of layers.0"
    assert beside_one_process(held, chunks=4) == (said, None)


def test_a_chunk_is_held_to_that_of_its_own_place():
    swapped = np.concatenate([np.arange(4.0, 8.0), np.arange(4.0)])
    _, evidence = beside_one_process(state(gradient=swapped))
    assert (evidence.what, evidence.chunk) == (GRADIENT, 0)


@pytest.mark.parametrize("what", [GRADIENT, ACCUMULATED])
def test_of_gradients_any_nan_is_as_good_as_another(what):
    assert comparable(what, OTHER_NAN).tobytes() == NOT_A_NUMBER.tobytes()
    assert comparable("weights", OTHER_NAN).tobytes() == OTHER_NAN.tobytes() != NOT_A_NUMBER.tobytes()


def test_a_digest_of_it_all_does_not_depend_on_how_layers_are_grouped():
    found = set()
    for groups in ([[0], [1], [2]], [[0, 1], [2]], [[0, 2], [1]]):
        model = mlp(3, [4, 5], 2, "relu", "cross_entropy", groups=groups)
        units = model.units
        layers = {n: np.arange(stop - start) + 100.0 * n for unit in units for n in unit.numbers
                  for start, stop in [unit.bounds(n)]}
        flats = {unit: np.concatenate([layers[n] for n in unit.numbers]) for unit in units}
        config = SimpleNamespace(in_one_piece=model, model=model, directions=Directions())
        state = SimpleNamespace(weights=flats, optimizer={unit: {"momentum": -flat} for unit, flat in flats.items()})
        found.add(comparison.whole_sha256(config, [state]))
    assert len(found) == 1


def test_rows_that_end_otherwise_are_those_that_differ_from_the_first():
    """Those that split the model in another way have other sums, and are not compared."""
    rows = [
        SimpleNamespace(
            config=SimpleNamespace(reference_key=name, model=SimpleNamespace(task=SimpleNamespace(parallel=split))),
            equal=True, weights_sha256=sha256, measured=SimpleNamespace(weights_sha256=sha256))
        for name, sha256, split in (("a", "x", 1), ("b", "x", 1), ("c", "y", 1), ("d", "y", 1), ("e", "z", 2))
    ]
    found = [(first.reference_key, other.reference_key) for first, other in different_rows(rows)]
    assert found == [("a", "c"), ("a", "d")]


# What is brought to rank 0.


def test_a_model_that_is_tested_leaves_nothing_for_backward(monkeypatch):
    """Of activations only what one layer reads, its linear map and what it returns are alive."""
    ledger = Ledger()
    honest = Tape
    monkeypatch.setattr(
        collect, "Tape", lambda **given: honest(ObservedAllocator(allocate, ledger), **given))
    experiment = prepare(scenario(ranks=1, micro_batches=1, hidden=(32,) * 6, activation="relu"), labelled())
    config = experiment.rows[0]

    def program(comm):
        replica = build.replica(config, Observed(comm), allocate)
        replica.begin(build.initial_weights(config))
        collect.collected(comm, experiment, config, replica)

    spawn(program, 1)
    assert ledger.peak["activations"] == 3 * 8 * 32 * 4                        # 8 samples


# Sums.


def test_each_rank_s_sum_is_rounded_to_the_wire_before_it_is_added():
    """1 + 2⁻¹¹ is 1 in float16."""
    parts = [np.full(2, value, np.float32) for value in (-1.0, 1.0 + 2.0**-11)]
    two = Mesh(0, 2, 2)
    assert ORDERS["rank"].total(parts, two, np.float16).tolist() == [0.0, 0.0]
    assert ORDERS["rank"].total(parts[::-1], two, np.float16).tolist() == [0.0, 0.0]
    assert ORDERS["rank"].total(parts, two).tolist() == [2.0**-11] * 2


def test_of_an_order_free_sum_one_bucket_is_copied_at_a_time():
    ledger, contributions = Ledger(), [np.arange(24.0), np.ones(24)]

    def add(comm, copies, rounding):
        return sum(copies)

    call = Buckets(2 * 8 * 3).order_free(add, ObservedAllocator(allocate, ledger))
    found = call(SimpleNamespace(rank=1, size=2), contributions, None)
    assert found[12:].tolist() == [each + 1.0 for each in range(12, 24)]
    assert ledger.peak["buffers"] == 2 * (2 * 3 * 8)                           # of two contributions, both chunks
    assert ledger.total == 0


# Costs of a plan.

CLUSTER = Cluster(
    Device("", 1e9, 1, 1e9), 2, Link("", 10, 1e9), Link("", 100, 0.5e9), pipelined=False, fused=False)


def test_prices_of_a_mesh_are_those_of_its_groups():
    four = replace(CLUSTER, devices_per_host=4)
    costs = Costs(four, 8, 4)
    for comm, stride in ((strided(None, 0, 2, first=0, stride=1), 1), (strided(None, 0, 2, first=0, stride=4), 4),
                         (strided(None, 0, 4, first=0, stride=2), 2)):
        found = costs.of(comm)
        assert (found.ranks, found.cluster) == (comm.size, four.seen_by(stride))
        assert costs.of(comm) is found
    assert costs.of(SimpleNamespace(size=8)) is costs


@pytest.mark.parametrize(("itemsize", "due"), [(4, 160), (2, 160 + 2 * (40 + 20)), (8, 160 + 2 * (40 + 80))])
def test_a_loss_reads_and_writes_its_outputs_in_32_bits(itemsize, due):
    """Four passes over 10 numbers, and where they are not of 32 bits, both ways of rounding them."""
    assert Costs(CLUSTER, 1, itemsize).loss_ns((2, 5)) == due


# Models.


def test_where_all_is_frozen_nothing_goes_backward():
    model = mlp(3, [4, 4], 2, "relu", "cross_entropy", frozen=[0, 1, 2])
    assert (model.lowest_trained, model.backward_units) == (3, ())
    tape = Tape(lowest=model.lowest_trained)
    activations = [np.ones((1, 3))]
    for unit in model.units:
        activations = tape.forward(unit, np.ones(unit.count), activations)
    assert activations[0].shape == (1, 2)


def test_plans_of_a_segment_are_those_of_the_gradients_that_are_wanted():
    layer = Layer("a", "a.", (), lambda weights, x: relu(x))
    (unit,) = Model(grouped([layer], None, ()), Task(3, 3, "cross_entropy"), "").units
    plans = {(p, i): unit.segments[0].plan((1, 3), of_parameters=p, of_input=i) for p in (0, 1) for i in (0, 1)}
    assert {key: bool(plan.differentiated) for key, plan in plans.items()} == {
        (0, 0): False, (0, 1): True, (1, 0): False, (1, 1): True}


def test_there_is_one_nan_and_it_is_this_processors():
    assert np.isnan(NOT_A_NUMBER)
    assert type(NOT_A_NUMBER) is np.float32
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001], np.uint32).view(np.float32)
    assert with_one_nan(nans) is nans
    assert set(nans.view(np.uint32).tolist()) == {int(NOT_A_NUMBER.view(np.uint32))}
    assert with_one_nan(np.array([np.inf, -0.0], np.float32)).tolist() == [np.inf, -0.0]
