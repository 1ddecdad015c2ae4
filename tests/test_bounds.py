"""What is read of a scenario is bounded, the reading takes time in proportion, and keys are found where they stand."""

import time

import pytest

from zerosim.core.errors import ScenarioError
from zerosim.scenario import load
from zerosim.scenario.reading import MOST_BYTES, check_size, parse, place

MANY = 100_000
LONG = "a dotted key is too long"
DEEP = "a.toml:1:1: arrays or tables are nested too deeply"


@pytest.fixture
def complaint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def complaint(text, *overrides):
        (tmp_path / "a.toml").write_text(text)
        started = time.process_time()
        with pytest.raises(ScenarioError) as caught:
            load("a.toml", overrides)
        assert time.process_time() - started < 60
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return complaint


@pytest.mark.parametrize(("text", "expected"), [
    (".".join("a" * MANY) + " = 1", f"a.toml:1:1: {LONG}"),
    ("[train]\n  " + " . ".join(["'a'"] * 40_000) + " = 1", f"a.toml:2:1: {LONG}"),
    ("a = 1\n[" + '."é.".'.join("a" * 16) + "]", f"a.toml:2:1: {LONG}"),
    ("a = {b = 1, " + ".".join("c" * 31) + " = 1}", f"a.toml:1:1: {LONG}"),
    ("a = " + "[" * MANY, DEEP),
    ("a = " + "{a = " * 999 + "1" + "}" * 999, DEEP),
    ("#" * 3_000_000, "a.toml:1:1: found 3,000,000 bytes; a scenario has at most 250,000, and"),
    ("a" * (MOST_BYTES - 4) + " = 1", "a.toml:1:1: unknown key '" + "a" * 60 + "...'; allowed are kind, "),
    ('["' + "a" * 999 + '"]\n["' + "a" * 999 + '"]', "a.toml:2:1003: this is not TOML: cannot declare ('aaa"),
    ("[' (at ']\n[' (at ']", "a.toml:2:9: this is not TOML: cannot declare (' (at ',) twice"),
])
def test_what_is_beyond_the_bounds_is_said_in_one_short_line(complaint, text, expected):
    said = complaint(text)
    assert said.startswith(expected)
    assert len(said) < 300


def test_a_stream_without_end_is_refused():
    with pytest.raises(ScenarioError, match=r"^/dev/zero:1:1: this is not a regular file; a scenario is a TOML file"):
        load("/dev/zero")


@pytest.mark.parametrize(("overrides", "expected"), [
    ([".".join("a" * MANY) + "=1"], f"--set:1:1: {LONG}"),
    (["title=" + "a" * MOST_BYTES], f"--set:1:1: found {MOST_BYTES + 6:,} bytes"),
    (["title=" + "a" * 200_000] * 2, "--set:1:1: found 400,012 bytes"),
    (["parallel.units=" + "[" * 999 + "]" * 999], "--set:1:1: parallel.units must be layer, model or an array of "),
])
def test_overrides_are_bounded_likewise(complaint, overrides, expected):
    assert complaint("", *overrides).startswith(expected)


@pytest.mark.parametrize("text", [f"title = '{'.'.join('a' * 20)}'", "a = [[]]\n", "[[a]]\nb = '[[[[[[[[['\nc = 1"])
def test_what_is_within_the_bounds_passes(text):
    assert parse(text, "a.toml")


def test_the_size_may_reach_its_bound_and_no_byte_more():
    check_size(MOST_BYTES, "a.toml")
    with pytest.raises(ScenarioError, match=r"found 250,001 bytes; a scenario has at most 250,000"):
        check_size(MOST_BYTES + 1, "a.toml")


@pytest.mark.parametrize("text", [
    "".join(f"a{i} = 1\n" for i in range(MOST_BYTES // 11)), "[[a]]\n" * (MOST_BYTES // 6),
    "a = [" + "1,\n" * (MOST_BYTES // 3 - 5) + "]", "#\n" * (MOST_BYTES // 2), "'" * MOST_BYTES,
    '"\\' * (MOST_BYTES // 2), '"""\\' * (MOST_BYTES // 4), "a = '" + "\\" * (MOST_BYTES - 6),
    "".join(f"[a.a.a.a.a.a.a.a{i}]\na.a.a.a.a.a.a.a = 1\n" for i in range(MOST_BYTES // 46)),
], ids=["keys", "tables", "array", "comments", "apostrophes", "quotes", "threes", "open string", "parts"])
def test_the_worst_that_is_allowed_is_read_in_seconds(complaint, text):
    complaint(f"x = 1\n{text}")


TEXT = '''
title = """
steps = 3"""  # not a key
world = { ranks = 2 }
[train]
steps = 1
"seed" = 2
betas = [
  0.9, 1]
[[variant]]
name = 'a'
[ [variant] ]
  units = [[0]]
[cluster.inside]
latency_us = 1
'''.replace("[ [variant] ]", "[[ variant ]]")


@pytest.mark.parametrize(("path", "expected"), [
    (("title",), (2, 1, 1)), (("world", "ranks"), (4, 1, 1)), (("train",), (5, 2, 1)), (("train", "steps"), (6, 1, 2)),
    (("train", "seed"), (7, 1, 2)), (("train", "betas", 1), (8, 1, 2)), (("variant", 0, "name"), (11, 1, 3)),
    (("variant", 1), (12, 4, 2)), (("variant", 1, "units", 0), (13, 3, 3)), (("variant", 1, "stage"), (12, 4, 2)),
    (("cluster", "inside", "latency_us"), (15, 1, 3)), (("cluster",), (14, 2, 1)), (("model", "kind"), (1, 1, 0)),
])
def test_a_key_is_found_where_it_is_written(path, expected):
    assert place(TEXT, path, at_key=True) == expected
    assert place(TEXT, path).line == expected[0]
