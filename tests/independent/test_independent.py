"""zerosim against a trainer that was written from the documentation alone: weights and losses, to the bit."""

import functools
import math
import random
from importlib.resources import files
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tests.independent import mlp as independent
from tests.independent import tensor as independent_tensor
from tests.independent.runs import alike, differences, run
from tests.sampling import one_in
from zerosim.stages.optimizers import OPTIMIZERS

# Every value of every key that decides bits, or should not
VALUES = {
    "activation": ["relu", "tanh", "gelu", "gelu_exact"],
    "optimizer": ["sgd", "momentum", "adam", "adamw"],
    "precision": ["fp32", "fp16", "bf16", "fp64"],
    "order": ["ring", "rank", "tree", "exact"],
    "units": ["layer", "model", [[0, 1], [2]]],
    "accumulation": ["boundary", "micro_batch", "layered"],
    "accumulate_dtype": ["weights", "fp32"],
    "param_dtype": ["weights", "bf16", "fp16", "fp32"],
    "autocast": ["none", "bf16", "fp16"],
    "reduce_dtype": ["weights", "fp32", "bf16", "fp16"],
    "output_dtype": ["weights", "fp32", "bf16", "fp16"],
    "publish": ["weights", "updates", "broadcasts"],
    "schedule": ["constant", "cosine"],
    "warmup_steps": [0, 1, 2],
    "decay_biases": [True, False],
    "clip_norm": [0, 0.02, 50],
    "loss_scale": ["dynamic", 1, 8, 1000.5],
    "frozen": [[], [0], [1], [0, 2], [0, 1, 2]],
    "data": ["classes", "outputs", "one output", "loud", "digits"],
}
BASE = {"data": "classes", "ranks": 2, "hidden": [7, 5], "micro_batch": 3, "micro_batches": 4, "steps": 3}
BASE |= {"learning_rate": 0.02}
FP16, BF16, FP64 = {"precision": "fp16"}, {"precision": "bf16"}, {"precision": "fp64"}
SINGLY = {"hidden": [], "micro_batch": 1, "micro_batches": 8, "steps": 2}
ALONE = {"ranks": 1, "micro_batches": 1}
LOUD = FP16 | {"data": "loud", "steps": 8}
CASES = {
    "plain": {},
    "initial": {"steps": 0},
    "five ranks, one idle chunk": {"ranks": 5, "micro_batches": 5, "hidden": [1, 3], "data": "one output"},
    "one output, in pairs": {"data": "one output", "micro_batch": 40, "activation": "gelu", "clip_norm": 0.02},
    "epochs": {"micro_batch": 9, "seed": 5, "steps": 4},
    "gelu": {"activation": "gelu", "data": "one output", "optimizer": "momentum", "momentum": 0.7},
    "gelu, digits": {"activation": "gelu", "data": "digits", "hidden": [32, 32], "micro_batch": 16, "units": "model"},
    "adam": {"betas": [0.7, 0.95], "epsilon": 1e-3, "weight_decay": 0.05},
    "adamw": {"optimizer": "adamw", "steps": 4},
    "adamw without decay": {"optimizer": "adamw", "weight_decay": 0.0, "publish": "updates"},
    "cosine": {"schedule": "cosine", "warmup_steps": 2, "steps": 5},
    "rank": {"order": "rank", "ranks": 4, "micro_batches": 8},
    "ring": {"order": "ring", "ranks": 4, "micro_batches": 8, "micro_batch": 1},
    "tree": {"order": "tree", "ranks": 4, "micro_batches": 16, "micro_batch": 1},
    "exact": {"order": "exact", "ranks": 3, "micro_batches": 9, "activation": "tanh"},
    "exact, cancelling": {"order": "exact", "data": "cancelling", "optimizer": "sgd", "learning_rate": 0.3} | SINGLY,
    "exact, infinite": {"order": "exact", "data": "infinite", "optimizer": "sgd", "learning_rate": 0.3} | SINGLY,
    "ring, infinite": {"order": "ring", "data": "infinite", "optimizer": "momentum"} | SINGLY,
    "part by part": {"accumulation": "micro_batch", "ranks": 3, "micro_batches": 9, "units": "model"},
    "groups": {"units": [[0, 1], [2]], "clip_norm": 0.02, "ranks": 4},
    "clip in pieces": {"hidden": [150, 130], "units": "model", "ranks": 1, "micro_batches": 1, "clip_norm": 0.02},
    "all frozen": {"frozen": [0, 1, 2], "clip_norm": 0.02},
    "frozen group": {"frozen": [0, 1], "units": [[0, 1], [2]]},
    "FSDP2, reduced in fp32": {"param_dtype": "bf16", "reduce_dtype": "fp32", "output_dtype": "fp32", "clip_norm": 50},
    "FSDP2, fp16": {"param_dtype": "fp16", "reduce_dtype": "fp32", "data": "loud", "steps": 8, "activation": "tanh"},
    "autocast, every micro-batch": {
        "autocast": "bf16", "accumulation": "micro_batch", "order": "rank", "reduce_dtype": "bf16", "clip_norm": 0.02},
    "autocast, fp16": {"autocast": "fp16", "data": "outputs", "output_dtype": "bf16", "frozen": [1]},
    "bf16, tanh": BF16 | {"activation": "tanh", "optimizer": "sgd", "order": "rank", "ranks": 4},
    "bf16, all in fp32": BF16 | {"accumulate_dtype": "fp32", "reduce_dtype": "fp32", "clip_norm": 0.02},
    "bf16, exact in fp32": BF16 | {"order": "exact", "accumulate_dtype": "fp32", "data": "one output"},
    "bf16, updates": BF16 | {"publish": "updates", "optimizer": "adamw", "weight_decay": 0.5},
    "bf16, NaN": BF16 | {"data": "outputs", "learning_rate": 1e20, "optimizer": "sgd", "steps": 5},
    "fp16": FP16 | {"optimizer": "momentum", "decay_biases": False, "weight_decay": 0.1},
    "fp16, decay": FP16 | {"optimizer": "adam", "weight_decay": 0.9, "learning_rate": 0.1, "steps": 8},
    "fp16, NaN": FP16 | {"data": "outputs", "learning_rate": 1e5, "activation": "gelu", "loss_scale": 1},
    "fp64, exact": FP64 | {"order": "exact", "micro_batches": 8, "activation": "tanh", "publish": "updates"},
    "fp64, exact, cancelling": FP64 | {"order": "exact", "data": "cancelling", "optimizer": "sgd"} | SINGLY,
    "fp64, NaN": FP64 | {"data": "outputs", "learning_rate": 1e160, "optimizer": "sgd", "steps": 4},
    "skipped": LOUD | {"activation": "tanh"},
    "skipped, autocast": {"autocast": "fp16", "data": "loud", "steps": 8, "activation": "tanh"},
    "skipped, relu": LOUD | {"hidden": [4], "clip_norm": 0.02, "order": "rank"},
    "skipped, cosine": LOUD | {"schedule": "cosine", "optimizer": "adamw"},
    "skipped, exact": LOUD | {"order": "exact", "warmup_steps": 2},
    "no update": LOUD | {"publish": "updates", "steps": 1, "hidden": 20 * [8], "units": "model", "micro_batch": 1},
    "skipped, updates": LOUD | {"publish": "updates", "frozen": [0]},
    "skipped, at the lowest scale": LOUD | SINGLY | {"data": "one too large", "optimizer": "sgd", "steps": 90} | ALONE,
    "skipped, part by part": LOUD | {"accumulation": "micro_batch"},
}
NAMED = list(CASES)
SKIPPED = [name for name in CASES if name.startswith("skipped")]


