"""Cards, leaf switches, rails and switches that add: closed forms, published tables, and a planted fault."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from runpy import run_path
from statistics import fmean

import numpy as np
import pytest

import zerosim as zs
from zerosim.collectives import algorithm_of, direct, doubling, halving, ring
from zerosim.commands.cli import main
from zerosim.core.errors import ScenarioError, UsageError
from zerosim.plan.cluster import Cluster, Device, Fabric, Link, cluster_of
from zerosim.plan.costs import Costs
from zerosim.plan.fluid import ReceiveFrom, Transfer, last_end_ns
from zerosim.plan.network import links, written_ns
from zerosim.plan.topologies import Torus
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.reading import Origin
from zerosim.verdict.flows import with_messages

EXAMPLES = Path(__file__).parents[1] / "scenarios" / "examples"
GRID = str(EXAMPLES / "torus" / "scenario.toml")
MIB = 2**20
H200 = {
    8: 182.03, 16: 242.45, 32: 298.44, 64: 369.82, 128: 411.21, 256: 442.27, 512: 455.82, 1024: 464.00, 16384: 480.70}
"""Bus bandwidth, GB/s, of all-reduce on 8 H200 with NVLink SHARP by MiB: stas00/ml-engineering,
network/benchmarks/README.md, its table of nccl-tests."""
B200 = {
    8: 50.61, 16: 71.80, 32: 142.90, 64: 197.77, 128: 260.50, 256: 283.23, 512: 309.91, 1024: 365.99, 16384: 376.71}
"""The same of 4 hosts of 8 B200, from the same page."""


def bus_bandwidth(cluster, ranks, vector_bytes):
    """GB/s of an all-reduce as a plan has it."""
    costs = Costs(cluster, ranks, 1, all_reduces=True)
    half_ns = costs.pipelined_ns(with_messages(algorithm_of(ring.reduce_scatter)), vector_bytes * (ranks - 1) // ranks)
    return vector_bytes / (2 * half_ns) * 2 * (ranks - 1) / ranks


@pytest.mark.parametrize(("device", "sharp", "ranks", "published"), [
    ("h200", True, 8, H200), ("b200", False, 32, B200),
])
def test_short_messages_have_the_bandwidth_of_published_tables(device, sharp, ranks, published):
    cluster = cluster_of(ClusterKeys(device=device, sharp=sharp), Origin(), ranks)
    errors = [bus_bandwidth(cluster, ranks, size * MIB) / found - 1 for size, found in published.items()]
    assert fmean(map(abs, errors)) < 0.08
    without_latency = replace(cluster, inside=replace(cluster.inside, latency_ns=0), between=replace(
        cluster.between, latency_ns=0), fabric=replace(cluster.fabric, switch_latency_ns=0))
    straight = [bus_bandwidth(without_latency, ranks, size * MIB) / found - 1 for size, found in published.items()]
    assert fmean(map(abs, straight)) > 0.3, "the table would not notice links without a latency"


@pytest.mark.parametrize(("ranks", "published"), [(2, 360), (3, 360), (4, 370), (5, 420), (6, 440), (7, 460), (8, 480)])
def test_a_switch_that_adds_helps_from_five_devices_on(ranks, published):
    """github.com/NVIDIA/nccl issue 1455; up to 4 devices rings are as fast."""
    cluster = cluster_of(ClusterKeys(device="h100_80gb", sharp=True), Origin(), ranks)
    assert bus_bandwidth(cluster, ranks, 2**34) == pytest.approx(published, rel=0.03)


def test_stages_that_shard_do_not_all_reduce_and_gain_nothing():
    def step(stage, **keys):
        plan = zs.plan("scenarios/plans/zero_7b5.toml", set={
            "world.ranks": 8, "train.micro_batches": 8, "cluster.device": "h100_80gb", "model.layers": 2,
            "parallel.stages": [stage], "check.fits": [], "check.does_not_fit": [], "check.mfu": [],
            **{f"cluster.{name}": value for name, value in keys.items()}}).subject
        return plan.rows[0].communication_seconds

    assert step("ddp", sharp=True) < 0.85 * step("ddp")
    assert step("zero3", sharp=True) == step("zero3")


def test_a_switch_that_cannot_add_is_refused_in_one_line():
    with pytest.raises(ScenarioError, match="the switch of this link does not add"):
        cluster_of(ClusterKeys(device="a100_80gb", sharp=True), Origin(), 8)


FAST, SLOW = Link("", 0, 1e12), Link("", 0, 4e9)


def cluster(per_host=4, **fabric):
    return Cluster(Device("", 1, 1, 1), per_host, FAST, SLOW, pipelined=False, fused=False, fabric=Fabric(**fabric))


def sends(*pairs, ranks=16, sent_bytes=10**9):
    """The time of messages that begin together."""
    found = [[] for _ in range(ranks)]
    for source, to in pairs:
        found[source].append(Transfer(to, sent_bytes))
        found[to].append(ReceiveFrom(source))
    return lambda fabric: last_end_ns(found, links(fabric, ranks)) / 1e9


def test_one_rank_has_its_own_card_and_two_of_one_card_share_it():
    alone, neighbours, twins = sends((0, 4)), sends((0, 4), (1, 5)), sends((0, 4), (2, 6))
    pool, two = cluster(), cluster(cards=2)
    assert (alone(pool), neighbours(pool), twins(pool)) == (0.25, 0.5, 0.5)
    assert (alone(two), neighbours(two), twins(two)) == (0.5, 0.5, 1.0)


def test_an_oversubscribed_tree_is_shared_by_hosts_that_pass_it_together():
    """4 hosts, 2 on a leaf: hosts 0 and 1 send to 2 and 3, over links of 2 · 4 / 4 GB/s."""
    inside, across = sends((0, 4)), sends((0, 8), (4, 12))
    full, thin = cluster(hosts_per_leaf=2), cluster(hosts_per_leaf=2, oversubscription=4)
    assert (inside(full), across(full)) == (0.25, 0.25)
    assert (inside(thin), across(thin)) == (0.25, 1.0)


def test_rails_keep_messages_between_cards_of_one_number_off_the_tree():
    """2 cards a host, of 2 GB/s each; a rail's links to the other rail have 4 hosts' cards over 8: 1 GB/s."""
    railed = cluster(cards=2, rails=True, oversubscription=8)
    assert sends((0, 4), (1, 5))(railed) == 0.5
    assert sends((0, 5), (2, 7))(railed) == 2.0


def on_torus(*sizes):
    link = Link("", 1000, 1e9)
    return Cluster(Device("", 1, 1, 1), prod(sizes), link, link, pipelined=False, fused=False,
                   fabric=Fabric(torus=Torus(sizes)))


@pytest.mark.parametrize(("sizes", "hops"), [((16,), 1), ((4, 4), 2), ((2, 2, 4), 3)])
def test_a_ring_on_a_torus_waits_for_the_hops_of_its_longest_step(sizes, hops):
    """A row's last rank reaches the next row's first by one hop in each dimension that wraps."""
    assert written_ns(ring.all_gather, 16 * 10**6, 1, on_torus(*sizes), 16) == 15 * (hops * 1000 + 10**6)


def test_a_torus_shows_which_algorithm_suits_it():
    """On a line of 16 halving's first messages of 8 chunks pass 8 links, each with 8 of them: 64 chunks one way."""
    line, square = on_torus(16), on_torus(4, 4)
    halved = [written_ns(halving.reduce_scatter, 16 * 10**6, 1, each, 16) for each in (line, square)]
    ringed = [written_ns(ring.reduce_scatter, 16 * 10**6, 1, each, 16) for each in (line, square)]
    assert halved[0] > 5 * ringed[0]
    assert halved[1] < 2 * ringed[1]


