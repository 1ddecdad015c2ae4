"""zerosim's transformers against others, written from the documentation alone: weights and losses, to the bit."""

import functools
import inspect
import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tests.independent import mlp as independent
from tests.independent import tape, transformer
from tests.independent.runs import alike, differences, run
from tests.sampling import one_in
from zerosim.scenario.data.load import sequences

TEXT = "the quick brown fox jumps over the lazy dog, and then sleeps; " * 8
SOURCES = {
    "text": {"source": "words.txt", "sequence": 5, "vocabulary": 0},
    "few tokens": {"source": "words.txt", "sequence": 2, "vocabulary": 3},
    "spare tokens": {"source": "words.txt", "sequence": 7, "vocabulary": 40},
    "some not judged": {"source": "reverse", "sequence": 6, "vocabulary": 3},
}
SIZES = {
    "one head": {"width": 6, "heads": 1, "inner": 3},
    "heads": {"width": 8, "heads": 2, "layers": 2},
    "heads that share keys": {"width": 16, "heads": 4, "key_value_heads": 2},
    "heads wider than their share": {"width": 10, "heads": 4, "key_value_heads": 2, "head_size": 6},
    "heads that share one key": {"width": 18, "heads": 3, "key_value_heads": 1, "inner": 1},
}
RANKS = {"1": (1, 4), "2": (2, 2), "2, many": (2, 8), "3": (3, 6), "4": (4, 16)}

# Every value of every key that decides bits, or should not; the rest of a scenario is not a model's
VALUES = {
    "architecture": ["gpt2", "llama"],
    "sizes": list(SIZES),
    "data": list(SOURCES),
    "tied_embeddings": [False, True],
    "dropout": [0, 0.1, 0.9],
    "frozen": ["none", "first", "last"],
    "units": ["layer", "model", "ends", "beginning"],
    "precision": ["fp32", "fp64", "fp16", "bf16"],
    "order": ["ring", "rank", "tree", "exact"],
    "ranks": list(RANKS),
    "accumulation": ["boundary", "micro_batch", "layered"],
    "accumulate_dtype": ["weights", "fp32"],
    "param_dtype": ["weights", "bf16", "fp16"],
    "autocast": ["none", "bf16", "fp16"],
    "reduce_dtype": ["weights", "fp32", "bf16"],
    "output_dtype": ["weights", "bf16"],
    "publish": ["weights", "updates"],
    "optimizer": ["sgd", "adamw"],
    "clip_norm": [0, 0.02],
    "loss_scale": ["dynamic", 1000.5],
    "decay_biases": [True, False],
    "recompute": [True, False],
    "overlap": [False, True],
    "bucket_mb": [0, 5e-3],
}
PLAIN = {key: values[0] for key, values in VALUES.items()}
REST = {"kind": "transformer", "layers": 1, "micro_batch": 3, "steps": 2, "learning_rate": 0.02, "weight_decay": 0.1}


def allowed(case):
    """Whether zerosim takes such a scenario, and each of its values says something."""
    return not (
        (case["architecture"] == "gpt2" and "share" in case["sizes"])
        or (case["order"] in ("tree", "exact") and case["accumulation"] == "micro_batch")
        or (case["order"] == "tree" and case["ranks"] == "3")
        or (case["precision"] == "fp64" and any(
            case[key] != "weights" for key in ("accumulate_dtype", "reduce_dtype", "output_dtype")))
        or (case["precision"] != "fp32" and case["param_dtype"] != "weights")
        or (case["autocast"] != "none" and (case["precision"], case["param_dtype"]) != ("fp32", "weights"))
        or (case["units"] == "model" and case["frozen"] == "last")
    )


def pairs(case):
    return set(itertools.combinations(case.items(), 2))


def drawn(draw):
    while not allowed(case := {key: draw.choice(values) for key, values in VALUES.items()}):
        pass
    return case


def grid(count, tries=40):
    """Cases of which each, of so many tries, has most pairs of values that none before it has."""
    draw, seen, found = random.Random(0), set(), []
    for _ in range(count):
        found.append(max((drawn(draw) for _ in range(tries)), key=lambda case: len(pairs(case) - seen)))
        seen |= pairs(found[-1])
    return found


THREE = {"architecture": "llama", "width": 24, "heads": 6, "key_value_heads": 2, "sequence": 9}
LARGE = {"width": 96, "heads": 4, "sequence": 40, "micro_batch": 9, "micro_batches": 2, "steps": 1, "layers": 1}
"""Its activations are worked on in several pieces."""

LATENT = {"architecture": "llama", "layers": 2, "width": 12, "heads": 3, "latent": 4, "query_latent": 6,
          "rotary_size": 2, "head_size": 4}
