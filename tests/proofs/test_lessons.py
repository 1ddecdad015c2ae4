"""The lessons are a line, each with pictures, and every command in them does in an empty folder what they say."""

import re
import shlex
from pathlib import Path

import pytest

from tests.pages import documented
from tests.sampling import one_in
from tests.small import SCENARIOS, small_if_it_trains
from zerosim.collectives.kinds import COLLECTIVE_KINDS
from zerosim.commands.cli import COMMANDS, main
from zerosim.scenario import shipped
from zerosim.scenario.shipped import title
from zerosim.stages.replica import Replica

ROOT = Path(__file__).parents[2]
PAGES = [*shipped.lessons(), ROOT / "docs" / "teaching.md", ROOT / "docs" / "exercises" / "README.md"]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\$ (zerosim .*?)(?: +# exit code (\d).*)?")


def commands(page):
    """The words of each command of a page, and the exit code that it says."""
    lines = [line for block in CONSOLE.findall(page.read_text()) for line in block.splitlines()]
    matches = [COMMAND.fullmatch(line) for line in lines]
    assert all(matches), f"{page.name}: {[line for line, match in zip(lines, matches, strict=True) if not match]}"
    return [(match[1], int(match[2] or 0)) for match in matches]


def quicker(words):
    """A command in few steps, if it runs a shipped scenario."""
    name = words[1] if words[:1] == ["run"] else ""
    if not (SCENARIOS / f"{name}.toml").exists():
        return words
    return [*words[:2], *(word for key in small_if_it_trains(f"{name}.toml") for word in ("--set", key)), *words[2:]]


@pytest.mark.parametrize("page", one_in(3, [page for page in PAGES if commands(page)]), ids=lambda page: page.stem)
def test_commands_run_in_an_empty_folder(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line, code in commands(page):
        assert (line, main(quicker(shlex.split(line)[1:]))) == (line, code), capsys.readouterr().err
        assert "Traceback" not in capsys.readouterr().err


def test_every_lesson_has_a_picture_or_a_program():
    for page in shipped.lessons():
        text = page.read_text()
        assert re.search(r"^!\[[^]]+\]\(\.\./pictures/\w+\.svg\)$|^>>> |^```", text, re.MULTILINE), page.name
    assert "zerosim show" in shipped.lessons()[0].read_text()


def test_the_lessons_are_in_a_line_and_listed():
    numbers = [int(page.name.partition("_")[0]) for page in shipped.lessons()]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    listed = (ROOT / "docs" / "README.md").read_text()
    for number, page in zip(numbers, shipped.lessons(), strict=True):
        assert f"{number}. [{title(page)}](lessons/{page.name})" in listed


def test_commands_named_in_prose_are_there():
    pages = [*PAGES, ROOT / "README.md", ROOT / "docs" / "use.md", ROOT / "docs" / "glossary.md"]
    named = {word for page in pages for word in re.findall(r"`(?:\$ )?zerosim ([a-z]+)", page.read_text())}
    assert len(named) > 8
    assert named <= set(COMMANDS)


def test_the_glossary_speaks_of_keys_and_collectives_that_there_are():
    text = (ROOT / "docs" / "glossary.md").read_text()
    keys = set(re.findall(r"`((?:world|train|parallel|check|model|data)\.\w+)", text))
    scenarios = documented(ROOT / "scenarios" / "README.md")["Collectives"]
    assert len(keys) > 15
    assert keys <= set().union(*documented(ROOT / "docs" / "scenario.md").values()) | scenarios
    for kind in COLLECTIVE_KINDS.values():
        assert f"`{kind.mpi}`" in text
        assert f"`{kind.name}`" in text


def test_what_a_page_may_not_say_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ zerosim show x  # exit code 2: no such\n$ rm mine\n```\n")
    with pytest.raises(AssertionError, match="rm mine"):
        commands(page)


def test_methods_beside_those_of_other_libraries_exist():
    named = set(re.findall(r"`Replica\.(\w+)`", (ROOT / "docs" / "their_code.md").read_text()))
    assert len(named) > 6
    assert [name for name in named if not hasattr(Replica, name)] == []
