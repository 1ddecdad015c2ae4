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


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "u8", ">f8", "f2", "f4", "g"])
def test_samples_of_any_real_dtype_shape_and_layout_become_rows_of_float32(of_arrays, dtype):
    x = np.asfortranarray(np.arange(24).reshape(4, 2, 3).astype(dtype))
    dataset = of_arrays(x=x, y=Y)
    assert dataset.x.dtype == np.float32
    assert dataset.x.flags.c_contiguous
    assert np.array_equal(dataset.x, x.reshape(4, 6).astype(np.float32))
    assert (dataset.inputs, dataset.x_test, dataset.y_test) == (6, None, None)
    assert of_arrays(x=x[:, 0, 0], y=Y).inputs == 1
    assert of_arrays(x=np.asfortranarray(x[:, 0]), y=Y).x.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["i1", "u8", ">i2"])
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
    ({"x": X}, "there is no array y, found x"),
    ({}, "there is no array x, found none"),
    ({"x": X, "y": Y, "x_test": X}, "give both x_test and y_test or neither, found x_test alone"),
    ({"x": X, "y": Y, "y_test": Y}, "give both x_test and y_test or neither, found y_test alone"),
    ({"x": X[:3], "y": Y}, "x has 3 samples, y has 4"),
    ({"x": X, "y": Y} | TEST | {"y_test": Y}, "x_test has 2 samples, y_test has 4"),
    ({"x": X[:0], "y": Y[:0]}, "x must hold at least one sample, found shape (0, 3)"),
    ({"x": X[:, :0], "y": Y}, "x must hold at least one sample, found shape (4, 0)"),
    ({"x": 1.0, "y": 1}, "x must hold at least one sample, found shape ()"),
    ({"x": put(put(X, (2, 1), np.nan), (3, 0), np.inf), "y": Y}, "x[2, 1] is nan, which is not"),
    ({"x": put(X, (3, 0), -np.inf).reshape(4, 3, 1), "y": Y}, "x[3, 0, 0] is -inf, which is not"),
    ({"x": put(X, (3, 2), 1e39), "y": Y}, "x[3, 2] is 1e+39, which is too large for float32"),
    ({"x": X, "y": put(X[:, 0], 1, np.nan)}, "y[1] is nan, which is not finite"),
    ({"x": X, "y": put(X, (1, 2), -1e300)}, "y[1, 2] is -1e+300, which is too large for float32"),
    ({"x": X, "y": Y} | TEST | {"x_test": put(X[:2], (0, 1), np.nan)}, "x_test[0, 1] is nan"),
    ({"x": X, "y": put(Y, 2, -1)}, "y[2] is -1; with 4 samples labels go from 0 to 3"),
    ({"x": X, "y": put(Y, 1, 4)}, "y[1] is 4; with 4 samples labels go from 0 to 3"),
    ({"x": X, "y": Y.astype("u8") + np.uint64(2**63)}, "y[0] is 9223372036854775808; with 4"),
    ({"x": X, "y": Y} | TEST | {"y_test": np.array([1, 3])}, "y_test[1] is 3; with 3 classes"),
    ({"x": X, "y": Y} | TEST | {"y_test": np.array([1, -1])}, "y_test[1] is -1; with 3 classes"),
    ({"x": X, "y": Y[:, None]}, "y must be integers of shape (samples,), found int64 of shape (4,"),
    ({"x": X, "y": X.reshape(4, 3, 1)}, "y must be floats of shape (samples, outputs), found flo"),
    ({"x": X, "y": Y} | TEST | {"y_test": X[:2, 0]}, "y_test must be integers of shape (samples"),
    ({"x": X, "y": X[:, 0]} | TEST, "y_test must be floats of shape (samples, outputs), found i"),
    ({"x": X, "y": Y} | TEST | {"x_test": X[:2, :2]}, "x_test must have 3 values per sample, as "),
    ({"x": X, "y": X} | TEST | {"y_test": X[:2, 0]}, "y_test must have 3 values per sample, as i"),
    ({"x": X * 1j, "y": Y}, "x must hold real numbers, found complex128"),
    ({"x": X, "y": Y.astype(str)}, "y must hold real numbers, found <U21"),
    ({"x": X, "y": Y.astype("m8[s]")}, "y must hold real numbers, found timedelta64[s]"),
    ({"x": X.astype(object), "y": Y}, "this .npz cannot be read: Object arrays cannot be loaded"),
])
def test_arrays_that_cannot_be_trained_on(of_arrays, tmp_path, arrays, expected):
    blamed = f'{tmp_path / "a.toml"}:2:10: data.source "toy.npz": '
    assert complaint(of_arrays, **arrays).startswith(blamed + expected)


def npz_with_a_flipped_byte(path):
    np.savez(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[content.index(X.tobytes()[8:16]) + 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("write", "expected"), [
    (lambda path: None, "no such file or directory; it must be"),
    (lambda path: path.mkdir(), "is a directory; it must be"),
    (lambda path: path.write_bytes(b""), "this .npz cannot be read: "),
    (lambda path: path.write_text("x,y\n1,2"), "this .npz cannot be read: "),
    (lambda path: path.write_bytes(b"\x93NUMPY\x01\0"), "this .npz cannot be read: "),
    (lambda path: np.savez(path, x=X, y=Y) or path.write_bytes(path.read_bytes()[:-30]), "this .npz cannot be read: "),
    (npz_with_a_flipped_byte, "this .npz cannot be read: Bad CRC-32"),
])
def test_files_that_are_no_dataset(tmp_path, monkeypatch, write, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "b.npz")
    said = complaint(load_dataset, Scenario(data=Data("b.npz")))
    assert said.startswith(f'<scenario>:1:1: data.source "b.npz": {expected}')


def test_a_path_has_no_null_byte():
    said = complaint(load_dataset, Scenario(data=Data("b\0.npz")))
    assert said.endswith("a path cannot contain a NUL byte")


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
