"""The page of keys has every key of the schema, with its default and what is allowed."""

import re
from dataclasses import fields, is_dataclass

import pytest

from tests import keys
from tests.pages import documented
from zerosim.scenario import load
from zerosim.scenario.fault import Fault
from zerosim.scenario.reading import HIDDEN
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Variant

FIRST = "The ten to know first"


def keys_of_a_scenario():
    default = Scenario()
    sections = {each.name: type(getattr(default, each.name)) for each in fields(Scenario)}
    sections |= {"variant": Variant, "fault": Fault}
    return {"kind", "title", "caption"} | {
        f"{name}.{key.name}"
        for name, section in sections.items() if is_dataclass(section) and name != "origin"
        for key in fields(section) if key.name not in HIDDEN
    }


def test_the_page_has_every_key_of_a_scenario():
    found = documented(keys.PAGE)
    assert len(found.pop(FIRST)) == 10
    assert set().union(*found.values()) == keys_of_a_scenario()


def test_the_ten_to_know_first_are_keys():
    assert documented(keys.PAGE)[FIRST] <= keys_of_a_scenario()


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
