"""Uneven ranks: the slowest decides a step, all drawn from one seed; and a sweep as a table."""

import math
from fractions import Fraction

import numpy as np
import pytest

import zerosim as zs
from tests.pages import refused
from zerosim.autograd.operations.routing import queue_slots
from zerosim.plan.imbalance import Busiest, ExpertLoad
from zerosim.plan.stragglers import STEPS, Stragglers, uneven_steps

SMALL = {
    "world.ranks": 8, "train.micro_batches": 8, "model.layers": 2, "parallel.stages": ["zero1", "zero3"],
    "check.fits": [], "check.does_not_fit": [], "check.mfu": [],
}


def shown(sweep=None, **cluster):
    keys = {f"cluster.{name}": value for name, value in cluster.items()}
    return zs.plan("scenarios/plans/llama3_8b.toml", set={**SMALL, **keys}, sweep=sweep or {})


def drawn_one_by_one(stragglers, ranks, seed):
    """The slowest of ranks that are drawn each by itself."""
    draw = np.random.default_rng(seed)
    slow = draw.random(ranks) < stragglers.slow_share
    each = np.exp(draw.normal(0, stragglers.jitter, (20_000, ranks))) * (1 + stragglers.slow_by * slow)
    return each.max(axis=1)


@pytest.mark.parametrize("ranks", [1, 8, 200])
@pytest.mark.parametrize("jitter", [0.01, 0.2])
def test_the_slowest_is_that_of_ranks_drawn_one_by_one(ranks, jitter):
    found, alone = Stragglers(jitter).factors(ranks), drawn_one_by_one(Stragglers(jitter), ranks, 7)
    for share in (0.1, 0.5, 0.95):
        assert np.quantile(found, share) == pytest.approx(np.quantile(alone, share), abs=0.15 * jitter)
    assert found.shape == (STEPS,)


def test_the_median_of_the_slowest_has_its_closed_form():
    from statistics import NormalDist
    median = math.exp(NormalDist(0, 0.05).inv_cdf(0.5 ** (1 / 4096)))
    assert np.median(Stragglers(jitter=0.05).factors(4096)) == pytest.approx(median, rel=0.005)


def test_a_slow_rank_slows_every_step_and_only_computing():
    slow = Stragglers(slow_share=0.5, slow_by=0.25)
    steps = uneven_steps(slow, 64, computing_seconds=2.0, step_seconds=3.0)
    assert (steps.mean, steps.p50, steps.p95) == (3.5, 3.5, 3.5)
    nobody = uneven_steps(Stragglers(slow_share=1e-9, slow_by=0.25), 64, 2.0, 3.0)
    assert nobody.p95 == 3.0


def test_a_seed_decides_all_and_a_hundred_thousand_ranks_are_drawn_at_once():
    one, again, other = (Stragglers(0.03, 0.01, 0.2, seed).factors(100_000) for seed in (1, 1, 2))
    assert one.tobytes() == again.tobytes() != other.tobytes()
    assert Stragglers(jitter=0.03).factors(100_000).mean() > Stragglers(jitter=0.03).factors(10).mean()


def test_a_plan_shows_uneven_steps_and_counts_days_by_their_mean():
    even, uneven = shown(), shown(jitter=0.05)
    (first, _), (slower, _) = even.subject.rows, uneven.subject.rows
    assert first.uneven is None
    assert slower.step_seconds == first.step_seconds < slower.uneven.p50 < slower.uneven.p95
    assert slower.tokens_per_second == pytest.approx(slower.units_of_data / slower.uneven.mean)
    assert slower.document()["uneven_step_seconds"]["p95"] == slower.uneven.p95
    assert "uneven ranks make a step" in " ".join(str(uneven).split())
    assert "uneven ranks" not in str(even)


def test_a_sweep_is_shown_as_a_table_with_the_best_marked():
    found = shown({"train.micro_batch": [1, 8], "parallel.recompute": [False, True]}, figures={"memory": 3e10})
    lines = str(found).splitlines()
    start = next(number for number, line in enumerate(lines) if "by train.micro_batch" in line)
    assert lines[start + 1].split() == ["1", "8"]
    table = {" ".join(line.split()[:5]): line.split()[5:] for line in lines[start + 2 : start + 6]}
    rows = {(row.config.name, row.swept): row for row in found.subject.rows}
    for (name, swept), row in rows.items():
        column = [each for each in swept if each.startswith("train.micro_batch=")] == ["train.micro_batch=8"]
        other = next(each.removeprefix("parallel.") for each in swept if "recompute" in each)
        said = table[f"{name}, 8 ranks, {other}"][column]
        due = f"{row.tokens_per_second:,.0f}" if row.fits else f"+{row.missing_bytes / 1e9:.1f}"
        assert said == due + "*" * (row is found.subject.best)
    assert any(not row.fits for row in rows.values())
    assert "by train.micro_batch" not in str(shown())


def test_a_line_of_a_sweep_has_whole_numbers_and_fractions():
    table = str(shown({"train.micro_batch": [1, 2], "train.learning_rate": [0.125, 2]}))
    assert all(f", 8 ranks, learning_rate={rate}" in table for rate in ("0.125", "2"))


