"""Who shares with whom: groups of ranks in every world, and hybrid sharding to the bit and to the byte."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sampling import one_in
from tests.training import labelled, run, scenario
from zerosim.collectives import ring
from zerosim.core.comm import among
from zerosim.core.errors import CollectiveError, ScenarioError, ZerosimError
from zerosim.core.sharding import Mesh, owned, padded, split
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import Check, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.machine import ClusterKeys
from zerosim.stages.adding import ADDITIONS
from zerosim.stages.replica import Replica
from zerosim.training.experiment import prepare
from zerosim.verdict.diagnosis import chunk_sums
from zerosim.worlds.local import spawn

GROUPS = [(size, group) for size in (1, 2, 3, 4, 6, 12) for group in range(1, size + 1) if size % group == 0]


# The arithmetic.


@given(st.sampled_from(GROUPS), st.integers(0, 40))
def test_a_group_owns_every_element_once(groups, count):
    size, group = groups
    meshes = [Mesh(rank, size, group) for rank in range(size)]
    for first in range(0, size, group):
        members = meshes[first : first + group]
        assert sorted(chunk for mesh in members for chunk in mesh.owned) == list(range(size))
        layouts = [owned(count, mesh) for mesh in members]
        assert [layout.start for layout in layouts] == sorted(layout.start for layout in layouts)
        assert sum(layout.length for layout in layouts) == padded(count, size)
    for mesh in meshes:
        assert [meshes[rank].owned for rank in range(mesh.place, size, group)] == [mesh.owned] * mesh.replicas


def test_one_group_of_all_is_the_communicator_itself():
    def program(comm):
        mesh = Mesh(comm.rank, comm.size, comm.size)
        return mesh.within(comm) is comm, mesh.across(comm).size, mesh.owned

    assert spawn(program, 3) == [(True, 1, [rank]) for rank in range(3)]


@pytest.mark.parametrize(("size", "group"), GROUPS)
def test_the_ranks_of_a_mesh_are_those_that_among_names(size, group):
    def program(comm):
        mesh = Mesh(comm.rank, comm.size, group)
        neighbours = range(mesh.replica * group, (mesh.replica + 1) * group)
        owners = range(mesh.place, size, group)
        found = []
        for ours, ranks in ((mesh.within(comm), neighbours), (mesh.across(comm), owners)):
            theirs = among(comm, ranks)
            assert (ours.rank, ours.size) == (theirs.rank, theirs.size)
            for each in (ours, theirs):
                held = np.full(each.size, comm.rank)
                ring.all_gather(each, split(held, each.size))
                found.append(held.tolist() == list(ranks))
        return found

    assert spawn(program, size) == [[True] * 4] * size


def test_a_rank_that_a_group_lacks_is_refused():
    with pytest.raises(CollectiveError, match="to=2 is not a rank; give an integer from 0 to 1"):
        spawn(lambda comm: Mesh(comm.rank, 4, 2).within(comm).send(np.ones(1), to=2), 4)


def test_when_a_message_came_is_what_the_communicator_beneath_says():
    mesh = Mesh(1, 4, 2)
    for beneath, came_ns in ((SimpleNamespace(came_ns=7), 7), (SimpleNamespace(), 0)):
        assert [mesh.within(beneath).came_ns, mesh.across(beneath).came_ns] == [came_ns] * 2


# The order of addition.


def test_groups_add_in_another_order_than_one_ring():
    one, two = (chunk_sums(ADDITIONS["ring"], Mesh(0, 4, group), 1) for group in (4, 2))
    assert one != two


# Hybrid sharding.


def hybrid(ranks, group, **keys):
    return scenario(ranks=ranks, micro_batches=2 * ranks, steps=2, shard_ranks=group, **keys)


@pytest.mark.parametrize("name", ["naive", "direct", "halving", "rabenseifner"])
@pytest.mark.parametrize("ranks_and_group", one_in(4, [(4, 2), (4, 1), (2, 1), (8, 2)]))
def test_a_named_reduce_scatter_adds_replicas_too(ranks_and_group, name):
    outcome = run(base=hybrid(*ranks_and_group, reduce_scatter=name))
    assert outcome.failures == []
    assert {row.equal for row in outcome.trained} == {True}


def test_an_algorithm_must_serve_the_replicas_too():
    with pytest.raises(ScenarioError, match=r"parallel\.reduce_scatter halving serves a power of two of ranks, not 3"):
        Scenario(world=WorldKeys(6), train=Train(micro_batches=6), parallel=Parallel(
            shard_ranks=2, reduce_scatter="halving"))


def test_replicas_that_never_add_are_caught(monkeypatch):
    monkeypatch.setattr("zerosim.training.build.replicas_added", lambda *_: lambda *_: None)
    outcome = run(base=hybrid(4, 2))
    assert {row.equal for row in outcome.trained} == {False}


def test_a_group_whose_copy_is_stale_is_caught(monkeypatch):
    honest = Replica.update
    monkeypatch.setattr(Replica, "update", lambda self, unit, weights: (
        None if self.mesh.replica and unit is self.units[0] else honest(self, unit, weights)))
    outcome = run(base=hybrid(4, 2))
    assert {row.equal for row in outcome.trained} == {False}
    assert {(row.first_divergence.rank, row.first_divergence.layer) for row in outcome.trained} <= {(2, 0), (3, 0)}


def test_a_group_that_is_off_by_one_is_caught(monkeypatch):
    monkeypatch.setattr(Mesh, "place", property(lambda mesh: (mesh.rank + mesh.replica) % mesh.group))
    try:
        passed = run(base=hybrid(4, 2)).passed
    except ZerosimError:
        passed = False
    assert not passed


def test_groups_must_divide_every_number_of_ranks():
    with pytest.raises(ScenarioError, match="does not divide 1 ranks"):
        Scenario(parallel=Parallel(shard_ranks=2), check=Check(same_bits_on=(1,)))


# Plans.


def test_groups_within_a_host_do_not_wait_for_the_network():
    def step_ns(group, slower):
        built = hybrid(8, group, stages=("zero3",))
        cluster = cluster_of(ClusterKeys(devices_per_host=4), built.origin, 8)
        link = dataclasses.replace(cluster.between, bytes_per_second=cluster.between.bytes_per_second / slower)
        (config,) = prepare(built, labelled()).rows
        calls = rehearse(config, dataclasses.replace(cluster, between=link), traced=True).clock.spans
        return sum(span.end_ns - span.begin_ns for span in calls if span.what == "all_gather")

    assert step_ns(4, 1) == step_ns(4, 1000)
    assert step_ns(8, 1) < step_ns(8, 1000)
