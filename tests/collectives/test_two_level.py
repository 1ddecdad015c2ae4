"""Two levels, two hops: trained with, planned; faults are seen. `tests/laws` proves them on hosts of every size."""

import pytest

from tests.training import labelled, run, scenario
from zerosim.collectives import ring
from zerosim.collectives.table import algorithm_of, levels, on_hosts
from zerosim.collectives.two_level import TwoLevel
from zerosim.commands.cli import main
from zerosim.core.errors import ScenarioError
from zerosim.core.orders import ORDERS
from zerosim.core.sharding import Mesh
from zerosim.core.terms import symbols
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import Subject, named_subject, with_hosts
from zerosim.scenario import Check, Parallel, Scenario, WorldKeys
from zerosim.scenario.machine import ClusterKeys, LinkKeys
from zerosim.stages.adding import ADDITIONS
from zerosim.testing import check
from zerosim.training.experiment import prepare
from zerosim.verdict.diagnosis import chunk_sums

HOSTS = (1, 2, 3, 4, 5)


def test_its_functions_are_those_of_their_row():
    assert algorithm_of(ring.all_gather).name == "ring"
    for per_host in HOSTS:
        for row in levels(per_host):
            found = algorithm_of(row.function)
            assert (found.name, found.collective, found.per_host) == (row.name, row.collective, per_host)


def test_keeps_the_laws():
    check(named_subject("two_level.all_reduce"), examples=20)
    check(with_hosts(named_subject("two_level.reduce_scatter"), 3), examples=20)
    check(with_hosts(named_subject("two_hop.reduce_scatter"), 3), examples=20)


class WithoutColumns(TwoLevel):
    """Nothing passes between hosts."""

    def columns(self, comm, chunks):
        return iter(())


class OffByOne(TwoLevel):
    """The chunk of the next place."""

    def chunk(self, chunks, host, place):
        return super().chunk(chunks, host, (place + 1) % self.per_host)


class LeavesOutTheShort(TwoLevel):
    """Nobody stands in for the ranks that the last host lacks."""

    def columns(self, comm, chunks):
        return (each for number, each in enumerate(super().columns(comm, chunks)) if not number)


@pytest.mark.parametrize(("planted", "size"), [(WithoutColumns, 4), (OffByOne, 4), (LeavesOutTheShort, 5)])
def test_a_planted_fault_is_not_proved(planted, size):
    row = next(row for row in on_hosts(2) if row.collective == "reduce_scatter")
    under_test = Subject("planted", "reduce_scatter", planted(2).reduce_scatter, "in place", row)
    assert not prove(under_test, size).holds


def test_the_commands_name_hosts(capsys):
    assert main(["prove", "two_level.all_reduce", "--ranks", "5,6", "--ranks-per-host", "3"]) == 0
    assert main(["show", "two_level.broadcast", "--ranks", "5", "--ranks-per-host", "2"]) == 0
    assert main(["prove", "two_hop.reduce_scatter", "--ranks", "5,6", "--ranks-per-host", "3"]) == 0
    assert main(["show", "two_hop.reduce_scatter", "--ranks", "6", "--ranks-per-host", "3"]) == 0
    assert "two hops, hosts of 3 ranks: all-to-all within" in " ".join(capsys.readouterr().out.split())
    for command in (["prove", "ring.all_reduce"], ["show", "ring.all_reduce"], ["show", "zero3"]):
        assert main([*command, "--ranks-per-host", "2"]) == 2
        assert "remove ranks-per-host: " in capsys.readouterr().err.replace("--ranks", "ranks")


# The order of addition of a training.


def two_levels(ranks, per_host, **keys):
    keys = {"micro_batches": 2 * ranks, "steps": 2, "order": "two_level", **keys}
    return scenario(ranks=ranks, ranks_per_host=per_host, **keys)


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 2), (6, 2), (6, 3), (8, 4), (4, 1), (3, 4)])
def test_the_stages_add_as_declared(ranks, per_host):
    order = ORDERS["two_level"].with_hosts(per_host)
    declared = order.total([symbols(number, ranks) for number in range(2 * ranks)], Mesh(0, ranks, ranks))
    ours = chunk_sums(ADDITIONS["two_level"].with_hosts(per_host), Mesh(0, ranks, ranks), 2)
    assert [str(each) for each in ours] == [str(each) for each in declared]


def test_hosts_change_bits_and_one_host_is_a_ring():
    def weights(built):
        return run(base=built).trained[0].measured.weights_sha256

    one = two_levels(4, 4, stages=("zero2",))
    flat = scenario(one, order="ring")
    assert weights(one) == weights(flat) != weights(two_levels(4, 2, stages=("zero2",)))


def test_another_number_of_hosts_than_declared_is_caught(monkeypatch):
    monkeypatch.setitem(ADDITIONS, "two_level", ADDITIONS["two_level"].with_hosts(4))
    outcome = run(base=two_levels(4, 2, stages=("zero2",)))
    assert [row.equal for row in outcome.trained] == [False]


@pytest.mark.parametrize(("keys", "words"), [
    ({"world": WorldKeys(4), "parallel": Parallel(order="two_level")}, "two_level adds within hosts first; set"),
    ({"world": WorldKeys(4, ranks_per_host=3)}, "= 3 does not divide 4 ranks; give a divisor"),
    ({"world": WorldKeys(4, ranks_per_host=4), "check": Check(same_bits_on=(2,))}, None),
    ({"world": WorldKeys(4, ranks_per_host=2), "parallel": Parallel(order="two_level", shard_ranks=2)},
     "makes several groups, whose sums ring, rank and tree add, and parallel.order is two_level"),
])
def test_hosts_that_make_no_sense_are_refused(keys, words):
    if words is None:
        assert Scenario(**keys).world.ranks_per_host == 4
        return
    with pytest.raises(ScenarioError) as found:
        Scenario(**keys)
    assert words in str(found.value)


# Plans.


@pytest.mark.parametrize("collectives", ["written", "pipelined"])
def test_a_plan_on_two_levels_is_faster_where_links_between_hosts_are_slow(collectives):
    built = two_levels(8, 4, stages=("ddp",))
    keys = ClusterKeys(
        devices_per_host=4, inside=LinkKeys(0, 100), between=LinkKeys(0, 0.01), collectives=collectives)
    spent = {}
    for order in ("ring", "two_level"):
        each = scenario(built, order=order)
        (config,) = prepare(each, labelled()).rows
        spent[order] = rehearse(config, cluster_of(keys, built.origin, 8)).clock.communicating_ns.total()
    assert spent["two_level"] < spent["ring"]
