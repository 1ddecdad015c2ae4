"""What some students write: each program in `right`, changed ones too, is unusual, and nothing is wrong there."""

import tomllib
from pathlib import Path

import pytest

from tests.proofs.exercises import FEW_RANKS, as_exercise, changed, skeletons
from tests.sampling import one_in
from zerosim.core.parts.loading import load_file
from zerosim.proofs import parts

HERE = Path(__file__).parent / "right"
EXERCISES = skeletons()
PROGRAMS = {file.stem: file.read_text() for file in sorted(HERE.glob("*.py"))} | {
    name: changed(program, HERE) for name, program in tomllib.loads((HERE / "changed.toml").read_text()).items()}


@pytest.mark.parametrize("name", one_in(4, PROGRAMS))
def test_everything_holds(name, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "RANKS", FEW_RANKS)
    file = tmp_path / f"{name}.py"
    file.write_text(PROGRAMS[name])
    module = load_file(str(file))
    (function,) = (getattr(module, exercise) for exercise in EXERCISES if hasattr(module, exercise))
    assert parts.checked(str(file), as_exercise(function)).complaints == []
