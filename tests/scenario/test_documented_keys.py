"""The page of keys has every key of the schema, with its default and what is allowed."""

import re

import pytest

from tests import keys
from tests.pages import documented
from zerosim.scenario import load

FIRST = "The ten to know first"


def test_the_page_has_every_key_of_a_scenario_and_ten_to_know_first():
    found = documented(keys.PAGE)
    first, others = found.pop(FIRST), set().union(*found.values())
    assert others == {f"{name}.{key}".lstrip(".") for name, section in keys.sections().items() for key in section}
    assert len(first) == 10
    assert first <= others


def test_the_lists_are_those_of_the_schema():
    page = keys.PAGE.read_text()
    assert keys.written(page) == page


def test_every_key_has_a_sentence():
    assert re.findall(r"^- .*\): ?$", keys.PAGE.read_text(), re.MULTILINE) == []
    assert all(sentence.endswith(".") for sentence in keys.sentences(keys.PAGE.read_text()).values())


@pytest.mark.parametrize(("old", "new"), [
    ("`train.steps` (`20`;", "`train.steps` (`21`;"),
    ("; `tree`, ", "; "),
    ("`train.steps` (`20`;", "`train.stpes` (`20`;"),
])
def test_a_list_that_differs_is_seen(old, new):
    page = keys.PAGE.read_text().replace(old, new, 1)
    assert page != keys.PAGE.read_text()
    assert keys.written(page) != page


def test_the_example_is_a_scenario(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```", keys.PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.toml").write_text(block)
    assert load(tmp_path / "mine.toml").train.steps == 5
