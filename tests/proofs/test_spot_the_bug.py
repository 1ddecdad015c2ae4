"""Lesson 9: every program in it is the one in the file, and every command says what stands below it."""

import re
import shutil
from pathlib import Path

import pytest

from zerosim.commands import cli

LESSONS = Path(__file__).parents[2] / "docs" / "lessons"
TEXT = (LESSONS / "9_spot_the_bug.md").read_text()
COMMANDS = re.findall(r"^```\n\$ zerosim ([^\n]+)\n(.*?)```$", TEXT, re.MULTILINE | re.DOTALL)


def test_programs_are_those_in_the_file():
    shown = re.findall(r"^```python\n(.*?)```$", TEXT, re.MULTILINE | re.DOTALL)
    assert len(shown) == 10
    assert [text for text in shown if text not in (LESSONS / "broken.py").read_text()] == []


def test_there_is_a_command_for_each_and_two_more():
    assert len(COMMANDS) == 12


@pytest.mark.parametrize("command", dict.fromkeys(command for command, _ in COMMANDS))
def test_a_command_says_what_stands_below_it(command, tmp_path, monkeypatch, capsys):
    shutil.copy(LESSONS / "broken.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == (0 if "units" in command else 1)
    said = " ".join(capsys.readouterr().out.split())
    for asked, below in COMMANDS:
        if asked == command:
            parts = [" ".join(part.split()) for part in re.split(r"\n(?=see: )", below)]
            assert [part for part in parts if part not in said] == []
