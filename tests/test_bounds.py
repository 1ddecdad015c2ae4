"""What is read of a scenario is bounded, and the reading takes time in proportion."""

import time

import pytest

from zerosim.errors import ScenarioError
from zerosim.scenario import load
from zerosim.scenario import positions as reading
from zerosim.scenario.positions import MOST_BYTES, MOST_DEPTH, MOST_PARTS, Scanner, check_bounds, check_size, positions

MANY = 100_000
DEEP = "arrays or tables are nested too deeply: found 9 levels, at most 8 are allowed"


def long(parts):
    return f"a dotted key is too long: found {parts:,} parts, at most {MOST_PARTS} are allowed"


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
    (".".join("a" * MANY) + " = 1", f"a.toml:1:1: {long(MANY)}"),
    ("[train]\n  " + " . ".join(["'a'"] * 40_000) + " = 1", f"a.toml:2:3: {long(40_000)}"),
    ("a = 1\n[" + '."é.".'.join("a" * 5) + "]", f"a.toml:2:2: {long(9)}"),
    ("a = {b = 1, " + ".".join("c" * 9) + " = 1}", f"a.toml:1:13: {long(9)}"),
    ("a = " + "[" * MANY, f"a.toml:1:13: {DEEP}"),
    ("a = " + "[" * 9 + "]" * 9, f"a.toml:1:13: {DEEP}"),
    ("a = " + "{a = " * 9 + "1" + "}" * 9, f"a.toml:1:45: {DEEP}"),
    ('a = """[[[[\n"[[[["""""\nb = [[[[\n[[[[#]]\n[', f"a.toml:5:1: {DEEP}"),
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
    ([".".join("a" * MANY) + "=1"], f"--set:1:1: {long(MANY)}"),
    (["title=" + "a" * MOST_BYTES], f"--set:1:1: found {MOST_BYTES + 6:,} bytes"),
    (["title=" + "a" * 200_000] * 2, "--set:1:1: found 400,012 bytes"),
    (["parallel.units=" + "[" * 999 + "]" * 999], "--set:1:16: parallel.units must be layer, model or an array of "),
    (["parallel.units={" + ".".join("a" * 999) + "=1}"], "--set:1:16: parallel.units must be layer, model or an array"),
])
def test_overrides_are_bounded_likewise(complaint, overrides, expected):
    assert complaint("", *overrides).startswith(expected)


@pytest.mark.parametrize("text", [
    ".".join("a" * MOST_PARTS) + " = 1",
    "a = " + "[" * MOST_DEPTH + "]" * MOST_DEPTH,
    "a = [[]]\n" * 20,
    "[[a]]\nb = '[[[[[[[[['\n\"[[[[[[[[[\" = 1 # [[[[[[[[[\nc = '''\n[[[[[[[[[''''",
    r'a = """\"""\\[[[[[[[[["""',
    "# " + ".".join("a" * 20),
    f"title = '{'.'.join('a' * 20)}'",
])
def test_what_is_within_the_bounds_passes(text):
    check_bounds(text, "a.toml")


@pytest.mark.parametrize("text", [
    ".".join("a" * (MOST_PARTS + 1)), "a = " + "[" * (MOST_DEPTH + 1), "a = " + "[{" * (MOST_DEPTH // 2) + "[",
    "]" * 3 + "[" * (MOST_DEPTH + 1), "[]" * 9 + "{" * (MOST_DEPTH + 1), "a = '.'\n" + "b." * MOST_PARTS + "b",
])
def test_one_more_than_the_bounds_allow_is_refused(text):
    with pytest.raises(ScenarioError, match=f"found 9 (levels|parts), at most {MOST_DEPTH} are allowed"):
        check_bounds(text, "a.toml")


def test_the_size_may_reach_its_bound_and_no_byte_more():
    assert (MOST_BYTES, MOST_PARTS, MOST_DEPTH) == (250_000, 8, 8)
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


def test_where_things_stand_is_found_by_looking_at_each_character_once(monkeypatch):
    """And never by counting lines from the beginning, as `place` does."""
    seen = []
    match = Scanner.match

    def counted(scanner, pattern):
        found = match(scanner, pattern)
        seen.append(len(found))
        return found

    monkeypatch.setattr(Scanner, "match", counted)
    monkeypatch.delattr(reading, "place")
    text = "#" * 100_000 + "\n" + "".join(f"a{i} = 1\n" for i in range(1_000))
    assert len(positions(text)) == 1_000
    assert sum(seen) == len(text) - len("=") * 1_000
    assert len(seen) < 20 * 1_000


def test_many_overrides_are_applied_in_time_proportional_to_what_they_replace(complaint):
    text = "".join(f"a{i} = 1\n" for i in range(20_000))
    assert complaint(text, *(f"b{i}=1" for i in range(2_000))).startswith("a.toml:1:1: unknown key 'a0'")
