"""Named dispatchers of experts in plans: what their all-to-alls send and how long they take, counted and by hand."""

from itertools import combinations
from math import comb

import pytest

import zerosim as zs
from tests.pages import refused
from tests.test_stragglers import CHOSEN, EXPERTS, LAYERS, MIXTURE, RANKS, TOKENS, WIDTH
from zerosim.plan.dispatch import Dispatch

QUEUES = {"model.capacity_factor": 1.0, "cluster.devices_per_host": 2}


def planned(**cluster):
    (row,) = zs.plan("llama3_8b", set=MIXTURE | QUEUES | {f"cluster.{key}": value for key, value in cluster.items()}
                     ).subject.rows
    return row


@pytest.mark.parametrize(("experts", "chosen", "groups"), [(8, 2, 2), (8, 2, 4), (12, 3, 4), (9, 4, 3), (8, 8, 4)])
def test_the_groups_that_a_token_reaches_are_those_of_all_its_choices(experts, chosen, groups):
    found = sum(len({expert * groups // experts for expert in each}) for each in combinations(range(experts), chosen))
    mean = found / comb(experts, chosen)
    assert Dispatch("", experts, chosen).reached(groups) == pytest.approx(mean, rel=1e-12)
    with_replacement = groups * (1 - (1 - 1 / groups) ** chosen)
    assert with_replacement != pytest.approx(mean, rel=1e-3)


def test_rows_travel_once_for_each_host_and_rank(monkeypatch):
    """Two hosts of two ranks: what a rank sends to the other host, and forwards to the other rank of its own."""
    pairs = list(combinations(range(EXPERTS), CHOSEN))
    hosts, ranks = (sum(len({expert // each for expert in pair}) for pair in pairs) / len(pairs) for each in (4, 2))
    row_bytes, calls = TOKENS * WIDTH * 2, 4 * LAYERS
    written, once = planned(), planned(dispatcher="deepep")
    assert written.found.clock.sent_by["expert_all_to_all"] == calls * row_bytes * CHOSEN * (RANKS - 1) / RANKS
    assert once.found.clock.sent_by["expert_all_to_all"] == calls * round(row_bytes * (hosts + ranks) / 2)
    assert once.found.operations == written.found.operations
    monkeypatch.setattr(Dispatch, "reached", lambda self, groups: self.chosen)
    wrong = planned(dispatcher="hybridep").found.clock.sent_by["expert_all_to_all"]
    assert wrong > once.found.clock.sent_by["expert_all_to_all"]


def test_the_time_is_that_of_the_slower_link():
    slow = {"latency_us": 0, "gigabytes_per_second": 1e-3}
    fast = {"latency_us": 0, "gigabytes_per_second": 1e3}
    dispatch = Dispatch("expert", EXPERTS, CHOSEN, once=True)
    between, inside = (planned(dispatcher="deepep", between=one, inside=other).cluster
                       for one, other in ((slow, fast), (fast, slow)))
    queued_bytes = TOKENS * WIDTH * 2 * CHOSEN
    in_host, to_others = dispatch.sent_bytes(between, RANKS, queued_bytes)
    assert dispatch.ns(between, RANKS, queued_bytes) == pytest.approx(2 * to_others * 1000, abs=1000)   # 2 ranks a host
    assert dispatch.ns(inside, RANKS, queued_bytes) == pytest.approx(in_host * 1000, abs=1000)


def test_all_to_alls_beside_other_micro_batches_are_exposed_as_far_as_they_are_longer():
    slow = {"latency_us": 50_000, "gigabytes_per_second": 1}
    alone, beside = (planned(overlap_experts=each) for each in (False, True))
    bound, hidden = (planned(overlap_experts=each, between=slow) for each in (False, True))
    assert beside.found.clock.sent_by == alone.found.clock.sent_by
    assert beside.found.clock.exposed_ns < alone.found.clock.exposed_ns
    assert beside.step_seconds < alone.step_seconds
    calls = 4 * LAYERS
    assert bound.found.clock.exposed_ns > calls * 50e6
    assert hidden.found.clock.exposed_ns > (calls - 1) * 50e6 - hidden.found.clock.computing_ns.total()


@pytest.mark.parametrize(("words", "line"), [
    (["--set", "cluster.dispatcher=deepep"], "cluster.dispatcher is for model.kind mixture, and this is transformer"),
    (["--set", "cluster.overlap_experts=true"], "cluster.overlap_experts is for model.kind mixture"),
    (["--set", "model.kind=mixture", "--set", "cluster.dispatcher=deepep", "--set", "cluster.collectives=written"],
     "set cluster.collectives to pipelined"),
])
def test_a_dispatch_without_a_plan_is_refused(words, line, capsys):
    assert line in refused(capsys, "plan", "llama3_8b", *words)