def drawn(seed):
    """A configuration of values drawn from the table."""
    draw = random.Random(seed)
    keys = BASE | {key: draw.choice(values) for key, values in VALUES.items()}
    keys |= {"ranks": draw.choice([1, 2, 4] if keys["order"] == "tree" else [1, 2, 3, 5]), "seed": seed}
    keys["micro_batches"] = keys["ranks"] * draw.choice([1, 2, 4])
    if keys["order"] in ("tree", "exact") and keys["accumulation"] == "micro_batch":
        keys["accumulation"] = "boundary"
    if keys["frozen"]:
        keys["units"] = "layer"
    if keys["precision"] == "fp64":
        keys |= {"accumulate_dtype": "weights", "reduce_dtype": "weights", "output_dtype": "weights"}
    if keys["precision"] != "fp32":
        keys["param_dtype"] = "weights"
    if keys["precision"] != "fp32" or keys["param_dtype"] != "weights":
        keys["autocast"] = "none"
    return keys


CASES |= {f"drawn {seed}": drawn(seed) for seed in range(40)}


@functools.cache
def data(name):
    """Inputs and targets.

    Those that are loud make gradients overflow in fp16 until the loss scale has fallen. Gradients of those that cancel
    add up to what is lost beside the largest; of those that are infinite, to infinities of one sign or of both.
    """
    if name == "digits":
        with np.load(files("zerosim.scenario.data") / "digits.npz") as digits:
            return digits["x"].reshape(-1, 64).astype(np.float32) / 16, digits["y"].astype(np.int64)
    draw = np.random.default_rng(3)
    x = draw.standard_normal((50, 6), dtype=np.float32)
    if name == "classes":
        return x, np.append(draw.integers(0, 4, 49), 3)
    if name == "two samples":
        return x[:2], np.array([[1], [30]], np.float32)
    if name == "one too large":
        return x[:2], np.array([[1e35], [10]], np.float32)
    if name == "cancelling":
        targets = draw.standard_normal((8, 1), dtype=np.float32)
        targets[:2, 0] = 2.0**40, -(2.0**40)
        return x[[0, 0, *range(6)]], targets
    if name == "infinite":
        factors = np.array([[1e3, 1e3, 1], [1, 1e3, 1], [1, 1, 1], [1, 1, 1]], np.float32)
        return factors, np.array([[3e38], [-3e38], [1], [2]], np.float32)
    targets = draw.standard_normal((50, 1 if name == "one output" else 3), dtype=np.float32)
    return (x, 100 * targets) if name == "loud" else (x, targets)


