"""The scanner against tomllib: the same paths, and at each value's place the text of that value."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.scenario.positions import TextPlace, positions


def walk(value, path=()):
    if path:
        yield path, value
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from walk(child, (*path, key))


def offset(text, place):
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1


def stands_at(text, place, value):
    """Whether some text that begins at `place`, up to the end of a token, is TOML for `value`."""
    rest = text[offset(text, place) :] + "\n"
    ends = [end for end, after in enumerate(rest) if after in " \t\r\n,]}#"]
    return any(read(f"v={rest[:end]}") == {"v": value} for end in ends)


def names(text, place, name):
    """Whether some text that begins at `place` is a key for `name`."""
    rest = text[offset(text, place) :]
    ends = [end for end, after in enumerate(rest) if after in " .=]"]
    return any(read(f"{rest[:end]}=0") == {name: 0} for end in ends)


def read(text):
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


SCALARS = st.sampled_from([
    "0", "-1_7", "0xfe", "6.5e-3", "inf", "true", "false",
    "1979-05-27", "07:32:00.5", "1979-05-27 07:32:00Z", "1979-05-27T07:32:00-07:00",
    '""', '"é = [1] # {"', r'"\"\\\u00e9"', "''", r"'C:\ \" '",
    '"""\n\n a\\\n  b"""', '"""""a""b"""""', '"""\\""" """',
    "''''''", "'''\n'a' ] # '''", "''''a'''''",
])
BLANKS = st.sampled_from(["", " ", "\n", "\t# é ] }\n", "\r\n # '''\n "])
KEYS = st.sampled_from(["a", "b-1", "7", '"a.\\u0062 = é"', "'c ] #'", '""'])
DOTTED = st.lists(KEYS, min_size=1, max_size=3).map(" . ".join)


@st.composite
def arrays(draw, values):
    items = [draw(BLANKS) + each + draw(BLANKS) for each in draw(st.lists(values, max_size=3))]
    comma = "," if items and draw(st.booleans()) else ""
    return "[" + ",".join(items) + comma + draw(BLANKS) + "]"


@st.composite
def inline_tables(draw, values):
    items = [f"{draw(DOTTED)} = {each}" for each in draw(st.lists(values, max_size=2))]
    return "{ " + " , ".join(items) + " }"


VALUES = st.recursive(SCALARS, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=5)
STATEMENTS = st.one_of(
    st.builds("{}{} = {} # end\n".format, BLANKS, DOTTED, VALUES),
    st.builds("[ {} ]\n".format, DOTTED),
    st.builds("[[{}]]\r\n".format, DOTTED),
)


@st.composite
def documents(draw):
    text = ""
    for statement in draw(st.lists(STATEMENTS, max_size=8)):
        if read(text + statement) is not None:
            text += statement
    return text


@given(documents())
def test_every_path_is_found_and_its_name_and_value_stand_at_their_places(text):
    expected, found = dict(walk(tomllib.loads(text))), positions(text)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        key, place = found[path]
        if isinstance(path[-1], str):
            assert names(text, key, path[-1])
        only_named = isinstance(value, dict | list) and text[offset(text, place)] not in "[{"
        if only_named:
            assert key == place
        else:
            assert stands_at(text, place, value)


@pytest.mark.parametrize("scalar", SCALARS.elements)
def test_every_scalar_of_these_tests_is_toml(scalar):
    assert read(f"a = {scalar}") is not None


def test_the_checks_see_a_place_that_is_off_by_one():
    text = "abc = 123"
    assert [names(text, TextPlace(1, column), "abc") for column in (1, 2)] == [True, False]
    assert [stands_at(text, TextPlace(1, column), 123) for column in (5, 7, 8)] == [False, True, False]


@pytest.mark.parametrize(("text", "path", "key", "value"), [
    ("b = ['é', 1,\n  [2]]", ("b", 2, 0), (2, 4), (2, 4)),
    ("b = ['é', 1,\n  [2]]", ("b", 1), (1, 11), (1, 11)),
    ("'é' = '''\n''' # c\nb = 1", ("b",), (3, 1), (3, 5)),
    ("[a.b]\nc.d = {e = 1}", ("a", "b", "c", "d", "e"), (2, 8), (2, 12)),
    ("[[a]]\nb = 1\n[[a]]\n[a.c]\nb = 2", ("a", 1, "c", "b"), (5, 1), (5, 5)),
    ("[[a]]\n[[a]]", ("a", 1), (2, 3), (2, 3)),
    ("[a.b]\n[a]", ("a",), (1, 2), (1, 2)),
])
def test_places(text, path, key, value):
    assert positions(text)[path] == (key, value)