MIXTURE = {"kind": "mixture", "layers": 2, "experts": 4, "experts_per_token": 2, "capacity_factor": 1.0}
UNEVEN = {"source": "uneven.py:uneven", "sequence": 6, "vocabulary": 0}
"""Samples that have different numbers of judged targets."""
CASES = {
    "gpt2": {},
    "llama": {"architecture": "llama"},
    "another epsilon": {"architecture": "llama", "norm_epsilon": 1e-3},
    "exact gelu": {"gelu": "exact", "norm_epsilon": 0.0, "precision": "bf16"},
    "initial": {"steps": 0, "layers": 2},
    "one token": {"sequence": 1, "micro_batch": 1},
    "one number a head": {"width": 3, "heads": 3},
    "one number": {"width": 1, "heads": 1},
    "llama, two numbers": {"architecture": "llama", "width": 2, "heads": 1, "sequence": 1},
    "more than a piece": LARGE | {"dropout": 0.1},
    "llama, more than a piece": LARGE | {"architecture": "llama", "key_value_heads": 2},
    "bf16, more than a piece": LARGE | {"architecture": "llama", "precision": "bf16"},
    "bf16": {"precision": "bf16", "layers": 2, "micro_batches": 8},
    "autocast": {"autocast": "bf16", "layers": 2, "micro_batches": 8, "dropout": 0.1},
    "autocast, llama": THREE | {"autocast": "fp16", "tied_embeddings": True, "dropout": 0.5},
    "autocast, more than a piece": LARGE | {"architecture": "llama", "autocast": "bf16"},
    "autocast, tied": {"autocast": "fp16", "tied_embeddings": True, "loss_scale": 8.0},
    "all frozen": {"frozen": [0, 1, 2]},
    "block frozen": {"frozen": [1, 2], "layers": 3, "dropout": 0.1, "architecture": "llama"},
    "fp16, skipped": {"precision": "fp16", "loss_scale": "dynamic", "learning_rate": 1000.0, "steps": 4},
    "fp16, NaN": {"precision": "fp16", "loss_scale": 1, "learning_rate": 1e5, "steps": 4, "optimizer": "sgd"},
    "dropped, NaN": {"precision": "fp16", "loss_scale": 1, "learning_rate": 3e4, "steps": 4, "dropout": 0.5},
    "three heads to a key": THREE,
    "three heads to a key, fp16": THREE | {"precision": "fp16"},
    "dropout": {"dropout": 0.1},
    "uneven": UNEVEN | {"micro_batch": 4, "micro_batches": 2},
    "uneven, one by one": UNEVEN | {"micro_batch": 1, "micro_batches": 8, "accumulation": "micro_batch"},
    "latent": LATENT,
    "latent, one great step": LATENT | {"learning_rate": 1e5, "steps": 1, "optimizer": "sgd"},
    "latent, no latent query": LATENT | {"query_latent": 0, "precision": "fp16", "dropout": 0.1},
    "latent, autocast": LATENT | {"autocast": "bf16", "tied_embeddings": True},
    "mixture": MIXTURE | {"gelu": "exact"},
    "mixture, llama": MIXTURE | {"architecture": "llama", "shared_inner": 5, "dense_layers": 1},
    "mixture, runs of three": MIXTURE | UNEVEN | {"queue_tokens": 3, "sequence": 6, "experts_per_token": 3},
    "mixture, bf16": MIXTURE | {"precision": "bf16", "shared_inner": 5, "capacity_factor": 0.5},
    "mixture, latent, autocast": MIXTURE | LATENT | {"autocast": "fp16", "shared_inner": 4, "dense_inner": 7,
                                                     "dense_layers": 1},
}
"""By the keys of a scenario."""


def settings(case):
    """A case of the grid, by the keys of a scenario."""
    keys = REST | {key: value for key, value in case.items() if key not in ("sizes", "data", "ranks")}
    keys |= SIZES[case["sizes"]] | SOURCES[case["data"]]
    keys["ranks"], keys["micro_batches"] = RANKS[case["ranks"]]
    last = keys["layers"] + 1
    blocks, tied = list(range(1, last)), case["tied_embeddings"]
    units = {
        "layer": [[0, last] if tied else [0], *([i] for i in blocks), *([] if tied else [[last]])],
        "model": [list(range(last + 1))],
        "ends": [[0, last], blocks] if tied else [[0], [*blocks, last]],
        "beginning": [[0, 1, last], *([i] for i in blocks[1:])] if tied else [[0, 1], list(range(2, last + 1))],
    }[case["units"]]
    keys["frozen"] = {"none": [], "first": units[0], "last": units[-1]}[case["frozen"]]
    if case["units"] in ("ends", "beginning"):
        keys["units"] = units
    return keys


SIMPLE = REST | SIZES["heads"] | SOURCES["text"] | {"ranks": 2, "micro_batches": 4, "layers": 1}
KEYS = {name: SIMPLE | case for name, case in CASES.items()}
GRID = grid(30)
KEYS |= {f"grid {number}": settings(case) for number, case in enumerate(GRID)}


@functools.cache
def data(source, sequence, vocabulary, folder):
    """Tokens, targets, and how many tokens there are."""
    if source == "uneven.py:uneven":
        return *uneven().values(), 7
    found = sequences(source, sequence, vocabulary or None, folder)
    return found.x.astype(np.int64), found.y.astype(np.int64), found.classes


def write(folder):
    (folder / "words.txt").write_text(TEXT)
    (folder / "uneven.py").write_text(f"import numpy as np\n{inspect.getsource(uneven)}")


