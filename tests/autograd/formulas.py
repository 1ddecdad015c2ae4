"""Every operation's formula written out, inputs for it, and what it must not be given: `KITS`, by module and name.

Formulas are of float64 arrays and share no code with the package. Numbers stand apart from each other and from 0, so
that finite differences meet no kink and no row of equal numbers.
"""

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import zerosim.autograd.operations as package
from tests.independent import mlp as independent
from tests.independent import transformer as by_docs
from zerosim.autograd.operation import Into, Operation


@dataclass(frozen=True)
class Case:
    """Shapes of the inputs, and settings; the numbers come of `seed`. `integers` bounds those that are integers."""

    shapes: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seed: int = 0

    def arrays(self, dtype="f8"):
        """The inputs by name."""
        rng = np.random.default_rng(self.seed)
        return {
            name: rng.integers(*self.integers[name], size=shape) if name in self.integers else spaced(rng, shape, dtype)
            for name, shape in self.shapes.items()
        }

    def like(self, shape, dtype="f8"):
        """Other numbers of the case: an upstream."""
        return spaced(np.random.default_rng([self.seed, 1]), shape, dtype)


def spaced(rng, shape, dtype="f8"):
    """Numbers from 0.2 to 2 with either sign, no two alike."""
    count = math.prod(shape)
    values = rng.permutation(np.linspace(0.2, 2.0, count)) * rng.choice([-1.0, 1.0], count)
    return values.reshape(shape).astype(dtype)


