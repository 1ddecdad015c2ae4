"""Every example in the documentation runs, and every file that a page points to is there."""

import ast
import doctest
import re
from pathlib import Path

import pytest

from tests.documents.links import dead_links
from tests.sampling import long_if, takes_long
from zerosim.scenario import shipped

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("scenarios/*.md")])
NAMING = [ROOT / "CONTRIBUTING.md", ROOT / "docs/decisions.md", ROOT / "docs/architecture.md"]
"""Pages that name files of the package in backticks."""


@pytest.mark.parametrize("page", long_if(takes_long, PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page):
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


def missing_paths(text):
    """The paths in backticks that are neither of the package nor of the project; those with NAME are to be made."""
    paths = [path for path in re.findall(r"`([^`\s]+(?:/|\.\w+))`", text) if "/" in path and "NAME" not in path]
    return [path for path in paths if not ((ROOT / path).exists() or (ROOT / "zerosim" / path).exists())]


def test_links_and_named_paths_lead_somewhere():
    assert {page.name: dead for page in PAGES if (dead := dead_links(page, page.read_text()))} == {}
    assert {page.name: missing for page in NAMING if (missing := missing_paths(page.read_text()))} == {}


def undefined(line):
    """The names after the arrow of a line, up to a semicolon, that neither its files nor the replica's define."""
    ours = line.partition("→")[2].partition(";")[0]
    files = ["../zerosim/stages/replica.py", *re.findall(r"\]\((.*?\.py)\)", ours)]
    trees = [ast.parse((ROOT / "docs" / file).read_text()) for file in files]
    defined = {node.name for tree in trees for node in ast.walk(tree)
               if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {name.id for tree in trees for statement in tree.body if isinstance(statement, ast.Assign)
                for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return set(re.findall(r"`(?:Replica\.)?(\w+)`", ours)) - defined


def test_their_code_is_set_beside_names_that_are_there():
    lines = (ROOT / "docs/their_code.md").read_text().splitlines()
    assert {line: names for line in lines if (names := undefined(line))} == {}
    assert undefined("- `Mesh` → `Mesh`, `shard` in [`sharding.py`](../zerosim/core/sharding.py)") == {"shard"}


def test_every_scenario_that_a_page_names_is_there():
    text = "".join(page.read_text() for page in PAGES)
    named = {*re.findall(r"zerosim (?:run|plan) ([a-z]\w+)(?=[` ])", text)}
    assert named > {"compare", "mpt_7b"}
    assert named - shipped.scenarios().keys() == set()


def test_a_link_and_a_path_that_lead_nowhere_are_seen():
    assert dead_links(PAGES[0], "[a](no.md) [b](https://x.y) [c](README.md#top)") == ["no.md"]
    assert missing_paths("`stages/NAME.py`, `stages/ddp.py`, `stages/ddt.py`, `docs/`") == ["stages/ddt.py"]


def test_contributing_has_every_make_target():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    rows = re.findall(r"^\| (`make .*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    listed = re.findall(r"`make ([\w-]+)`", " ".join(rows))
    assert sorted(listed) == sorted(phony.split())