def uneven():
    random = np.random.default_rng(3)
    x, y = random.integers(0, 7, (2, 24, 6))
    y[random.random(y.shape) < 0.6] = -1
    y[0, 0] = 6
    return {"x": x, "y": y}


@functools.cache
def outcome_of_case(name):
    keys = KEYS[name]
    return run(keys, alike(keys)[0], write)


@pytest.fixture(scope="module")
def opinion(tmp_path_factory):
    """What the independent trainer comes to, of a scenario's keys and a stage."""
    folder = tmp_path_factory.mktemp("texts")
    write(folder)

    def train(keys, stage):
        keys = dict(keys)
        x, y, vocabulary = data(*(keys.pop(key) for key in ("source", "sequence", "vocabulary")), folder)
        with threadpool_limits(1):
            return tape.train(x, y, stage=stage, **keys | {"vocabulary": vocabulary})

    return train


@pytest.mark.parametrize("name", [*one_in(5, CASES), *one_in(10, [name for name in KEYS if name not in CASES])])
def test_an_independent_transformer_has_the_same_bits(name, opinion):
    keys = KEYS[name]
    for stages in alike(keys):
        rows, file = outcome_of_case(name) if stages == alike(keys)[0] else run(keys, stages, write)
        expected = opinion(keys, stages[0])
        assert [row.config.stage_key for row in rows] == stages
        assert differences(rows, file, expected) == []
        if "skipped" in name:
            assert 0 < expected[2] < keys["steps"]
        if "NaN" in name:
            assert any(math.isnan(loss) for loss in expected[1])


def test_the_grid_has_almost_every_pair_of_values():
    possible, draw = set(), random.Random(1)
    for _ in range(3000):
        possible |= pairs(drawn(draw))
    seen = set().union(*map(pairs, GRID))
    assert len(possible) > 1000
    assert len(seen & possible) >= 0.9 * len(possible)
    assert {key for key, _ in itertools.chain(*seen)} == set(VALUES)


def test_targets_that_are_not_judged_are_among_the_data():
    _, y, _ = data("reverse", 6, 3, Path())
    assert (y == -1).any()


def softmax_rounded(*arrays, heads, groups, attention=transformer.attention):
    _, p = attention(*arrays, heads, groups)
    p = p.astype(np.float16).astype(np.float32)
    v = arrays[2]
    each = [transformer.by_heads(v1, groups, 1) for v1 in v]
    return np.stack([transformer.by_tokens(np.matmul(p1, v1)) for p1, v1 in zip(p, each, strict=True)]), p


def last_to_first(a, first_to_last=transformer.first_to_last):
    return first_to_last(a[:, ::-1])


def next_operation(keys, places, step, layer, operation, shape, dropping=transformer.dropping):
    return dropping(keys, places, step, layer, operation + 1, shape)


def by_heads_of_neighbours_mixed(a, groups, each):
    """Heads of queries with the same key taken H / K apart."""
    return a.reshape(len(a), each, groups, -1).transpose(2, 1, 0, 3)


ARGSORT = np.argsort
FAULTS = {
    "softmax is rounded": ("three heads to a key, fp16", transformer, "attention", softmax_rounded),
    "the last head first": ("three heads to a key", transformer, "first_to_last", last_to_first),
    "nothing is dropped": ("dropout", transformer, "dropping", lambda *_: lambda x: x),
    "each micro-batch drops the same": (
        "dropout", transformer, "dropping", lambda keys, places, *rest, dropping=transformer.dropping: (
            dropping(keys, range(len(places)), *rest))),
    "operations miscounted": ("dropout", transformer, "dropping", next_operation),
    "rotary is not turned back": (
        "llama", transformer, "turned", lambda x, heads, *, back=False, turned=transformer.turned: turned(x, heads)),
    "no epsilon": (
        "gpt2", transformer, "scale", lambda x, _: 1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True))),
    "keys shared by others": ("three heads to a key", transformer, "by_heads", by_heads_of_neighbours_mixed),
    "gelu is silu": ("gpt2", independent, "gelu", transformer.silu),
    "a product under autocast has 32 bits": ("autocast", tape.Tape, "linear", lambda t, x, w: t.pointwise(
        transformer.project, transformer.project_backward, x, w)),
    "a norm under autocast has 16 bits": ("autocast", tape, "F32", np.dtype(np.float16)),
    "experts of the least chance": ("mixture", np, "argsort", lambda p, **named: ARGSORT(-p, **named)),
    "a shared head has the gradient of one": (
        "latent, one great step", transformer, "first_to_last", lambda a: a[:, :1].copy()),
    "twice as many judged": (
        "gpt2", independent, "cross_entropy", lambda o, labels, samples, cross_entropy=independent.cross_entropy: (
            cross_entropy(o, labels, 2 * samples))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_makes_the_two_differ(fault, monkeypatch, opinion):
    name, module, attribute, wrong = FAULTS[fault]
    ours = outcome_of_case(name)  # before the fault: NumPy is everybody's
    monkeypatch.setattr(module, attribute, wrong)
    assert differences(*ours, opinion(KEYS[name], "ddp")) != []
