"""Arrays that carry bounds of their rounding errors: every rule against extended precision, and whole models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_mixture import MIXTURE
from tests.test_split_models import GPT, LLAMA, MLP, read
from zerosim.allocation import allocate
from zerosim.autograd.tape import Tape
from zerosim.data import load_dataset
from zerosim.payloads import bounded as module
from zerosim.payloads.bounded import NotBounded, allocate_bounded, bound, bounded, values_of
from zerosim.reference import backpropagate
from zerosim.training import one_function
from zerosim.training.experiment import prepare
from zerosim.training.one_function import differences, some_batch, some_weights

RANDOM = np.random.default_rng(3)
A, B = RANDOM.normal(size=(2, 4, 4)) + 0.1
POSITIVE = np.abs(A) + 0.5
TWO, ONE = (A, B), (A,)
CASES = {
    "add": (np.add, TWO), "subtract": (np.subtract, TWO), "multiply": (np.multiply, TWO),
    "divide": (np.divide, (A, POSITIVE)), "matmul": (np.matmul, TWO), "add.reduce": (lambda a: a.sum(axis=0), ONE),
    "maximum": (np.maximum, TWO), "minimum": (np.minimum, TWO),
    "maximum.reduce": (lambda a: a.max(axis=-1, keepdims=True), ONE),
    "negative": (np.negative, ONE), "absolute": (np.abs, ONE), "square": (np.square, ONE),
    "sqrt": (np.sqrt, (POSITIVE,)), "exp": (np.exp, ONE), "log": (np.log, (POSITIVE,)), "tanh": (np.tanh, ONE),
    "sin": (np.sin, ONE), "cos": (np.cos, ONE),
}


def holds(name, size):
    """Whether the bound covers all corners of the inputs' bounds, of this relative size, in extended precision."""
    function, inputs = CASES[name]
    deltas = [np.abs(each) * size for each in inputs]
    found = function(*map(bounded, inputs, deltas))
    for _ in range(200):
        moved = [each.astype(np.longdouble) + delta * RANDOM.choice([-1, 1], each.shape)
                 for each, delta in zip(inputs, deltas, strict=True)]
        if not (np.abs(function(*moved) - values_of(found)) <= bound(found)).all():
            return False
    return True


@pytest.mark.parametrize("name", module.RULES)
def test_a_rule_covers_what_inputs_may_be_and_its_own_rounding(name, monkeypatch):
    assert all(holds(name, size) for size in (0.0, 1e-9, 1e-2))
    rule = module.RULES[name]
    monkeypatch.setitem(module.RULES, name, lambda *given, **named: 0.4 * rule(*given, **named))
    assert name in ("sin", "cos") or not holds(name, 1e-2)


def test_sums_at_an_index_copies_and_pieces_carry_their_bounds():
    x, into = bounded(A, 1e-3), bounded(np.zeros((2, 4)))
    np.add.at(into, np.array([0, 1, 0, 0]), x)
    assert bound(into)[:, 0] == pytest.approx([3e-3, 1e-3], rel=1e-4)
    np.copyto(into, 0.0, where=np.array([[True], [False]]))
    assert bound(into)[:, 0] == pytest.approx([0, 1e-3], rel=1e-4)
    for each in (x.T[1:].copy(), x[[0, 2]], x.T.reshape(-1), x.take([1, 0], axis=1), x[1:, ::-2] + 0.0):
        assert bound(each).ravel() == pytest.approx(np.full(each.size, 1e-3), rel=1e-4)


@pytest.mark.parametrize("function", [np.arctan, np.cumsum, np.linalg.norm, lambda x: np.concatenate([x, x])])
def test_what_has_no_rule_says_so(function):
    with pytest.raises(NotBounded, match="no bound is known of the rounding of numpy"):
        function(bounded(A))


def passes(config):
    """The loss and gradients of the model in one piece, with bounds and in extended precision."""
    model = config.in_one_piece
    x, y = some_batch(model, 4)
    for make, inputs, memory in ((bounded, x, allocate_bounded), (wide, wide(x), allocate)):
        tape = Tape(memory, loss_over=model.loss_over)
        weights = {unit: make(flat) for unit, flat in some_weights(model).items()}
        loss, gradients = backpropagate(model, tape, weights, inputs, y, 4)
        found = [loss, *gradients.values()]
        yield np.concatenate([*map(values_of, found)]) if make is wide else found


def wide(array):
    return array.astype(np.longdouble) if array.dtype.kind == "f" else array


@pytest.mark.parametrize(("text", "changes"), [
    (MLP, ['model.activation="tanh"']), (MLP, ['model.activation="gelu"']), (GPT, []), (GPT, LLAMA),
    (GPT, ["model.tied_embeddings=true"]), (MIXTURE, []),
])
def test_a_models_errors_are_within_its_bounds_which_are_small(text, changes, tmp_path):
    scenario = read(text, tmp_path, *changes)
    found, exact = passes(prepare(scenario, load_dataset(scenario)).rows[0])
    errors = np.abs(np.concatenate([values_of(each) for each in found]) - exact)
    allowed = np.concatenate([bound(each) for each in found])
    assert (errors <= allowed).all()
    assert errors.max() > 0
    assert allowed.max() < 1e-10 * np.abs(exact).max()


SPLITS = [
    (MLP, ["parallel.tensor_ranks=2"]), (MLP, ["parallel.tensor_ranks=4", "world.ranks=4", "model.hidden=[8, 8]"]),
    *((GPT, ["model.heads=8", "model.vocabulary=68", f"parallel.tensor_ranks={tensor}",
             f"world.ranks={tensor * context}", f"parallel.context_ranks={context}", *(each for each in more if each)])
      for tensor, context in ((1, 2), (2, 1), (2, 2), (1, 4))
      for more in ([], LLAMA if context < 4 else [], ["parallel.context_by=all_to_all" if context > 1 else ""],
                   ["parallel.vocabulary_parallel=true" if tensor > 1 else ""],
                   ["parallel.sequence_parallel=true", "parallel.vocabulary_parallel=true"] if tensor > 1 else [])),
    *((MIXTURE, [f"parallel.expert_ranks={ranks}", "model.layers=1"]) for ranks in (2, 4)),
]


@settings(max_examples=4)
@given(st.sampled_from(SPLITS), st.integers(0, 2**32))
def test_random_splits_are_the_model_in_one_piece_within_the_proved_bound_alone(tmp_path_factory, split, seed):
    text, changes = split
    scenario = read(text, tmp_path_factory.mktemp("split"), *changes)
    config = prepare(scenario, load_dataset(scenario)).rows[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_function, "TOLERANCE", 1e300)
        patch.setattr(one_function, "some_batch", lambda model, count: some_batch(model, count, seed))
        assert differences(config) == []
