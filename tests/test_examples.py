"""Every folder of `scenarios/examples/` runs and is planned; the code that `docs/extend.md` shows is the examples'."""

import re
from pathlib import Path

import pytest

from zerosim.cli import main
from zerosim.extend import OPERATIONS

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in ROOT.glob("scenarios/examples/*/scenario.toml"))
SHORTER = ["--set", "train.steps=2", "--set", "check.test_accuracy=0"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_runs_and_is_planned(folder, capsys):
    assert main(["run", str(folder / "scenario.toml"), "--progress", "none", *SHORTER]) == 0
    assert "every bit equal to one process" in capsys.readouterr().out
    assert main(["plan", str(folder / "scenario.toml")]) == 0


def test_the_page_shows_code_that_runs():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    files = [*ROOT.glob("scenarios/examples/*/*.py"), ROOT / "tests" / "brought" / "mine.py"]
    code = "\n".join(path.read_text() for path in files)
    assert len(shown) >= 5
    assert [block for block in shown if block.strip() not in code] == []


def test_every_example_is_listed():
    listed = (ROOT / "scenarios" / "examples" / "README.md").read_text()
    assert [folder.name for folder in FOLDERS if f"`{folder.name}/`" not in listed] == []


def test_the_page_names_every_operation():
    page = (ROOT / "docs" / "extend.md").read_text()
    assert [name for name in OPERATIONS if f"`{name}`" not in page and name not in ("add", "multiply")] == []
