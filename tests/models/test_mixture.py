"""The mixture of experts: its routing by plain loops, its bits over expert ranks, and wrong splits that are named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.split import MIXTURE, PIECES, read
from zerosim.autograd.operation import Operation
from zerosim.autograd.operations.routing import queue_slots_forward
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.tape import Tape
from zerosim.autograd.tape_collectives import copy_to
from zerosim.models import mixture
from zerosim.models.transformer import TransformerShape, transformer
from zerosim.models.units import Layer, grouped
from zerosim.plan.planned_row import parameters_met
from zerosim.scenario.data import load_dataset
from zerosim.training.experiment import prepare
from zerosim.training.one_function import differences

SHARED = ["model.shared_inner=6", "model.dense_layers=1", "model.dense_inner=10"]


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_each_sequence_has_queues_of_its_own(seed, sequences, queues, capacity, length):
    choices = np.random.default_rng(seed).integers(queues, size=(sequences * length, 2))
    together = queue_slots_forward(choices, empty=np.empty, queues=queues, capacity=capacity, sequences=sequences)
    for run in range(sequences):
        mine = slice(run * length, (run + 1) * length)
        alone = queue_slots_forward(choices[mine], empty=np.empty, queues=queues, capacity=capacity)
        queue, place = np.divmod(alone, capacity)
        due = (queue * sequences + run) * capacity + place
        assert np.array_equal(together[mine], np.where(alone < 0, -1, due))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_token_meets_the_shared_perceptron_and_the_dense_blocks(family):
    shape = TransformerShape(family, 3, 8, 2, 2, 6, 9, 16, tied_embeddings=False)
    m = mixture.MixtureShape(shape, 16, 1.0, 2, shared_inner=5, dense_layers=2, dense_inner=7)
    model, plain, matrices = mixture.mixture(m), transformer(shape), 2 if family == "gpt2" else 3
    router, of_experts, dense = 16 * 8, 6 * 8 * matrices, sum(
        width * 8 * matrices + (width + 8) * (family == "gpt2") for width in (5, 7, 7))
    beside = plain.count - 3 * (of_experts + (6 + 8) * (family == "gpt2")) + router + dense
    assert model.count == beside + 16 * of_experts
    assert parameters_met(model, 4, 2) == beside + 2 * of_experts


def by_loops(x, router, *experts, capacity, count):
    y, (*first, outer) = np.zeros_like(x), experts
    for sequence, rows in enumerate(x):
        taken, chances = [0] * len(router), np.exp(rows @ router.T)
        for choice in range(count):
            for token, row in enumerate(rows):
                e = chances[token].argsort()[-1 - choice]
                taken[e] += 1
                if taken[e] <= capacity:
                    h = activated(*(row @ each[e] for each in first))
                    y[sequence, token] += chances[token, e] / chances[token].sum() * (h @ outer[e])
    return y


def activated(h, up=None):
    if up is not None:
        return h / (1.0 + np.exp(-h)) * up
    return 0.5 * h * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (h + 0.044715 * h**3)))


@pytest.mark.parametrize(("family", "count", "weights"), [("gpt2", 1, 3), ("gpt2", 2, 3), ("llama", 2, 4)])
def test_a_token_is_served_by_its_experts_while_these_have_room(family, count, weights):
    shape = TransformerShape(family, 1, 6, 1, 1, 5, 9, 7, tied_embeddings=False)
    m = mixture.MixtureShape(shape, 3, 1.0 / count, count)
    own = mixture.layers_of(m)[1].parameters[-weights:]
    (unit,) = grouped([Layer("a", "", own, lambda w, x: mixture.routed(w, x, m))], None, ())
    random = np.random.default_rng(0)
    flat, x = random.standard_normal(unit.count), random.standard_normal((2, 7, 6))
    (y,) = Tape().forward(unit, flat, [x])
    due = by_loops(x, *unit.views(flat).values(), capacity=3, count=count)
    np.testing.assert_allclose(y, due, rtol=1e-12, atol=1e-14)
    assert (due == 0).all(axis=2).any()


doubled = Operation(
    lambda x, *, empty: x, lambda upstream, into, *, empty: np.multiply(upstream, 2.0, out=into["x"]), {"x": ()})


def twice(w, m, used_on_pieces=mixture.used_on_pieces):
    faulty = () if m.over.alone else mixture.EXPERTS
    return {name: doubled(each) if name in faulty else each for name, each in used_on_pieces(w, m).items()}


def experts_as_if_alike(w, m):
    return {name: copy_to(each, group=m.over) for name, each in w.items()}


def untransposed(queues, m):
    mine = m.over.of(m.experts)
    arrived = mixture.all_to_all(queues, group=m.over)
    return reshape(arrived, shape=(mine, queues.shape[0] // mine, queues.shape[1]))


def perceptron_as_if_whole(w, m, used_on_pieces=mixture.used_on_pieces):
    return used_on_pieces(w, m) | {name: each for name, each in w.items() if name.startswith("mlp.")}


def of_all_that_a_rank_has(chosen, *, sequences, queue_slots=mixture.queue_slots, **more):
    """One queue of each expert for all 16 tokens of a rank; the model in one piece has 64."""
    return queue_slots(chosen, sequences=sequences if chosen.shape[0] > 16 else 1, **more)


@pytest.mark.parametrize(("name", "wrong", "said"), [
    ("used_on_pieces", twice, "h.1.outer: 2 times the gradient of the model in one piece"),
    ("used_on_pieces", experts_as_if_alike, "h.1.outer: "),
    ("used_on_pieces", lambda w, m: w, "h.1.router.weight: place 2, 3 and place 0 have different gradients"),
    ("used_on_pieces", perceptron_as_if_whole, "h.1.mlp.c_proj.bias: place 2, 3 and place 0 have different gradients"),
    ("of_pieces", lambda weight, _: weight, "h.1.router.weight: place 1, 3 and place 0 have different gradients"),
    ("to_experts", untransposed, "loss: "),
    ("queue_slots", of_all_that_a_rank_has, "loss: "),
])
def test_a_wrong_split_is_named(name, wrong, said, tmp_path, monkeypatch):
    scenario = read(MIXTURE, tmp_path, *PIECES, *SHARED, "model.experts=8")

    def found():
        return [str(each) for each in differences(prepare(scenario, load_dataset(scenario)).rows[0])]

    assert found() == []
    monkeypatch.setattr(mixture, name, wrong)
    assert found()[0].startswith(said)
