"""The loss scale as steps overflow and do not, and what a run says that could not train."""

import math

import numpy as np
import pytest

from tests.pages import printed
from tests.training import labelled, run, scenario
from zerosim.data import Dataset
from zerosim.optim.scaling import INITIAL_SCALE, LOWEST_SCALE, STEPS_TO_GROW, Scaling
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally


def dynamic(scale=INITIAL_SCALE):
    return Scaling(loss_scale=scale, dynamic=True)


def test_a_loss_scale_that_always_overflows_halves_to_the_lowest_and_stays():
    scaling, scales = dynamic(), []
    for _ in range(2_000):
        assert scaling.factor([math.inf]) is None
        scales.append(scaling.loss_scale)
    assert scales[:40] == [INITIAL_SCALE / 2**halvings for halvings in range(1, 41)]
    assert set(scales[39:]) == {LOWEST_SCALE}
    assert scaling.factor([1.0]) == 1 / LOWEST_SCALE


def test_the_lowest_scale_is_the_last_at_which_a_gradient_of_1_is_not_erased():
    assert np.float16(1.0 * LOWEST_SCALE) > 0
    assert np.float16(1.0 * LOWEST_SCALE / 2) == 0


def test_the_scale_doubles_after_every_so_many_steps_in_a_row_without_overflow():
    scaling = dynamic()
    scales = [(scaling.factor([1.0]), scaling.loss_scale)[1] for _ in range(3 * STEPS_TO_GROW)]
    assert scales == [INITIAL_SCALE * 2 ** (step // STEPS_TO_GROW) for step in range(1, 3 * STEPS_TO_GROW + 1)]
    for _ in range(2):
        for _ in range(STEPS_TO_GROW - 1):
            scaling.factor([1.0])
        scaling.factor([math.inf])
    assert scaling.loss_scale == INITIAL_SCALE * 2


@pytest.mark.parametrize(("scaling", "needed"), [
    (Scaling(), False), (Scaling(loss_scale=4.0), False), (Scaling(dynamic=True), True), (Scaling(clip_norm=0.5), True),
])
def test_only_who_clips_or_skips_needs_a_norm_and_only_a_dynamic_scale_grows(scaling, needed):
    assert scaling.needs_norm == needed
    before = scaling.loss_scale
    for _ in range(STEPS_TO_GROW):
        scaling.factor([1.0])
    assert scaling.loss_scale == before * (2 if scaling.dynamic else 1)


@pytest.mark.parametrize("loss_scale", [1e-38, 9e37])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_the_smallest_and_the_largest_that_are_allowed_divide_nothing_by_zero(loss_scale, clip_norm):
    scaling = Scaling(loss_scale, False, clip_norm)
    assert 0 < np.float32(loss_scale) < np.inf
    assert 0 < np.float32(scaling.factor([1.0])) < np.inf


def overflowing(steps, **parallel):
    """Targets so far away that every gradient overflows float16, whatever the loss scale."""
    x = labelled(samples=12).x
    data = Dataset(x, np.full((12, 1), 1e30, np.float32), None, None, None)
    base = scenario(ranks=2, micro_batches=2, steps=steps, **parallel)
    return run_locally(prepare(scenario(base, precision="fp16"), data), Silent())


def shown(outcome):
    return [line for line in printed(outcome, 1_000) if "overflowed float16" in line]


def test_data_that_always_overflow_end_in_a_message():
    outcome = overflowing(1_200, stages=("zero2",), hidden=(), activation="relu")
    assert outcome.failures == []
    assert outcome.trained[0].measured.updates == 0
    assert shown(outcome) == [
        "Stage II: gradients overflowed float16 in 1,200 of 1,200 steps, which changed nothing but the loss scale: it "
        "halves, down to 5.96e-08. Scale the data down, take more steps, or set train.precision to bf16."]


def test_a_run_that_trains_has_no_such_message():
    outcome = run(precision="fp16")
    assert outcome.trained[0].measured.updates
    assert shown(outcome) == []


def test_sharded_gradients_add_their_square_sums_in_the_order_of_full_ones(monkeypatch):
    """Unit by unit, and each unit's chunks in order; floating-point sums in a different order are other sums."""
    seen = {}
    factor = Scaling.factor

    def recorded(self, square_sums):
        sums = list(square_sums)
        seen.setdefault(stage, []).append(sums)
        return factor(self, sums)

    monkeypatch.setattr(Scaling, "factor", recorded)
    for stage in ("ddp", "zero1", "zero3"):
        run(stages=(stage,), steps=1, reference=False, clip_norm=0.1)
    assert len(seen["ddp"][0]) == 3 * 3
    assert seen["ddp"][0] == seen["zero1"][0] == seen["zero3"][0]
    assert len(set(seen["ddp"][0])) > 6
