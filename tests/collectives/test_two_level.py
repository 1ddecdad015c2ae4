"""Two levels and two hops in commands, scenarios and plans; the laws prove them, count them and train with them."""

import pytest

from tests.training import labelled, run, scenario
from zerosim.collectives import ring
from zerosim.collectives.table import algorithm_of, levels
from zerosim.commands.cli import main
from zerosim.core.errors import ScenarioError
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario import Check, Parallel, Scenario, WorldKeys
from zerosim.scenario.machine import ClusterKeys, LinkKeys
from zerosim.training.experiment import prepare


def test_its_functions_are_those_of_their_row():
    assert algorithm_of(ring.all_gather).name == "ring"
    for per_host in (1, 2, 5):
        for row in levels(per_host):
            algorithm = algorithm_of(row.function)
            assert (algorithm.name, algorithm.collective, algorithm.per_host) == (row.name, row.collective, per_host)


def test_the_commands_name_hosts(capsys):
    assert main(["prove", "two_level.all_reduce", "--ranks", "3,6", "--ranks-per-host", "3"]) == 0
    assert main(["show", "two_level.broadcast", "--ranks", "6", "--ranks-per-host", "2"]) == 0
    assert main(["prove", "two_hop.reduce_scatter", "--ranks", "3,6", "--ranks-per-host", "3"]) == 0
    assert main(["show", "two_hop.reduce_scatter", "--ranks", "6", "--ranks-per-host", "3"]) == 0
    assert "two hops, hosts of 3 ranks: all-to-all within" in " ".join(capsys.readouterr().out.split())
    for command in (["prove", "ring.all_reduce"], ["show", "ring.all_reduce"], ["show", "zero3"]):
        assert main([*command, "--ranks-per-host", "2"]) == 2
        assert "remove ranks-per-host: " in capsys.readouterr().err.replace("--ranks", "ranks")


# The order of addition of a training.


def two_levels(ranks, per_host, **keys):
    keys = {"micro_batches": 2 * ranks, "steps": 2, "order": "two_level", **keys}
    return scenario(ranks=ranks, ranks_per_host=per_host, **keys)


def test_hosts_change_bits_and_one_host_is_a_ring():
    def weights(built):
        return run(base=built).trained[0].measured.weights_sha256

    one = two_levels(4, 4, stages=("zero2",))
    flat = scenario(one, order="ring")
    assert weights(one) == weights(flat) != weights(two_levels(4, 2, stages=("zero2",)))


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
    with pytest.raises(ScenarioError) as refused:
        Scenario(**keys)
    assert words in str(refused.value)


# Plans.


@pytest.mark.parametrize("collectives", ["written", "pipelined"])
def test_a_plan_on_two_levels_is_faster_where_links_between_hosts_are_slow(collectives):
    built = two_levels(8, 4, stages=("ddp",))
    keys = ClusterKeys(
        devices_per_host=4, inside=LinkKeys(0, 100), between=LinkKeys(0, 0.01), collectives=collectives)
    spent = {}
    for order in ("ring", "two_level"):
        ordered = scenario(built, order=order)
        (config,) = prepare(ordered, labelled()).rows
        spent[order] = rehearse(config, cluster_of(keys, built.origin, 8)).clock.communicating_ns.total()
    assert spent["two_level"] < spent["ring"]
