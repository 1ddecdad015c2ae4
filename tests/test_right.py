"""What some students write: each program in `tests/right`, changed ones too, is unusual, and nothing is wrong there."""

import tomllib
from pathlib import Path

import pytest

from tests.test_mistakes import changed
from zerosim.parts.loading import load_file
from zerosim.teach.grading.claims import CLAIMS

HERE = Path(__file__).parent / "right"
CHANGED = tomllib.loads((HERE / "changed.toml").read_text())
PROGRAMS = {file.stem: file.read_text() for file in sorted(HERE.glob("*.py"))} | {
    name: changed(program, HERE) for name, program in CHANGED.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_holds(name, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(PROGRAMS[name])
    module = load_file(str(file))
    (name,) = (name for name in CLAIMS if hasattr(module, name))
    claims = [claim for claim in CLAIMS[name](getattr(module, name)) if not claim.law]
    assert len(claims) >= 3
    assert [(claim.says, claim.complaint()) for claim in claims if claim.complaint()] == []


def test_there_are_many():
    assert len(PROGRAMS) >= 25
