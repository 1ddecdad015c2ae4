"""The update of a unit: each element by the published formula, on any stretch, in any piece, padded or not."""

import math

import ml_dtypes
import numpy as np
import pytest

from tests.pages import printed
from tests.training import labelled, run, scenario
from zerosim.core.bits import NOT_A_NUMBER
from zerosim.core.precisions import PRECISIONS
from zerosim.core.sharding import Mesh, owned
from zerosim.models.mlp import mlp
from zerosim.scenario.data import Dataset
from zerosim.stages.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.stages.scaling import EPSILON, LOWEST_SCALE, Scaling, square_sum
from zerosim.stages.update import MASTER, UpdateRule
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

(UNIT,) = mlp(3, [4], 2, "relu", "cross_entropy", groups=[[0, 1]]).units     # 12 + 4 + 8 + 2 numbers
RATE_OF = [0.0, 0.125, 0.25, 0.25 * (0.5 + math.sqrt(0.125)), 0.125, 0.25 * (0.5 - math.sqrt(0.125)), 0.0]
DECAYED = np.repeat([True, False, True, False], [12, 4, 8, 2])
BFLOAT16 = ml_dtypes.bfloat16

optimizers = pytest.mark.parametrize("name", OPTIMIZERS)
SKIPPED = 1
"""Steps that were skipped, so that a step's number is not that of its update."""


def rule(name, precision="fp64", decay=0.5, biases=False, epsilon=1e-4):
    h = Hyperparameters(0.25, (0.7, 0.9), epsilon, 0.6, decay)
    return UpdateRule(OPTIMIZERS[name], h, PRECISIONS[precision], biases, "cosine", warmup_steps=2, steps=6)


def slots(name, count):
    return {slot: np.zeros(count, np.float32) for slot in OPTIMIZERS[name].slots}


def drawn(dtype="f8", updates=3):
    """Weights, and a gradient for each update."""
    return [each.astype(dtype) for each in np.random.default_rng(0).standard_normal((updates + 1, UNIT.count))]


def state(rule, weights, count=None):
    """Before the first step."""
    master = {MASTER: weights.astype(np.float32)} if MASTER in rule.slots else {}
    return master | {slot: np.zeros(len(weights), rule.precision.state) for slot in rule.optimizer.slots}