def normals(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def uniform_draws(array):
    """The random numbers of all dropout here."""
    array[...] = np.random.default_rng(7).random(array.shape, np.float32)


def nan(shape, dtype):
    return np.full(shape, -7 if np.dtype(dtype).kind == "i" else np.nan, dtype)


def computed(operation, arrays, **settings):
    """y, and what forward saves or None."""
    found = operation.forward(*arrays, empty=nan, **settings)
    return found if operation.saves else (found, None)


def gradients(operation, inputs, upstream, wanted, made=None, **settings):
    """The gradients that `wanted` names, of a backward that is given copies of what its operation needs, and no more;
    `made` is what its forward computed."""
    y, saved = made or computed(operation, inputs.values(), **settings)
    needed = {name for each in wanted for name in operation.needs[each]}
    read = {name: array.copy(order="K") for name, array in {**inputs, "y": y}.items() if name in needed}
    if operation.saves:
        read["saved"] = saved
    into = Into({name: inputs[name].shape for name in wanted}, lambda name: nan(inputs[name].shape, upstream.dtype))
    operation.backward(upstream, into, empty=nan, **read, **settings)
    return {name: into[name] for name in wanted}


@dataclass(frozen=True)
class Kit:
    """`plain` is the formula."""

    cases: st.SearchStrategy[Case]
    plain: Callable[..., np.ndarray]


few = st.integers(1, 4)
seeds = st.integers(0, 2**32 - 1)


def cases(build, *strategies):
    """Of what `build` makes of drawn sizes: shapes, or shapes, settings and the bounds of integers."""
    def made(seed, *drawn):
        found = build(*drawn)
        return Case(*found, seed=seed) if isinstance(found, tuple) else Case(found, seed=seed)

    return st.builds(made, seeds, *strategies)


def number_by_number(formula):
    return Kit(cases(lambda *shape: {"x": shape}, few, few, few), formula)


def join_heads(x, other, heads, other_heads):
    parts = np.split(x, heads, axis=-1), np.repeat(np.split(other, other_heads, axis=-1), heads // other_heads, axis=0)
    return np.concatenate([each for pair in zip(*parts, strict=True) for each in pair], axis=-1)


def each_product(x, weight):
    stacks = (each.reshape(-1, *each.shape[-2:]) for each in (x, weight))
    return np.stack([a @ b for a, b in zip(*stacks, strict=True)]).reshape(*x.shape[:-1], weight.shape[-1])


def masked(x, probability, draws):
    if draws is None:
        return x
    drawn = np.empty(x.shape, np.float32)
    draws(drawn)
    return np.where(drawn >= probability, x / (1 - probability), 0.0)


def largest_first(x, count):
    """By sorting pairs of a number and its place."""
    found = np.empty((*x.shape[:-1], count))
    for row in np.ndindex(x.shape[:-1]):
        found[row] = [place for _, place in sorted((-number, place) for place, number in enumerate(x[row]))][:count]
    return found


def chosen(x, indices):
    found = np.empty(indices.shape, x.dtype)
    for at in np.ndindex(indices.shape):
        found[at] = x[(*at[:-1], indices[at])]
    return found


def rows_of(x, indices):
    return np.vstack([x, np.zeros_like(x[:1])])[indices]


def rows_to(x, indices, count):
    found = np.zeros((count, x.shape[1]), x.dtype)
    for row, places in zip(x, indices, strict=True):
        for place in places:
            if place >= 0:
                found[place] = found[place] + row
    return found


def served(choices, queues, capacity):
    """Who comes takes the next place: all first choices, then all second ones, …"""
    lengths, found = [0] * queues, np.full(choices.shape, -1)
    for choice in range(choices.shape[1]):
        for row in range(len(choices)):
            queue = choices[row, choice]
            if lengths[queue] < capacity:
                found[row, choice] = queue * capacity + lengths[queue]
            lengths[queue] += 1
    return found


KITS = {
    "elementwise.add": Kit(
        cases(lambda *shape: {"x": shape, "other": shape}, few, few), lambda x, other: x + other,
    ),
    "elementwise.multiply": Kit(
        cases(lambda *shape: {"x": shape, "other": shape}, few, few), lambda x, other: x * other,
    ),
    "elementwise.scale": Kit(
        cases(lambda a, b, factor: ({"x": (a, b)}, {"factor": factor}), few, few, st.sampled_from([-1.0, 0.3, 2.0])),
        lambda x, factor: factor * x,
    ),
    "elementwise.sigmoid": number_by_number(by_docs.sigmoid),
    "elementwise.relu": number_by_number(independent.FORWARD["relu"]),
    "elementwise.tanh": number_by_number(np.tanh),
    "elementwise.gelu": number_by_number(independent.gelu),
    "elementwise.gelu_exact": number_by_number(independent.gelu_exact),
    "elementwise.silu": number_by_number(by_docs.silu),
    "attention.softmax": Kit(
        cases(lambda *shape: {"x": shape}, few, few, few), lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
    ),
    "attention.causal_attention": Kit(
        cases(
            lambda b, t, k, group, size, of_value: (
                {"q": (b, t, k * group * size), "k": (b, t, k * size), "v": (b, t, k * of_value)},
                {"heads": k * group, "key_value_heads": k},
            ), few, few, st.integers(1, 3), st.integers(1, 3), few, few,
        ), lambda q, k, v, heads, key_value_heads: by_docs.attention(q, k, v, heads, key_value_heads)[0],
    ),
    "attention.causal_self_attention": Kit(
        cases(
            lambda b, t, heads, size: ({"qkv": (b, t, 3 * heads * size)}, {"heads": heads}), few, few, few, few
        ), lambda qkv, heads: by_docs.self_attention(qkv, heads)[0],
    ),
    "attention.join_heads": Kit(
        cases(
            lambda b, t, k, group, size, other: (
                {"x": (b, t, k * group * size), "other": (b, t, k * other)}, {"heads": k * group, "other_heads": k},
            ), few, few, st.integers(1, 3), st.integers(1, 3), few, few,
        ), join_heads,
    ),
    "attention.rotary": Kit(
        cases(
            lambda b, t, heads, half: ({"x": (b, t, heads * 2 * half)}, {"size": 2 * half, "base": 100.0}),
            few, few, few, few,
        ), lambda x, size, base: by_docs.turned(x, x.shape[-1] // size, base=base),
    ),
    "embedding.embedding": Kit(
        cases(
            lambda b, t, v, n: ({"tokens": (b, t), "weight": (v, n)}, {}, {"tokens": (0, v)}), few, few, few, few),
        lambda tokens, weight: weight[tokens],
    ),
    "embedding.positions": Kit(
        cases(lambda b, t, more, n: {"x": (b, t, n), "weight": (t + more, n)}, few, few, st.integers(0, 2), few),
        lambda x, weight: x + weight[: x.shape[1]],
    ),
    "dropout.dropout": Kit(
        cases(
            lambda b, n, probability, draws: ({"x": (b, n)}, {"probability": probability, "draws": draws}),
            few, few, st.sampled_from([0.0, 0.25, 0.9]), st.sampled_from([uniform_draws, None]),
        ), masked,
    ),
    "linear.linear": Kit(
        cases(
            lambda before, i, o, bias: {"x": (*before, i), "weight": (o, i)} | ({"bias": (o,)} if bias else {}),
            st.lists(few, min_size=1, max_size=2), few, few, st.booleans(),
        ), lambda x, weight, bias=None: by_docs.project(x, weight) + (0.0 if bias is None else bias),
    ),
    "linear.affine": Kit(
        cases(
            lambda before, i, o, bias: {"x": (*before, i), "weight": (i, o)} | ({"bias": (o,)} if bias else {}),
            st.lists(few, min_size=1, max_size=2), few, few, st.booleans(),
        ), lambda x, weight, bias=None: by_docs.project(x, weight.T) + (0.0 if bias is None else bias),
    ),
    "linear.add_bias": Kit(
        cases(lambda before, n: {"x": (*before, n), "bias": (n,)}, st.lists(few, min_size=1, max_size=2), few),
        lambda x, bias: x + bias,
    ),
    "linear.matmul": Kit(
        cases(
            lambda before, m, n, o: {"x": (*before, m, n), "weight": (*before, n, o)},
            st.lists(few, max_size=2), few, few, few,
        ), each_product,
    ),
    "routing.top_indices": Kit(
        cases(lambda b, n, more: ({"x": (b, n + more)}, {"count": n}), few, few, st.integers(0, 3)), largest_first,
    ),
    "routing.take_along": Kit(
        cases(
            lambda before, n, k: ({"x": (*before, n), "indices": (*before, k)}, {}, {"indices": (0, n)}),
            st.lists(few, max_size=2), few, few,
        ), chosen,
    ),
    "routing.one_hot": Kit(
        cases(lambda b, k, n: ({"indices": (b, k)}, {"count": n}, {"indices": (-1, n)}), few, few, few),
        lambda indices, count: np.vstack([np.eye(count), np.zeros((1, count))])[indices],
    ),
    "routing.gather_rows": Kit(
        cases(
            lambda n, d, b, k: ({"x": (n, d), "indices": (b, k)}, {}, {"indices": (-1, n)}), few, few, few, few
        ), rows_of,
    ),
    "routing.scatter_rows": Kit(
        cases(
            lambda n, d, k, c: ({"x": (n, d), "indices": (n, k)}, {"count": c}, {"indices": (-1, c)}),
            few, few, few, few,
        ), rows_to,
    ),
    "routing.queue_slots": Kit(
        cases(
            lambda n, k, q, c: ({"choices": (n, k)}, {"queues": q, "capacity": c}, {"choices": (0, q)}),
            few, few, few, few,
        ), served,
    ),
    "normalization.layer_norm": Kit(
        cases(lambda b, t, n: {"x": (b, t, n), "weight": (n,), "bias": (n,)}, few, few, few), by_docs.ln,
    ),
    "normalization.rms_norm": Kit(
        cases(lambda b, t, n: {"x": (b, t, n), "weight": (n,)}, few, few, few),
        by_docs.rms,
    ),
    "shapes.reshape": Kit(
        cases(lambda a, b, c: ({"x": (a, b, c)}, {"shape": (a * b, c)}), few, few, few),
        lambda x, shape: x.reshape(shape),
    ),
    "shapes.transpose": Kit(
        cases(
            lambda a, b, c, axes: ({"x": (a, b, c)}, {"axes": tuple(axes)}), few, few, few, st.permutations(range(3))
        ), lambda x, axes: x.transpose(axes),
    ),
}


def in_the_package():
    """Every operation of one rank that a module of the package defines, by module and name."""
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        found |= {
            f"{info.name}.{name}": value for name, value in vars(module).items()
            if isinstance(value, Operation) and not value.sends and value.forward.__module__ == module.__name__
        }
    return found


OPERATIONS = in_the_package()
