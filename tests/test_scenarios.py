"""The scenarios that are shipped: each passes, and where the opposite is claimed, or made so, it fails."""

from functools import cache

import pytest

from tests.small import SCENARIOS, small
from tests.training import claiming
from zerosim.data import load_dataset
from zerosim.scenario import Scenario, load
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally

NEEDS_PROCESSES = "fits_only_sharded.toml"
TRAINING = [path.name for path in sorted(SCENARIOS.glob("*.toml")) if isinstance(load(path), Scenario)]


@cache
def run(name, *overrides):
    scenario = load(SCENARIOS / name, small(name, *overrides))
    return run_locally(prepare(scenario, load_dataset(scenario)), Silent())


def what_fails(outcome):
    return [what for _, what in outcome.failures]


def judged_again(outcome, name, *overrides):
    """The same outcome, judged by the claims of the scenario with some of them changed."""
    return claiming(outcome, load(SCENARIOS / name, small(name, *overrides)).check)


@pytest.mark.parametrize("name", [name for name in TRAINING if name != NEEDS_PROCESSES])
def test_a_shipped_scenario_passes(name):
    outcome = run(name)
    assert outcome.failures == []
    assert outcome.scenario.caption


NUMBERS = {
    "largest_messages": "sends {:,} bytes in its largest message, not {:,}",
    "between_bytes": "sends {:,} bytes between hosts in a step, not {:,}",
    "kept_bytes": "keeps {:,} bytes between steps, not {:,}",
    "activations": "holds {:,} bytes of activations at the peak, not {:,}",
    "beyond_peak": "needs {:,} bytes beyond the peak by first_fit, not {:,}",
    "beyond_peak_laid_out": "needs {:,} bytes beyond the peak by first_fit_laid_out, not {:,}",
}


def opposites():
    """Each claim that a scenario makes of its rows, turned around, and what must then be found."""
    for name in TRAINING:
        check = load(SCENARIOS / name, small(name)).check
        if check.same_weights is not None:
            found = "weights are the same" if check.same_weights else "weights are not the same"
            yield name, f"check.same_weights={str(not check.same_weights).lower()}", found
        for row, wanted in enumerate(check.volumes):
            changed = [*check.volumes[:row], wanted + 1, *check.volumes[row + 1 :]]
            yield name, f"check.volumes={changed}", f"sends {wanted:g} P (N−1)/N, not {wanted + 1:g}"
        for row, wanted in enumerate(check.messages):
            changed = [*check.messages[:row], wanted + 1, *check.messages[row + 1 :]]
            yield name, f"check.messages={changed}", f"sends {wanted} messages a step, not {wanted + 1}"
        for key, words in NUMBERS.items():
            for row, wanted in enumerate(getattr(check, key)):
                changed = [*getattr(check, key)]
                changed[row] += 1
                yield name, f"check.{key}={changed}", words.format(wanted, wanted + 1)


@pytest.mark.parametrize(("name", "opposite", "found"), list(opposites()))
def test_whose_opposite_is_claimed_fails(name, opposite, found):
    assert what_fails(judged_again(run(name), name, opposite)) == [found]


@pytest.mark.parametrize(("name", "override", "wrong"), [
    ("stage1_reduces_how.toml", "parallel.order=exact", "sends 4 P (N−1)/N, not 2"),
    ("stage2_needs_no_all_reduce.toml", "parallel.order=exact", "sends 4 P (N−1)/N, not 2"),
    ("stage1_or_stage2.toml", "train.micro_batches=4", "weights are the same"),
    ("weights_or_updates.toml", "train.precision=bf16", "weights are not the same"),
    ("weights_or_updates_in_16_bits.toml", "train.precision=fp32", "weights are the same"),
    ("broadcast_after_the_step.toml", "parallel.reshard_after_forward=false", "sends 2 P (N−1)/N, not 3"),
    ("stage3_costs_half_as_much_again.toml", "parallel.gradients=all_reduce", "sends 3 P (N−1)/N, not 2"),
    ("fsdp_units.toml", "parallel.order=ring", "weights are not the same"),
    ("overlap.toml", "parallel.gradients=all_reduce", "sends 3 P (N−1)/N, not 2"),
    ("mixed_precision.toml", "parallel.reduce_dtype=fp32", "sends 3 P (N−1)/N, not 2"),
    ("clipping.toml", "train.clip_norm=0", "sends 18 messages a step, not 21"),
])
def test_a_claim_fails_where_it_is_not_so(name, override, wrong):
    assert wrong in what_fails(run(name, override))


def test_stage_1_and_2_are_the_same_until_micro_batches_leave_one_by_one():
    first, second, one_by_one = run("stage1_or_stage2.toml").trained
    assert first.measured.weights_sha256 == second.measured.weights_sha256 != one_by_one.measured.weights_sha256
    assert first.memory[0].figures.resting_bytes["gradients"] > 3 * second.memory[0].figures.resting_bytes["gradients"]


def test_broadcasts_burden_some_ranks_more_than_others():
    by_all_gather, by_broadcasts, _ = run("broadcast_after_the_step.toml").trained
    evenly, unevenly = ([rank.counts.messages for rank in row.traffic] for row in (by_all_gather, by_broadcasts))
    assert sum(evenly) == sum(unevenly)
    assert len(set(evenly)) == 1 < len(set(unevenly))


def test_larger_units_and_prefetch_hold_more():
    peaks = [row.memory[0].figures.peak_bytes for row in run("fsdp_units.toml").trained]
    layers, prefetch, pairs, model = (peak["parameters"] for peak in peaks)
    assert layers < prefetch == pairs < model
    assert [peak["total"] for peak in peaks] == sorted(peak["total"] for peak in peaks)


def test_what_goes_on_beside_computation_holds_one_unit_more():
    rows = run("overlap.toml").trained
    held = [row.memory[0].figures.peak_bytes for row in rows]
    peaks = [[round(peak[kind] / 1e3, 1) for peak in held] for kind in ("parameters", "gradients")]
    assert peaks[0][4:] == [564.8, 827.9, 827.9]
    assert peaks[1] == [799.8, 799.8, 663.1, 794.6, 663.1, 663.1, 794.6]


def test_the_bytes_of_a_parameter_in_mixed_precision():
    outcome = run("mixed_precision.toml")
    parameters = outcome.model.count
    found = [
        {kind: round(held / parameters, 2) for kind, held in row.memory[0].figures.resting_bytes.items()}
        for row in outcome.trained
    ]
    assert found == [
        {"parameters": 2.0, "gradients": 2.0, "optimizer": 12.0},
        {"parameters": 2.0, "gradients": 2.0, "optimizer": 3.0},
        {"parameters": 2.0, "gradients": 0.5, "optimizer": 3.0},
        {"parameters": 0.5, "gradients": 0.5, "optimizer": 3.0},
    ]


def test_what_fits_after_all_fails():
    outcome = run(NEEDS_PROCESSES, "model.hidden=[8]")
    assert outcome.failures == [("DDP", "fits after all")]
