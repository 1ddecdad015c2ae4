import hashlib
import math
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerosim.core.errors import UsageError
from zerosim.scenario.data import exact_share, load, sequences
from zerosim.scenario.data.load import TASKS, distinct_digits, tokenised, windows_of

TEXTS = st.text(st.sampled_from("ab\n €\U0001f600\ufffd") | st.characters(codec="utf-8"), min_size=11, max_size=400)


def of(source, sequence=15, vocabulary=None, folder=Path()):
    return sequences(source, sequence, vocabulary, folder)


def complaint(*args, **kwargs):
    with pytest.raises(UsageError) as caught:
        of(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What holds of every data set of tokens


def common_faults(dataset):
    """What is wrong with a data set of tokens, whatever it is made of."""
    found = []
    if dataset.kind != "tokens" or dataset.loss != "cross_entropy" or dataset.outputs != dataset.classes:
        found.append("kind")
    for x, y in ((dataset.x, dataset.y), (dataset.x_test, dataset.y_test)):
        if not len(x) or x.shape != y.shape or x.shape[1] != dataset.inputs:
            found.append("shapes")
        if x.min() < 0 or x.max() >= dataset.classes or y.astype(int).min() < -1 or y.max() >= dataset.classes:
            found.append("range")
        if len(set((y != -1).sum(axis=1).tolist())) != 1 or not (y != -1).any():
            found.append("counted")
    if dataset.x_test.dtype != np.int64 or dataset.y_test.dtype != np.int64:
        found.append("dtypes")
    return found


@pytest.mark.parametrize("source", ["text", *TASKS])
def test_every_source_gives_tokens(source):
    for sequence, vocabulary in ((1, None), (16, 11), (33, 2)):
        dataset = of(source, sequence, vocabulary)
        assert common_faults(dataset) == []
        assert dataset.inputs == sequence
        assert dataset.classes == (vocabulary or len(dataset.alphabet))


# Texts


def text_faults(dataset, whole, sequence):
    """Where the windows of `dataset` are not those of `whole`; none, if every character has its own token."""
    found = []
    cut = len(whole) * 9 // 10
    train, test = whole[:cut], whole[cut:]
    used = (len(train) - 1) // sequence * sequence
    if dataset.decode(dataset.x) != train[:used]:
        found.append("x")
    if dataset.decode(dataset.y) != train[1 : used + 1]:
        found.append("y")
    starts = range(0, len(test) - sequence, sequence)
    windows = [(test[start : start + sequence], test[start + 1 : start + 1 + sequence]) for start in starts]
    rows = zip(dataset.x_test, dataset.y_test, strict=True)
    if [(dataset.decode(x), dataset.decode(y)) for x, y in rows] != windows:
        found.append("test")
    return found


@given(TEXTS, st.data())
def test_windows_tile_the_text(whole, data):
    sequence = data.draw(st.integers(1, (len(whole) - 1) // 10))
    dataset = windows_of(whole, sequence, None)
    assert text_faults(dataset, whole, sequence) == []
    assert common_faults(dataset) == []
    assert dataset.alphabet == "".join(sorted(set(whole)))
    assert np.shares_memory(dataset.x, dataset.y) == (len(dataset.x) > 1 or sequence > 1)


@pytest.mark.parametrize("sequence", [1, 2, 3, 15])
def test_a_task_is_measured_by_its_answers_and_a_text_by_its_loss(sequence):
    """A single digit is its own answer: it leaves no place that is not judged, and is no text for that."""
    assert load.task("sort", sequence, None).measure == "exact sequences"
    assert windows_of("ab" * 80, sequence, None).measure == "loss"


@given(TEXTS, st.integers(2, 12))
def test_a_small_vocabulary_keeps_what_is_frequent(whole, vocabulary):
    tokens, alphabet = tokenised(whole, vocabulary)
    ranked = sorted(Counter(whole).items(), key=lambda item: (-item[1], item[0]))
    kept = ranked if len(ranked) <= vocabulary else ranked[: vocabulary - 1]
    names = sorted(character for character, _ in kept)
    assert tokens.tolist() == [names.index(each) if each in names else vocabulary - 1 for each in whole]
    assert alphabet == "".join(names) + "\ufffd" * (len(kept) < len(ranked))


# A user's file


def test_a_users_text(tmp_path):
    whole = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\r\n" * 5
    (tmp_path / "own").write_bytes(whole.encode())
    dataset = of("own", 30, folder=tmp_path)
    assert text_faults(dataset, whole, 30) == []
    assert text_faults(of(str(tmp_path / "own"), 30), whole, 30) == []
    (tmp_path / "sort").write_bytes(whole.encode())
    assert of("./sort", 30, folder=tmp_path).decode(dataset.x) == dataset.decode(dataset.x)


ALLOWED = '; it must be "text", "sort", "reverse" or the path of a text file'


@pytest.mark.parametrize(("make", "expected"), [
    (lambda path: None, "no such file or directory" + ALLOWED),
    (lambda path: path.mkdir(), "is a directory" + ALLOWED),
    (lambda path: path.write_bytes("ä".encode() * 150), "150 characters are too few for model.sequence = 15"),
    (lambda path: path.write_bytes(b"a" * 2000 + b"\xe4" + b"b" * 200),
     "this is no UTF-8 text, byte 2,000 is 0xe4; save it as UTF-8"),
])
def test_files_that_are_no_text(tmp_path, monkeypatch, make, expected):
    monkeypatch.chdir(tmp_path)
    make(Path("a"))
    assert complaint("a").startswith(expected)


# Tasks


def task_faults(dataset, name):
    """What is wrong with the samples of a task, told by plain Python."""
    sequence = dataset.inputs
    n = (sequence + 1) // 2
    answer = {"sort": sorted, "reverse": lambda digits: digits[::-1]}[name]
    found, seen = set(), set()
    for x, y in ((dataset.x, dataset.y), (dataset.x_test, dataset.y_test)):
        for given_, due in zip(x.tolist(), y.tolist(), strict=True):
            digits, pad = given_[:n], sequence - (2 * n - 1)
            if due != [-1] * (n - 1) + answer(digits) + [-1] * pad:
                found.add("target")
            if given_[n:] != answer(digits)[:-1] + [0] * pad:
                found.add("input")
            if tuple(digits) in seen:
                found.add("twice")
            seen.add(tuple(digits))
    return found


@settings(max_examples=7)
@given(st.sampled_from(sorted(TASKS)), st.integers(1, 24), st.none() | st.integers(2, 13))
def test_tasks_have_the_right_answers(name, sequence, vocabulary):
    dataset = of(name, sequence, vocabulary)
    base, n = min(vocabulary or 10, 10), (sequence + 1) // 2
    assert task_faults(dataset, name) == set()
    assert common_faults(dataset) == []
    assert set(dataset.x.ravel().tolist()) <= set(range(base))
    assert (dataset.y != -1).sum(axis=1).tolist() == [n] * len(dataset.y)
    samples = min(base**n, 21_000)
    assert len(dataset.x_test) == max(1, min(1000, samples // 10))
    assert len(dataset.x) + len(dataset.x_test) == samples


def test_wrong_answers_are_seen():
    assert task_faults(of("reverse", 7), "sort") == {"target", "input"}


@pytest.mark.parametrize(("base", "n", "digest"), [(10, 8, "6f2ac6b50b55b860"), (10, 3, "05562232dc3d7341")])
def test_digits_are_the_same_everywhere(base, n, digest):
    digits = distinct_digits(base, n)
    assert hashlib.sha256(np.ascontiguousarray(digits).tobytes()).hexdigest().startswith(digest)


# What a language model is held against


def test_the_bar_of_shakespeare_is_the_loss_of_a_bigram_model():
    data = of("text", 64)
    x, y, x_test, y_test = (array.ravel().tolist() for array in (data.x, data.y, data.x_test, data.y_test))
    pairs, before = Counter(zip(x, y, strict=True)), Counter(x)
    losses = [-math.log((pairs[a, b] + 1) / (before[a] + data.classes)) for a, b in zip(x_test, y_test, strict=True)]
    scenario = tomllib.loads((Path(__file__).parents[2] / "scenarios" / "shakespeare.toml").read_text())
    assert scenario["check"]["test_loss"] == round(sum(losses) / len(losses), 3)


@given(st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_exact_share(samples, sequence, random):
    y = np.array([[random.choice([-1, 0, 1]) for _ in range(sequence)] for _ in range(samples)])
    predicted = np.array([[random.choice([0, 1]) for _ in range(sequence)] for _ in range(samples)])
    right = [
        all(b in (-1, a) for a, b in zip(found, due, strict=True))
        for found, due in zip(predicted.tolist(), y.tolist(), strict=True)
    ]
    assert exact_share(predicted, y) == pytest.approx(sum(right) / samples)
    assert exact_share(y, y) == 1