@functools.cache
def outcome_of_case(name):
    """The first list of stages of a case: what zerosim found."""
    keys = BASE | CASES[name]
    return outcome(keys, alike(keys)[0])


def outcome(keys, stages):
    """The measurements of each stage, and the weights that the last leaves."""
    keys = dict(keys)
    source = keys.pop("data")
    if source == "digits":
        return run(keys | {"source": source}, stages)
    x, y = data(source)
    return run(keys | {"source": "data.npz"}, stages, lambda folder: np.savez(folder / "data.npz", x=x, y=y))


def opinion(keys, stage):
    """What the independent trainer comes to: weights, losses, number of updates."""
    keys = dict(keys)
    x, y = data(keys.pop("data"))
    with threadpool_limits(1):
        return independent.train(x, y, stage=stage, **keys)


@pytest.mark.parametrize("name", [*one_in(2, NAMED), *one_in(5, [name for name in CASES if name not in NAMED])])
def test_an_independent_trainer_has_the_same_bits(name):
    keys = BASE | CASES[name]
    for stages in alike(keys):
        rows, file = outcome_of_case(name) if stages == alike(keys)[0] else outcome(keys, stages)
        assert [row.config.stage_key for row in rows] == stages
        expected = opinion(keys, stages[0])
        assert differences(rows, file, expected) == []
        if name in SKIPPED:
            assert all(0 < row.updates < keys["steps"] for row in rows)
        if "NaN" in name:
            assert any(math.isnan(loss) for loss in expected[1])


def test_the_cases_have_every_optimizer_and_every_value_of_every_key():
    assert VALUES["optimizer"] == list(OPTIMIZERS)
    settled = [independent.settled(**BASE | case) for case in CASES.values()]
    for key, values in VALUES.items():
        assert [value for value in values if not any(getattr(keys, key) == value for keys in settled)] == [], key


def test_a_loss_scale_grows_after_2000_good_steps():
    """On two samples whose gradients stay as they are: the doubled scale overflows, and one more step is skipped."""
    keys = BASE | {"data": "two samples", "hidden": [], "ranks": 1, "micro_batches": 1, "micro_batch": 1}
    keys |= FP16 | {"optimizer": "sgd", "learning_rate": 1e-6}
    _, _, soon = opinion(keys | {"steps": 15}, "ddp")
    rows, file = outcome(keys | {"steps": 2015}, ["ddp"])
    assert differences(rows, file, opinion(keys | {"steps": 2015}, "ddp")) == []
    assert 0 < soon < 15
    assert rows[0].updates == 2000 + soon - 1


def epsilon_inside_the_root(keys, g, m, v, rate, count):
    first, second = keys.betas
    m[...] = m * first + g * (1.0 - first)
    v[...] = v * second + np.square(g) * (1.0 - second)
    return m / np.sqrt(v / (1.0 - second**count) + keys.epsilon) * (rate / (1.0 - first**count))


def one_more_halving(keys, scale, gradients, factor=independent.factor):
    f = factor(keys, scale, gradients)
    if f is None:
        scale.s /= 2.0
    return f


def decay_in_half(w, d, decay):
    w *= np.array(decay, w.dtype)
    w -= d


def with_others(**others):
    """The sum of contributions as it were with other keys."""

    def wrong(keys, contributions, sum_of=independent.sum_of):
        return sum_of(SimpleNamespace(**vars(keys) | others), contributions)

    return wrong


