import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.core.errors import ScenarioError
from zerosim.scenario import Data, Scenario, load
from zerosim.scenario.data import load_dataset, sample_order

X = np.arange(12.0).reshape(4, 3)
Y = np.array([0, 2, 1, 0])


@pytest.fixture
def of_arrays(tmp_path):
    """The dataset of an .npz with these arrays, named by a scenario file beside it."""

    def of_arrays(**arrays):
        np.savez(tmp_path / "toy.npz", **arrays)
        scenario = tmp_path / "a.toml"
        scenario.write_text('[data]\nsource = "toy.npz"')
        return load_dataset(load(scenario))

    return of_arrays


def complaint(call, *args, **kwargs):
    with pytest.raises(ScenarioError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_digits():
    digits = load_dataset(Scenario())
    assert digits.x.shape == (1438, 64)
    assert digits.x_test.shape == (359, 64)
    assert (digits.inputs, digits.outputs, digits.classes) == (64, 10, 10)
    assert digits.loss == "cross_entropy"
    for x, y in ((digits.x, digits.y), (digits.x_test, digits.y_test)):
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert (x.min(), x.max(), len(x)) == (0, 1, len(y))
        assert set(y) == set(range(10))
        assert np.array_equal(x * 16, np.round(x * 16))


@pytest.mark.parametrize("dtype", ["?", "u8", ">f8", "f4"])
def test_samples_of_any_real_dtype_shape_and_layout_become_rows_of_float32(of_arrays, dtype):
    x = np.asfortranarray(np.arange(24).reshape(4, 2, 3).astype(dtype))
    dataset = of_arrays(x=x, y=Y)
    assert dataset.x.dtype == np.float32
    assert dataset.x.flags.c_contiguous
    assert np.array_equal(dataset.x, x.reshape(4, 6).astype(np.float32))
    assert (dataset.inputs, dataset.x_test, dataset.y_test) == (6, None, None)
    assert of_arrays(x=x[:, 0, 0], y=Y).inputs == 1
    assert of_arrays(x=np.asfortranarray(x[:, 0]), y=Y).x.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["u8", ">i2"])
def test_integers_are_labels(of_arrays, dtype):
    dataset = of_arrays(x=X, y=Y.astype(dtype), x_test=X[:1], y_test=np.array([1], "u1"))
    assert (dataset.classes, dataset.outputs, dataset.loss) == (3, 3, "cross_entropy")
    assert dataset.y.dtype == dataset.y_test.dtype == np.int64
    assert dataset.y.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize(("shape", "outputs"), [((4,), 1), ((4, 1), 1), ((4, 2), 2)])
def test_floats_are_for_regression(of_arrays, shape, outputs):
    y = np.linspace(-1, 1, np.prod(shape)).reshape(shape)
    dataset = of_arrays(x=X, y=y, x_test=X, y_test=y.astype("f2"))
    assert (dataset.classes, dataset.outputs) == (None, outputs)
    assert dataset.loss == "mean_squared_error"
    assert dataset.y.dtype == dataset.y_test.dtype == np.float32
    assert np.array_equal(dataset.y, y.reshape(4, outputs).astype(np.float32))
    assert dataset.y_test.shape == (4, outputs)


def put(array, index, value):
    array = array.astype(np.result_type(array, type(value)))
    array[index] = value
    return array


TEST = {"x_test": X[:2], "y_test": Y[:2]}


@pytest.mark.parametrize(("arrays", "expected"), [
    ({"y": Y}, "there is no array x, found y"),
    ({"x": X, "y": Y, "x_test": X}, "give both x_test and y_test or neither, found x_test alone"),
    ({"x": X, "y": Y} | TEST | {"y_test": Y}, "x_test has 2 samples, y_test has 4"),
    ({"x": X[:, :0], "y": Y}, "x must hold at least one sample, found shape (4, 0)"),
    ({"x": put(put(X, (2, 1), np.nan), (3, 0), np.inf), "y": Y}, "x[2, 1] is nan, which is not"),
    ({"x": X, "y": put(X, (1, 2), -1e300)}, "y[1, 2] is -1e+300, which is too large for float32"),
    ({"x": X, "y": put(Y, 2, -1)}, "y[2] is -1; with 4 samples labels go from 0 to 3"),
    ({"x": X, "y": Y} | TEST | {"y_test": np.array([1, 3])}, "y_test[1] is 3; with 3 classes"),
    ({"x": X, "y": Y[:, None]}, "y must be integers of shape (samples,), found int64 of shape (4,"),
    ({"x": X, "y": X[:, 0]} | TEST, "y_test must be floats of shape (samples, outputs), found i"),
    ({"x": X, "y": Y} | TEST | {"x_test": X[:2, :2]}, "x_test must have 3 values per sample, as "),
    ({"x": X * 1j, "y": Y}, "x must hold real numbers, found complex128"),
    ({"x": X.astype(object), "y": Y}, "it cannot be read as .npz (Object arrays cannot be loaded"),
])
def test_arrays_that_cannot_be_trained_on(of_arrays, tmp_path, arrays, expected):
    blamed = f'{tmp_path / "a.toml"}:2:10: data.source "toy.npz": '
    assert complaint(of_arrays, **arrays).startswith(blamed + expected)


@pytest.mark.parametrize(("write", "expected"), [
    (lambda path: None, "no such file or directory; it must be"),
    (lambda path: path.write_text("x,y\n1,2"), "it cannot be read as .npz ("),
    (lambda path: np.savez(path, x=X, y=Y) or path.write_bytes(path.read_bytes()[:-30]), "it cannot be read as .npz ("),
])
def test_files_that_are_no_dataset(tmp_path, monkeypatch, write, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "b.npz")
    said = complaint(load_dataset, Scenario(data=Data("b.npz")))
    assert said.startswith(f'<scenario>:1:1: data.source "b.npz": {expected}')
    assert complaint(load_dataset, Scenario(data=Data("b\0.npz"))).endswith("a path cannot contain a NUL byte")


def test_a_relative_source_starts_where_it_is_written(tmp_path, monkeypatch):
    for folder, inputs in (("here", 1), ("there", 2)):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "b.npz", x=X[:, :inputs], y=Y)
    monkeypatch.chdir(tmp_path / "here")
    scenario = tmp_path / "there" / "a.toml"
    scenario.write_text('data.source = "b.npz"')
    assert load_dataset(load(scenario)).inputs == 2
    assert load_dataset(load(scenario, ["data.source=b.npz"])).inputs == 1
    assert load_dataset(load(scenario, [f"data.source={tmp_path}/there/b.npz"])).inputs == 2
    said = complaint(load_dataset, load(scenario, ["data.source=c.npz"]))
    assert said.startswith(f'--set:1:1: data.source {json.dumps("c.npz")}: no such file')


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**63 - 1), st.integers(1, 6))
def test_the_stream_of_samples_is_one_permutation_after_another(samples, count, seed, steps):
    stream = np.concatenate([sample_order(samples, k, count, seed) for k in range(steps)])
    assert stream.dtype == np.int64
    assert len(stream) == steps * count
    for epoch, start in enumerate(range(0, len(stream), samples)):
        drawn = np.random.default_rng([seed, epoch]).permutation(samples)
        part = stream[start : start + samples]
        assert np.array_equal(part, drawn[: len(part)])