# Uneven experts in plans: the busiest rank's time, queues and messages by hand, and the tokens that queues drop.


TOKENS, WIDTH, INNER, LAYERS, EXPERTS, CHOSEN, RANKS = 64, 32, 48, 2, 8, 2, 4
MIXTURE = {
    "model.kind": "mixture", "model.layers": LAYERS, "model.width": WIDTH, "model.inner": INNER, "model.heads": 4,
    "model.key_value_heads": 4, "model.vocabulary": 64, "model.sequence": TOKENS, "model.experts": EXPERTS,
    "model.experts_per_token": CHOSEN, "model.capacity_factor": 8.0, "world.ranks": RANKS, "train.micro_batch": RANKS,
    "train.micro_batches": 1, "parallel.expert_ranks": RANKS, "parallel.stages": ["ddp"], "parallel.recompute": False,
    "check.mfu": [], "check.fits": [], "check.does_not_fit": []}
SHARES = [3, 2, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


def planned(**cluster):
    keys = {f"cluster.{key}": value for key, value in cluster.items()}
    (row,) = zs.plan("llama3_8b", set=MIXTURE | keys).subject.rows
    return row


def queue_rows(load):
    """The rows of a rank's queues: those that `RANKS` samples send to its experts."""
    return Fraction(load) * RANKS * TOKENS * CHOSEN / RANKS


@pytest.mark.parametrize(("cluster", "load"), [
    ({"expert_load": SHARES}, 2.5), ({"expert_load": [4.5]}, 2.5), ({"expert_load": [1] * 8}, 1.0)])
def test_products_and_messages_of_the_busiest_rank_are_those_by_hand(cluster, load):
    row, even = planned(**cluster), planned(expert_load=[1.0])
    assert row.uneven_experts == Busiest(load, 0.0)
    more = queue_rows(load) - queue_rows(1)
    of_experts = 3 * 2 * 3 * WIDTH * INNER * LAYERS      # forward and twice backward; three matrices
    assert row.found.operations.total() - even.found.operations.total() == of_experts * more
    sent = row.found.sent_by_direction["expert"] - even.found.sent_by_direction["expert"]
    assert sent == 4 * LAYERS * more * WIDTH * 2 * Fraction(RANKS - 1, RANKS)
    assert (row.found.peak["activations"] > even.found.peak["activations"]) == (load > 1)
    assert (row.step_seconds > even.step_seconds) == (load > 1)


def test_a_plan_of_the_mean_rank_would_be_seen(monkeypatch):
    right = planned(expert_load=SHARES).found.operations.total()
    monkeypatch.setattr(ExpertLoad, "busiest", lambda self, experts, ranks, capacity: Busiest(1.0, 0.0))
    assert planned(expert_load=SHARES).found.operations.total() < right


def test_a_load_without_a_place_apart_costs_nothing():
    assert ExpertLoad(tuple(SHARES)).busiest(8, ranks=1, capacity=8.0) == Busiest(1.0, 0.0)
    assert ExpertLoad(zipf=0.0).shares(3) == [1.0, 1.0, 1.0]
    assert ExpertLoad(zipf=1.0).shares(3) == pytest.approx([18 / 11, 9 / 11, 6 / 11])


@pytest.mark.parametrize(("capacity", "wrong"), [(1.0, 0.5), (1.25, 1.0), (2.0, 1.5)])
def test_dropped_tokens_are_those_that_full_queues_refuse(capacity, wrong):
    """A router that sends each expert its share of 1,024 tokens, through the operation of the model."""
    rows = 1024
    choices = np.repeat(np.arange(EXPERTS), [int(share * rows / EXPERTS) for share in SHARES])[:, np.newaxis]
    slots = np.empty(choices.shape, np.int64)
    queue_slots.forward(choices, out=slots, empty=np.empty, queues=EXPERTS, capacity=int(capacity * rows / EXPERTS))
    dropped = np.mean(slots < 0)
    assert ExpertLoad(tuple(SHARES)).busiest(EXPERTS, RANKS, capacity).dropped == pytest.approx(dropped, abs=1e-12)
    assert ExpertLoad(tuple(SHARES)).busiest(EXPERTS, RANKS, wrong).dropped != pytest.approx(dropped)
    served = [np.sum((slots // int(capacity * rows / EXPERTS) // 2 == rank) & (slots >= 0)) for rank in range(RANKS)]
    assert ExpertLoad(tuple(SHARES)).busiest(EXPERTS, RANKS, capacity).load == max(served) * RANKS / rows


@pytest.mark.parametrize(("words", "line"), [
    (["--set", "cluster.expert_load=[1.5]"], "the load of experts is for model.kind mixture, and this is transformer"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[1, 2]"], "found 2 shares for 4 experts; give one"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[5]"], "at least and 4 at most; found 5"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[0, 0, 0, 0]"], "all shares are 0"),
    (["--set", "model.kind=mixture", "--set", "cluster.expert_load=[2]", "--set", "cluster.expert_zipf=1"],
     "say the same; leave one out"),
])
def test_a_load_that_cannot_be_is_one_line(words, line, capsys):
    assert line in refused(capsys, "plan", "llama3_8b", *words)
