"""The planter says which test notices a fault; and each fault of the list has its place."""

import pytest

from tests.mutants.__main__ import FAULTS, faults, misplaced, noticed_by

TINY = "def larger(a, b):\n    return a if a > b else b\n"
TEST = "from tiny import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == 2\n"


def test_each_fault_of_the_list_has_its_place_and_stands_there_once():
    assert [words for fault in faults() if (words := misplaced(fault))] == []
    assert len(set(FAULTS.read_text(encoding="utf-8").splitlines())) == len(faults()) > 0


@pytest.mark.parametrize(("new", "noticed"), [
    ("a < b", "test_tiny.py::test_larger"), ("a >= b", None), ("a >", "test_tiny.py")])
def test_a_fault_is_planted_noticed_and_taken_away(new, noticed, tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "test_tiny.py").write_text(TEST)
    fault = {"file": "tiny.py", "old": "a > b", "new": new}
    assert noticed_by(fault, tmp_path, ["test_tiny.py"], 1) == noticed
    assert (tmp_path / "tiny.py").read_text() == TINY


def test_a_fault_without_a_place_is_seen(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    assert "has this 2 times" in misplaced({"file": "tiny.py", "old": " a ", "new": "b"}, tmp_path)
    assert "has this 0 times" in misplaced({"file": "tiny.py", "old": "c", "new": "b"}, tmp_path)
