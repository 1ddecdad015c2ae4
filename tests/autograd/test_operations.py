"""Operations against their formulas and finite differences, the laws they declare, and what is known of each.

Every checker is shown operations with planted faults, which it must not let pass.
"""

import re
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from unittest import mock

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.autograd.formulas import KITS, OPERATIONS, computed, gradients, seeds
from zerosim.autograd.differences import operation_fault
from zerosim.autograd.operations import attention, dropout, normalization
from zerosim.core.errors import ZerosimError

every_operation = pytest.mark.parametrize("name", KITS)
dtypes = st.sampled_from(["f4", "f8"])


def test_every_operation_has_a_kit_and_an_example():
    assert sorted(OPERATIONS) == sorted(KITS)
    assert [name for name, each in OPERATIONS.items() if ">>>" not in each.forward.__doc__] == []


def result_shape(operation, case):
    return operation.on_shapes([*case.shapes.values()], plain_settings(case))[0].shape


def plain_settings(case):
    """Those that stand in a model's text."""
    return {name: value for name, value in case.settings.items() if name != "draws"}


# What an operation declares.


def check_forward(operation, plain, case, dtype):
    """Forward is the formula."""
    arrays = case.arrays(dtype)
    exact = {name: array if array.dtype.kind == "i" else array.astype("f8") for name, array in arrays.items()}
    near = 1e-12 if dtype == "f8" else 2e-5
    np.testing.assert_allclose(
        computed(operation, arrays.values(), **case.settings)[0], plain(*exact.values(), **case.settings), rtol=near,
        atol=near)


def backward(operation, case, dtype, wanted):
    """The gradients that `wanted` names."""
    upstream = case.like(result_shape(operation, case), dtype)
    return gradients(operation, case.arrays(dtype), upstream, wanted, **case.settings)


def differentiable(operation, case):
    return [name for name in operation.needs if name in case.shapes]


def check_backward(operation, _, case, dtype):
    """Each gradient is whole, and has the same bits whichever others are wanted."""
    names = differentiable(operation, case)
    alone = {name: backward(operation, case, dtype, [name])[name].tobytes() for name in names}
    for wanted in chain.from_iterable(combinations(names, count) for count in range(1, len(names) + 1)):
        found = backward(operation, case, dtype, wanted)
        assert all(np.isfinite(array).all() and array.dtype == dtype for array in found.values())
        assert {name: array.tobytes() for name, array in found.items()} == {name: alone[name] for name in wanted}


def check_products(operation, _, case, dtype):
    """The multiplications of all matrix products that forward makes, and backward for all gradients, are declared."""
    made = []

    def counted(left, right, out=None, matmul=np.matmul):
        product = matmul(left, right, out=out)
        made.append(product.size * left.shape[-1])
        return product

    declared, y = 0, result_shape(operation, case)
    if operation.multiplications is not None:
        declared = operation.multiplications(y, *case.shapes.values(), **plain_settings(case))
    with mock.patch.object(np, "matmul", counted):
        computed(operation, case.arrays().values(), **case.settings)
        assert sum(made) == declared
        wanted = differentiable(operation, case)
        if wanted:
            made.clear()
            gradients(operation, case.arrays(), case.like(y), wanted, **case.settings)
            forward, products = declared, sum(operation.backward_products.get(name, 0.0) for name in wanted)
            assert sum(made) == forward + forward * products


def check_gradients(operation, _, case, dtype):
    """Backward agrees with differences of forward, which `check_forward` compares with the formula, for all inputs."""
    assert not operation.needs or case.shapes.keys() - case.integers.keys() <= operation.needs.keys()
    arrays = case.arrays()
    inputs = [arrays[name] if name in case.integers else shape for name, shape in case.shapes.items()]
    assert operation_fault(operation, inputs, plain_settings(case)) is None


LAWS = {"forward": (check_forward, 25), "bits of gradients": (check_backward, 25), "products": (check_products, 10),
        "gradients": (check_gradients, 25)}


@every_operation
@pytest.mark.parametrize("law", LAWS)
def test_an_operation_keeps_a_law(name, law):
    check, examples = LAWS[law]
    given(KITS[name].cases, dtypes)(settings(max_examples=examples)(
        lambda case, dtype: check(OPERATIONS[name], KITS[name].plain, case, dtype)))()


# What is known of single operations.

def evaluate(name, *arrays, **given_settings):
    """The output of an operation."""
    return computed(OPERATIONS[name], arrays, **given_settings)[0]