def communication_us(path, *changes):
    """Microseconds, and those of one chunk's bytes, of DDP's one all-reduce on a torus of 8 × 8."""
    words = ["cluster.torus=[8, 8]", "cluster.devices_per_host=64", "cluster.collectives=written",
             "cluster.inside={latency_us=1, gigabytes_per_second=50}", "parallel.units=model", *changes]
    assert main(["plan", GRID, "--ranks", "64", "--json", str(path), *(f"--set={each}" for each in words)]) == 0
    row = json.loads(path.read_text())["rows"][0]
    return row["communication_seconds"] * 1e6, row["sent_bytes"] / 126 / 50e3


@pytest.mark.parametrize(("width", "least", "most"), [(64, 7, 9), (65536, 1, 1.5)])
def test_rings_of_columns_and_rows_outrun_one_ring_by_its_latencies(width, least, most, tmp_path):
    """28 steps of one hop, or 126 that wait for the two hops where a row ends; both send 126 chunks' bytes."""
    shipped = ("parallel.reduce_scatter=ring", "parallel.all_gather=ring")
    (grid, chunk), (one, _) = (communication_us(tmp_path / "plan", f"model.hidden=[{width}]", *each)
                               for each in ((), shipped))
    assert grid == pytest.approx(28 * 1 + 126 * chunk, rel=1e-3)
    assert one == pytest.approx(126 * 2 + 126 * chunk, rel=1e-3)
    assert least < one / grid < most


SHIPPED = {"`ring`": (ring.reduce_scatter, ring.all_gather),
           "`halving`, then `doubling`": (halving.reduce_scatter, doubling.all_gather)}