def by_hand(name, w, gradients, decay):
    """An element after these updates, from the formulas."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        rate = RATE_OF[t + SKIPPED]
        d = g if name == "adamw" else g + decay * w
        w -= rate * decay * w if name == "adamw" else 0.0
        if name in ("sgd", "momentum"):
            m = 0.6 * m + d if name == "momentum" else d
            w -= rate * m
        else:
            assert name in ("adam", "adamw"), f"write the formula of {name} here"
            m, v = 0.7 * m + 0.3 * d, 0.9 * v + 0.1 * d * d
            w -= rate * m / (1 - 0.7**t) / (math.sqrt(v / (1 - 0.9**t)) + 1e-4)
    return w


def updated(rule, weights, gradients, start=0, held=None):
    """Weights and state after these updates of a stretch of the unit."""
    weights, held = weights.copy(), held or state(rule, weights)
    for count, gradient in enumerate(gradients, start=1):
        rule.update(UNIT, start, weights, gradient, held, step=count + SKIPPED, count=count, factor=0.5)
    return weights, held


def published(rule, weights, gradients, start=0):
    """The same, by differences that are applied elsewhere, to weights that are still those of before."""
    weights, held = weights.copy(), state(rule, weights)
    for count, gradient in enumerate(gradients, start=1):
        out = np.full_like(weights, np.nan)
        rule.update(
            UNIT, start, weights, gradient, held, step=count + SKIPPED, count=count, factor=0.5, out=out)
        rule.apply(UNIT, start, weights, out, step=count + SKIPPED)
    return weights, held


def same(one, other):
    """Equal bytes of weights and of every slot."""
    return (one[0].tobytes(), {slot: held.tobytes() for slot, held in one[1].items()}) == (
        other[0].tobytes(), {slot: held.tobytes() for slot, held in other[1].items()})


def test_the_learning_rate_by_hand():
    assert [rule("sgd").learning_rate(step) for step in range(1, 7)] == pytest.approx(RATE_OF[1:], abs=1e-15)


@optimizers
@pytest.mark.parametrize("biases", [False, True])
def test_each_element_follows_the_formula_with_the_decay_that_is_its_own(name, biases):
    weights, *gradients = drawn()
    ours, _ = updated(rule(name, biases=biases), weights, gradients)
    decays = np.where(DECAYED | biases, 0.5, 0.0)
    due = [
        by_hand(name, w, [0.5 * g for g in each], decay)
        for w, decay, *each in zip(weights.tolist(), decays.tolist(), *map(np.ndarray.tolist, gradients), strict=True)
    ]
    np.testing.assert_allclose(ours, due, rtol=1e-11)


@optimizers
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("way", [updated, published])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("ranks", [4, 7])
def test_shards_with_their_padding_have_the_bits_of_the_whole(name, precision, way, biases, ranks):
    """However the unit is cut: cuts go through parameters, and the last shards have padding, which stays zero."""
    made = rule(name, precision, biases=biases, epsilon=0.0)
    weights, *gradients = drawn(made.precision.weights)
    expected = way(made, weights, gradients)
    for rank in range(ranks):
        layout = owned(UNIT.count, Mesh(rank, ranks, ranks))
        here = slice(layout.start, layout.start + layout.length)
        (mine, *of_mine), due = ([padded(each[here], layout.length) for each in of]
                                 for of in ([weights, *gradients], [expected[0], *expected[1].values()]))
        found, held = way(made, mine, of_mine, layout.start)
        assert same((found, held), (due[0], dict(zip(held, due[1:], strict=True))))


def padded(values, length):
    return np.concatenate([values, np.zeros(length - len(values), values.dtype)])


@optimizers
@pytest.mark.parametrize("place", [0, 1, 36])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_nan_of_any_kind_at_any_place_becomes_the_one_nan(name, place, factor):
    """Of a gradient: sign and payload of a NaN reach neither the weights nor the state."""
    def after(nan):
        weights, gradient = np.ones((2, 37), np.float32)
        gradient[place] = nan
        held = slots(name, 37)
        OPTIMIZERS[name].update(weights, gradient, held, 1, Hyperparameters(gradient_factor=factor))
        return weights, held

    other = np.array([0x7FC00123 if np.signbit(NOT_A_NUMBER) else 0xFFC00123], np.uint32).view(np.float32)[0]
    assert np.isnan(after(other)[0][place])
    assert same(after(other), after(NOT_A_NUMBER))


# The factor of all gradients.


def test_a_norm_is_that_of_gradients_without_the_loss_scale():
    alone = Scaling(clip_norm=1.0).factor([9.0, 16.0])
    assert alone == 1.0 / (5.0 + EPSILON)
    for dynamic in (False, True):
        assert Scaling(8.0, dynamic, clip_norm=1.0).factor([64 * 9.0, 64 * 16.0]) == alone / 8
        assert Scaling(8.0, dynamic, clip_norm=6.0).factor([64 * 9.0, 64 * 16.0]) == 1 / 8


def test_only_a_dynamic_loss_scale_skips_a_step():
    assert Scaling(clip_norm=1.0).factor([math.inf]) == 0.0
    assert Scaling(4.0, clip_norm=1.0).factor([math.nan]) == 0.25
    assert Scaling(4.0, dynamic=True, clip_norm=1.0).factor([math.nan]) is None


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64])
def test_squares_are_added_in_float64_whatever_they_are_of(dtype):
    """300² overflows float16, and 1 beside 2¹² squared is lost in float32."""
    values = np.array([300.0, 4096.0, 1.0], dtype)
    assert square_sum(values) == sum(float(value) ** 2 for value in values)


# The loss scale as steps overflow and do not, and what a run says that could not train.


def test_the_lowest_scale_is_the_last_at_which_a_gradient_of_1_is_not_erased():
    assert np.float16(1.0 * LOWEST_SCALE) > 0
    assert np.float16(1.0 * LOWEST_SCALE / 2) == 0


def test_data_that_always_overflow_end_in_a_message():
    """Targets so far away that every gradient overflows float16, also at the lowest loss scale, after 40 steps."""
    data = Dataset(labelled(samples=12).x, np.full((12, 1), 1e30, np.float32), None, None, None)
    base = scenario(ranks=2, micro_batches=2, steps=60, stages=("zero2",), hidden=(), activation="relu")
    outcome = run_locally(prepare(scenario(base, precision="fp16"), data))
    assert outcome.failures == []
    assert outcome.trained[0].measured.updates == 0
    (said,) = [line for line in printed(outcome, 1_000) if "because gradients overflowed" in line]
    assert "steps without an update, because gradients overflowed 60" in said


def test_sharded_gradients_add_their_square_sums_in_the_order_of_full_ones(monkeypatch):
    """Unit by unit, and each unit's chunks in order, as one process does; in a different order they are other sums."""
    seen, factor = [], Scaling.factor

    def recorded(self, square_sums):
        seen.append([*square_sums])
        return factor(self, seen[-1])

    monkeypatch.setattr(Scaling, "factor", recorded)
    run(stages=("ddp", "zero1", "zero3"), steps=1, clip_norm=0.1)
    first, *others = (sums for sums in seen if len(sums) == 3 * 3)      # a step on shapes has one sum
    assert len(others) == 3 * 3                                         # three rows of three ranks, after one process
    assert [sums for sums in others if sums != first] == []
    assert len(set(first)) > 6