FAULTS = {
    "relu passes every gradient": ("plain", "BACKWARD", "relu", lambda u, y: u),
    "relu is not applied in 16 bits": ("fp16", "FORWARD", "relu", lambda x: x),
    "tanh is not applied": ("bf16, tanh", "FORWARD", "tanh", lambda x: x),
    "gelu is relu": ("gelu", "FORWARD", "gelu", lambda x: np.maximum(x, 0.0)),
    "epsilon inside the root": ("adam", "DIFFERENCE", "adam", epsilon_inside_the_root),
    "no bias correction": (
        "adam", "DIFFERENCE", "adam", lambda keys, g, m, v, rate, count, adam=independent.adam: (
            adam(keys, g, m, v, rate, 10**6))),
    "ring adds as rank": ("ring", "ACROSS", "ring", lambda totals, chunk: independent.left_to_right(totals)),
    "rank adds as ring": ("rank", "ACROSS", "rank", independent.from_the_next),
    "tree adds as rank": ("tree", "WITHIN", "tree", independent.left_to_right),
    "exact in float64": ("exact, cancelling", "exact", None, lambda parts: np.sum(parts, 0, np.float64).astype("f4")),
    "fp64 in one integer": ("fp64, exact, cancelling", "of_two_integers", None, lambda total, *_: total.astype(float)),
    "exact adds as rank": ("exact", "exact", None, independent.left_to_right),
    "rounded before the bias": (
        "fp16", "linear", None, lambda x, w, b: np.matmul(x, w.T).astype(np.float16).astype(np.float32) + b),
    "a step late": ("cosine", "rate_of", None, lambda keys, step, rate_of=independent.rate_of: rate_of(keys, step + 1)),
    "halved twice": ("skipped", "factor", None, one_more_halving),
    "no step is skipped": (
        "skipped", "factor", None, lambda keys, scale, gradients, factor=independent.factor: (
            factor(keys, scale, gradients) or 1.0 / scale.s)),
    "the norm of one unit": (
        "groups", "sum_of_squares", None, lambda keys, gradients, sum_of_squares=independent.sum_of_squares: (
            sum_of_squares(keys, gradients[:1]))),
    "NaN with another sign": (
        "fp16, NaN", "one_nan", None, lambda a: np.where(np.isnan(a), -(np.float32(np.inf) - np.float32(np.inf)), a)),
    "decay rounded to bfloat16": ("bf16, updates", "apply", None, decay_in_half),
    "parts added within ranks": ("part by part", "sum_of", None, with_others(part_by_part=False)),
    "ranks added in 16 bits": ("bf16, all in fp32", "sum_of", None, with_others(wire=ml_dtypes.bfloat16)),
    "micro-batches added in 16 bits": ("bf16, exact in fp32", "sum_of", None, with_others(summed=ml_dtypes.bfloat16)),
    "no decay": ("adamw", "apply", None, lambda w, d, decay: np.subtract(w, d, out=w)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_makes_the_two_differ(fault, monkeypatch):
    name, attribute, entry, wrong = FAULTS[fault]
    keys = BASE | CASES[name]
    if entry:
        monkeypatch.setitem(getattr(independent, attribute), entry, wrong)
    else:
        monkeypatch.setattr(independent, attribute, wrong)
    assert differences(*outcome_of_case(name), opinion(keys, alike(keys)[0][0])) != []


TENSOR = {
    "two": {"tensor_ranks": 2, "ranks": 4, "hidden": [8, 5, 6]},
    "four, odd": {"tensor_ranks": 4, "ranks": 4, "hidden": [8, 6], "activation": "gelu", "optimizer": "adamw"},
    "bf16": {"tensor_ranks": 2, "ranks": 6, "hidden": [6, 7], "precision": "bf16", "micro_batches": 6, "order": "rank"},
}


def of_tensor_ranks(name):
    keys = BASE | TENSOR[name]
    rows, file = outcome(keys, ["ddp", "zero3"])
    keys["ranks"] //= keys["tensor_ranks"]
    x, y = data(keys.pop("data"))
    with threadpool_limits(1):
        tensor = keys.pop("tensor_ranks")
        return differences(rows, file, independent_tensor.train(x, y, tensor, **keys))


@pytest.mark.parametrize("name", TENSOR)
def test_an_independent_trainer_of_split_layers_has_the_same_bits(name):
    assert of_tensor_ranks(name) == []


@pytest.mark.parametrize("wrong", [lambda parts: parts[0], lambda parts: sum(parts[1:], parts[0])])
def test_a_forgotten_sum_or_a_wrong_order_makes_the_two_differ(wrong, monkeypatch):
    monkeypatch.setattr(independent_tensor, "summed", wrong)
    assert of_tensor_ranks("four, odd") != []