def all_reduce_us(name, sizes, nbytes):
    """Microseconds of both halves on 64 ranks of two ports, with links of 1 µs and 50 GB/s."""
    def both(comm, chunks):
        for half in halves:
            half(comm, chunks)

    if (halves := SHIPPED.get(name)) is None:
        found = run_path(str(EXAMPLES / name.strip("`/") / f"{name.strip('`/')}.py"))
        halves = [getattr(found[each], "function", found[each]) for each in ("reduce_scatter", "all_gather")]
    link = Link("", 1000, 50e9)
    return written_ns(both, nbytes, 1, replace(on_torus(*sizes), inside=link, ports=2), 64) / 1000


def test_the_page_of_examples_has_the_planned_times_on_a_torus():
    lines = (EXAMPLES / "README.md").read_text().partition("## Collectives on a torus")[2].splitlines()[7:]
    places = [((64,), 64_000), ((64,), 64_000_000), ((8, 8), 64_000), ((8, 8), 64_000_000)]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len(rows) == 5
    for name, *times, _ in rows:
        assert [int(each) for each in times] == [round(all_reduce_us(name, *place)) for place in places]


@pytest.mark.parametrize("collective", [ring.all_gather, halving.reduce_scatter, direct.all_gather])
def test_lockstep_and_single_messages_agree_on_a_torus(collective, monkeypatch):
    together = written_ns(collective, 16 * 10**6, 1, on_torus(4, 4), 16)
    monkeypatch.setattr(np, "ptp", lambda *_: 1)
    assert written_ns(collective, 16 * 10**6, 1, on_torus(4, 4), 16) == pytest.approx(together, rel=1e-9)


def test_groups_of_a_torus_are_whole_dimensions_or_refused():
    seen = on_torus(4, 2, 2).seen_by(4, 4).fabric.torus
    assert seen.sizes == (4,)
    with pytest.raises(UsageError, match="groups of 4 ranks at a distance of 2 share links of the torus"):
        on_torus(4, 2, 2).seen_by(2, 4)


@pytest.mark.parametrize(("keys", "words"), [
    ({"torus": (4, 4)}, "has 16 devices, and there are 32 ranks"), ({"dragonfly": (1, 3, 1)}, "3 hosts, and 32 ra"),
    ({"torus": (4, 8), "hosts_per_leaf": 2}, "cluster.torus and hosts_per_leaf are different networks")])
def test_a_network_without_a_place_for_each_rank_is_refused(keys, words):
    with pytest.raises(ScenarioError, match=words):
        cluster_of(ClusterKeys(**keys), Origin(), 32)


@pytest.mark.parametrize("fabric", [{}, {"cards": 2}, {"cards": 2, "rails": True}, {"hosts_per_leaf": 2}])
@pytest.mark.parametrize("collective", [ring.all_gather, direct.all_gather])
def test_full_bisection_changes_no_ring_and_no_direct_walk_on_whole_hosts(collective, fabric):
    """As many ranks on each card as on any: sharing is even, whichever card it is."""
    times = [written_ns(collective, 16 * 10**6, 1, cluster(2, **each), 8) for each in ({}, fabric)]
    if collective is direct.all_gather:
        assert times[1] >= times[0]
    else:
        slower = fabric.get("cards", 1)
        assert times[1] == pytest.approx(times[0] * slower, rel=1e-6)


def test_lockstep_and_single_messages_agree_on_cards(monkeypatch):
    vector, two = 12 * 10**6, cluster(4, cards=2)
    together = written_ns(direct.all_gather, vector, 1, two, 12)
    monkeypatch.setattr(np, "ptp", lambda *_: 1)
    assert written_ns(direct.all_gather, vector, 1, two, 12) == pytest.approx(together, rel=1e-6)


def test_rings_pass_a_tree_once_so_that_only_a_thin_one_slows_them():
    assert Fabric(hosts_per_leaf=4, oversubscription=3).ring_share(8) == 1.0
    assert Fabric(hosts_per_leaf=2, oversubscription=8).ring_share(8) == 0.25
    assert Fabric(hosts_per_leaf=8, oversubscription=16).ring_share(8) == 1.0
    keys = ClusterKeys(device="h100_80gb", hosts_per_leaf=2, oversubscription=8)
    thin, full = (cluster_of(each, Origin(), 64) for each in (keys, ClusterKeys(device="h100_80gb")))
    assert thin.slowest(64).bytes_per_second == full.slowest(64).bytes_per_second / 4


def test_a_plan_says_whether_its_pricing_distinguishes_a_named_collective(capsys):
    words = ["plan", "llama3_8b", "--ranks", "8", "--set", "model.layers=1", "--set", "parallel.reduce_scatter=halving"]
    for pricing, said in (("pipelined", "every algorithm with as many takes the same time"),
                          ("written", "halving is priced message by message over the links")):
        assert main([*words, "--set", f"cluster.collectives={pricing}"]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
    assert zs.plan("llama3_8b", 8, set={"model.layers": 1}).rows()[0]["pricing"] == ""
