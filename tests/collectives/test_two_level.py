"""Two levels, two hops: proved on hosts of every size, counted on the wire, trained with, planned; faults are seen."""


import numpy as np
import pytest

from tests.collectives.test_collectives import called, steps_taken
from tests.training import labelled, run, scenario
from zerosim.collectives import ring, tree
from zerosim.collectives.table import algorithm_of, in_two_hops, on_hosts
from zerosim.collectives.two_level import TwoLevel
from zerosim.commands.cli import main
from zerosim.core.comm import among
from zerosim.core.errors import ScenarioError
from zerosim.core.orders import ORDERS
from zerosim.core.sharding import Mesh
from zerosim.core.terms import symbols
from zerosim.observe.observed import Observed
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
from zerosim.worlds.local import spawn

HOSTS = (1, 2, 3, 4, 5)
SIZES = range(1, 10)


def subject(row):
    return Subject(f"{row.name}.{row.collective}", row.collective, row.function, "in place", row)


def rows(per_host):
    """The algorithms for hosts of so many ranks, by name."""
    return {subject(row).name: row for row in [*on_hosts(per_host), in_two_hops(per_host)]}


# The collectives.


@pytest.mark.parametrize("per_host", HOSTS)
@pytest.mark.parametrize("name", rows(1))
def test_proved_on_hosts_that_are_full_and_that_are_not(per_host, name):
    row = rows(per_host)[name]
    for size in SIZES:
        proof = prove(subject(row), size)
        assert proof.holds, (size, proof.faults)
        assert proof.order == ("declared" if row.order else None)


class Sent:
    def __init__(self, rank, per_host):
        self.host, self.per_host = rank // per_host, per_host
        self.messages, self.between_bytes = [], 0

    def sent(self, outgoing, to):
        self.messages.append(outgoing.nbytes)
        if to // self.per_host != self.host:
            self.between_bytes += outgoing.nbytes


def sent(row, size, count, per_host, root=0):
    def program(comm):
        seen = Sent(comm.rank, per_host)
        called(row, Observed(comm, seen), np.zeros(count, np.uint8), root)
        return seen

    return spawn(program, size)


@pytest.mark.parametrize("per_host", HOSTS)
def test_sends_the_declared_messages(per_host):
    for row in rows(per_host).values():
        for size in SIZES:
            lengths = [3] * size
            for root in range(size if row.collective == "broadcast" else 1):
                for rank, seen in enumerate(sent(row, size, 3 * size, per_host, root)):
                    declared = [sum(lengths[chunk] for chunk in each) for each in row.volume(rank, size, root)]
                    assert sorted(seen.messages) == sorted(declared), (row.collective, size, root, rank)


@pytest.mark.parametrize("per_host", HOSTS)
def test_takes_the_declared_steps(per_host):
    for row in rows(per_host).values():
        for size in SIZES:
            assert steps_taken(row, size) == row.steps(size), (row.collective, size)


def test_its_functions_are_those_of_their_row():
    assert algorithm_of(ring.all_gather).name == "ring"
    for per_host in HOSTS:
        for row in rows(per_host).values():
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


def test_one_ring_is_not_the_declared_order():
    row = next(row for row in on_hosts(2) if row.collective == "reduce_scatter")
    proof = prove(Subject("flat", "reduce_scatter", ring.reduce_scatter, "in place", row), 4)
    assert "declared is" in proof.faults[0].what


def test_a_broadcast_within_hosts_alone_is_not_proved():
    def within(comm, vector, root):
        hosts = TwoLevel(2)
        tree.broadcast(among(comm, hosts.host(comm)), vector, root % 2)

    assert not prove(Subject("planted", "broadcast", within, "in place"), 4).holds


def test_the_commands_name_hosts(capsys):
    assert main(["prove", "two_level.all_reduce", "--ranks", "5,6", "--ranks-per-host", "3"]) == 0
    assert main(["show", "two_level.broadcast", "--ranks", "5", "--ranks-per-host", "2"]) == 0
    assert main(["prove", "two_hop.reduce_scatter", "--ranks", "5,6", "--ranks-per-host", "3"]) == 0
    assert main(["show", "two_hop.reduce_scatter", "--ranks", "6", "--ranks-per-host", "3"]) == 0
    assert "two hops, hosts of 3 ranks: all-to-all within" in " ".join(capsys.readouterr().out.split())
    for command in (["prove", "ring.all_reduce"], ["show", "ring.all_reduce"], ["show", "zero3"], ["show", "--list"]):
        assert main([*command, "--ranks-per-host", "2"]) == 2
        assert "remove --ranks-per-host" in capsys.readouterr().err


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


@pytest.mark.parametrize(("ranks", "per_host"), [(2, 1), (4, 2), (6, 3)])
@pytest.mark.parametrize("keys", [
    {}, {"precision": "fp16"}, {"precision": "bf16", "accumulate_dtype": "fp32"}, {"clip_norm": 0.1},
    {"overlap": True, "prefetch": True}, {"accumulation": "micro_batch"}, {"bucket_mb": 0.0001},
    {"publish": "updates"}, {"gradients": "all_reduce"},
], ids=str)
def test_every_stage_is_one_process_and_every_byte_the_formulas(ranks, per_host, keys):
    outcome = run(base=two_levels(ranks, per_host, **keys))
    assert outcome.failures == []
    assert {row.equal for row in outcome.trained} == {True}


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