@given(seeds, st.sampled_from([1, 2, 3, 6]), st.integers(0, 3), st.integers(0, 3))
def test_random_numbers_of_a_sample_are_the_same_in_any_split(seed, size, layer, operation):
    def drawn(size, step=3, layer=layer, operation=operation):
        found = np.empty((12 // size, size, 7), np.float32)
        for number, micro_batch in enumerate(found):
            dropout.uniform(seed, step, micro_batch, number, layer, operation)
        return found.reshape(12, 7)

    whole = drawn(12)
    assert drawn(size).tobytes() == whole.tobytes()
    assert ((whole >= 0) & (whole < 1)).all()
    assert len(np.unique(whole)) > 80
    for other in (drawn(12, step=4), drawn(12, layer=layer + 1), drawn(12, operation=operation + 1)):
        assert not (other == whole).all(axis=1).any()


@pytest.mark.parametrize("dtype", ["f4", "f8", "e"])
def test_the_first_of_equal_numbers_is_the_largest(dtype):
    x = np.array([[0.0, -0.0, 1.0, np.nan, 1.0, -np.inf, np.inf]], dtype)
    assert evaluate("routing.top_indices", x, count=7).tolist() == [[6, 2, 4, 0, 1, 5, 3]]


@pytest.mark.parametrize("none", ["queues", "capacity"])
def test_queues_without_a_place_are_refused(none):
    with pytest.raises(ZerosimError, match="queues and capacity of at least 1"):
        OPERATIONS["routing.queue_slots"].on_shapes([(2, 1)], {"queues": 2, "capacity": 2, none: 0})


# Shapes that do not go together.


@st.composite
def edited(draw, kit):
    """A case in which one shape or one number of the settings is another, and each index 0."""
    case = draw(kit.cases)
    changed, given_settings = dict(case.shapes), dict(case.settings)
    numbers = [key for key, value in given_settings.items() if isinstance(value, int)]
    if "probability" in case.settings:
        given_settings["probability"] = draw(st.sampled_from([-0.5, 1.0]))
    elif numbers and draw(st.booleans()):
        key = draw(st.sampled_from(numbers))
        given_settings[key] = draw(st.integers(int(key == "count" and len(case.integers) > 0), 6))
    else:
        name = draw(st.sampled_from(sorted(changed)))
        axis = draw(st.integers(0, len(changed[name])))
        before, after = changed[name][:axis], changed[name][axis + 1:]
        more = (*before, 1, *changed[name][axis:])
        changed[name] = draw(st.sampled_from([(*before, *after), (*before, 5, *after), more]))
    integers = dict.fromkeys(case.integers, (0, 1))
    return replace(case, shapes=changed, settings=given_settings, integers=integers)


@every_operation
def test_shapes_are_refused_in_one_line_or_computed_with_their_gradients(name):
    def check(case):
        shape, words = None, ""
        try:
            shape = result_shape(OPERATIONS[name], case)
        except ZerosimError as refusal:
            words = str(refusal)
        if shape is None:
            assert re.fullmatch(r".*( needs |cannot be computed of ).*", words)
            return
        y, _ = computed(OPERATIONS[name], case.arrays().values(), **case.settings)
        assert y.shape == shape
        assert np.isfinite(y).all()
        wanted = differentiable(OPERATIONS[name], case)
        for key, gradient in (backward(OPERATIONS[name], case, "f8", wanted) if wanted else {}).items():
            assert gradient.shape == case.shapes[key]
            assert np.isfinite(gradient).all()

    given(edited(KITS[name]))(settings(max_examples=60)(check))()


# Planted faults.


def check_everything(name, operation, examples=20):
    kit = KITS[name]

    @settings(max_examples=examples, database=None, phases=[Phase.generate])
    @given(kit.cases, dtypes)
    def check(case, dtype):
        for law, _ in LAWS.values():
            law(operation, kit.plain, case, dtype)

    check()


def only_one(upstream, into, *, empty, x=None, other=None):
    for name in into:
        np.multiply(upstream, 1.0 if other is None else other, out=into[name])


def last_row_of_bias(upstream, into, **named):
    OPERATIONS["linear.linear"].backward(upstream, into, **named)
    if "bias" in into:
        into["bias"][...] = upstream.reshape(-1, upstream.shape[-1])[-1]


def leaves_the_rest(upstream, into, *, empty):
    np.sum(upstream, axis=0, out=into["weight"][: upstream.shape[1]])


def twice(y, *of_inputs, **named):
    return 2 * OPERATIONS["linear.linear"].multiplications(y, *of_inputs, **named)


FAULTS = [
    ("elementwise.tanh", {"needs": {"x": ("x",)}}), ("elementwise.multiply", {"backward": only_one}),
    ("linear.linear", {"backward": last_row_of_bias}), ("linear.linear", {"multiplications": twice}),
    ("linear.linear", {"backward_products": {"x": 1.0, "weight": 2.0}}),
    ("embedding.positions", {"backward": leaves_the_rest}),
]


@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=lambda each: each if isinstance(each, str) else next(iter(each))
)
def test_a_planted_fault_is_caught(name, fault):
    caught = (AssertionError, TypeError, KeyError, ValueError, ExceptionGroup)
    with pytest.raises(caught):
        check_everything(name, replace(OPERATIONS[name], **fault))


@pytest.mark.parametrize(("name", "module", "attribute", "value"), [
    ("attention.causal_attention", attention, "hidden", lambda t, dtype: np.triu(np.full((t, t), -np.inf, dtype), 2)),
    ("normalization.layer_norm", normalization, "scaled", partial(
        lambda scaled, x, out, work, _: scaled(x, out, work, 1e-4), normalization.scaled)),
])
def test_a_planted_wrong_constant_is_caught(monkeypatch, name, module, attribute, value):
    check_everything(name, OPERATIONS[name], examples=5)
    monkeypatch.setattr(module, attribute, value)
    with pytest.raises((AssertionError, ExceptionGroup)):
        check_everything(name, OPERATIONS[name])
