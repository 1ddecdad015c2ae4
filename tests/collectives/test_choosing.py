"""What "auto" takes: by length and ranks, and never with different bits."""

import numpy as np
import pytest

import zerosim as zs
from zerosim.collectives import choosing
from zerosim.collectives.choosing import LONG, SHORT, SWITCHES, choose, switch_at
from zerosim.collectives.table import ALGORITHMS
from zerosim.core.errors import CollectiveError
from zerosim.worlds.local import spawn


@pytest.fixture(autouse=True)
def switches_as_before():
    before = dict(SWITCHES)
    yield
    switch_at(before)


def orders_of(collective):
    """The orders of addition that "auto" may have, from one length to another."""
    return {ALGORITHMS[f"{name}.{collective}"].order for names in (SHORT, LONG) for name in names[collective]}


@pytest.mark.parametrize("collective", SWITCHES)
def test_bits_do_not_depend_on_where_the_switch_is(collective):
    assert set(SHORT) == set(LONG) == set(SWITCHES)
    assert len(orders_of(collective)) == 1


def test_algorithms_that_add_in_two_orders_are_seen(monkeypatch):
    monkeypatch.setitem(LONG, "all_reduce", ("ring",))
    assert len(orders_of("all_reduce")) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_auto_takes_what_choose_says(size, monkeypatch):
    def all_reduced(comm):
        return zs.all_reduce(comm, np.random.default_rng(comm.rank).standard_normal(9), algorithm="auto").tobytes()

    results = []
    for most_bytes, name in ((0, "rabenseifner"), (9 * 8, "doubling")):
        switch_at({"all_reduce": most_bytes})
        assert choose("all_reduce", size, 9 * 8).name == name
        choosing.named.cache_clear()
        called = []
        row = ALGORITHMS[f"{name}.all_reduce"]
        monkeypatch.setattr(choosing, "find", lambda *asked, **how: called.append(asked[1]) or row)
        results += spawn(all_reduced, ranks=size)
        assert set(called) == {name}
        monkeypatch.undo()
    assert len(set(results)) == 1


@pytest.mark.parametrize(("switches", "said"), [
    ({"all_reduc": 1}, "no switch for 'all_reduc'; did you mean 'all_reduce'"),
    ({"broadcast": 1}, "no switch for 'broadcast'"),
])
def test_a_switch_that_cannot_be_is_refused(switches, said):
    before = dict(SWITCHES)
    with pytest.raises(CollectiveError, match=said):
        switch_at(switches)
    assert before == SWITCHES


def gathers(short_kb, algorithm="auto", ranks=4):
    """The messages of rank 0's all-gathers in a step, by stage; the two layers gather 2.1 kB and 0.4 kB."""
    outcome = zs.run({
        "world": {"ranks": ranks}, "model": {"hidden": [8]}, "train": {"steps": 1, "micro_batches": ranks},
        "parallel": {"all_gather": algorithm}, "cluster": {"short_gather_kb": short_kb},
    })
    assert outcome.passed
    assert all(row["traffic_holds"] for row in outcome.document["rows"])
    first = {row["stage"]: row["traffic"][0]["by_collective"] for row in outcome.document["rows"]}
    return {stage: collectives["all_gather"]["messages"] for stage, collectives in first.items()}


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_run_gathers_short_vectors_by_doubling_and_long_ones_by_the_ring(ranks):
    by_ring, mixed, by_doubling = (gathers(kb, ranks=ranks) for kb in (0, 1, 100))
    assert by_ring == gathers(64, "ring", ranks)
    assert by_doubling == gathers(64, "bruck", ranks)
    for stage, messages in mixed.items():
        assert by_doubling[stage] <= messages <= by_ring[stage]
    assert (by_doubling["ddp"] < mixed["ddp"] < by_ring["ddp"]) == (ranks == 4)


def test_a_plan_prices_what_would_be_taken():
    def waits(kb):
        planned = zs.plan({
            "world": {"ranks": 16}, "model": {"hidden": [8]}, "train": {"micro_batches": 16},
            "parallel": {"all_gather": "auto"}, "cluster": {"short_gather_kb": kb, "collectives": "written"},
        })
        return planned.document["rows"][0]["step_seconds"]

    assert waits(100) < waits(0) == waits(0.1)
