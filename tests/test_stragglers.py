"""Uneven ranks: the slowest decides a step, all drawn from one seed; and a sweep as a table."""

import math

import numpy as np
import pytest

import zerosim as zs
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
