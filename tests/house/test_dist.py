"""The check of the wheel notices one that cannot be installed, and a program that fails."""

import pytest

from tests.house import dist


@pytest.mark.long
def test_a_wheel_that_cannot_be_installed_is_one_fault(tmp_path):
    wheel = tmp_path / "zerosim-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"no wheel")
    (found,) = dist.faults(wheel, "")
    assert found.startswith("no extras: ")
    assert "pip install" in found


@pytest.mark.long
def test_a_command_that_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(dist, "commands", lambda place, extras: [
        [place / "python", "-c", f"raise SystemExit({3 + (extras == '[mpich]')})"]])
    monkeypatch.setattr(dist, "installed", lambda place, what: [place / "python", "-c", ""])
    (found,) = dist.faults(tmp_path, "[mpich]")
    assert "raise SystemExit(4): 4" in found
