"""Two levels and two hops in commands, scenarios and plans; the laws prove them, count them and train with them."""

import pytest

from tests.training import labelled, run, scenario
from zerosim.collectives import ring
from zerosim.collectives.table import algorithm_of, levels
from zerosim.commands.cli import main
from zerosim.plan.cluster import cluster_of
from zerosim.plan.rehearsal import rehearse
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
        spent[order] = rehearse(config, cluster_of(keys, built.origin, 8)).clock.counts["communicating"].total()
    assert spent["two_level"] < spent["ring"]
