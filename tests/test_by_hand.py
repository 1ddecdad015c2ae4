"""Faults written by hand: each can still be planted, and the runner says what came of it."""

import json
import os
import subprocess
import sys

import pytest

from tests.mutants.by_hand import FILE, Fault, grouped, read, wrong
from tests.test_mutants import ROOT, TINY, tiny_tree

LARGER = "tests/test_tiny.py::test_larger"
LIMIT = "tests/test_tiny.py::test_limit"


def test_every_fault_of_the_list_can_be_planted_and_says_what_comes_of_it():
    assert list(wrong(ROOT)) == []


def test_the_list_has_no_fault_twice():
    faults = read(ROOT / FILE)
    assert len({(fault.file, fault.old, fault.new) for fault in faults}) == len(faults) > 0


def fault(old, new, **said):
    return {"file": "zerosim/tiny.py", "old": old, "new": new, **said}


def written(folder, *rows):
    tree = tiny_tree(folder)
    (tree / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tree


@pytest.mark.parametrize(("row", "words"), [
    (fault("return c", "return b", noticed=LARGER), "has this 0 times, not once; plant the same fault"),
    (fault("return a", "return b", noticed=LARGER), "in tests/mutants/by_hand.jsonl: 'return a'"),
    (fault("a > b", "a > b", noticed=LARGER), "is no fault"),
    (fault("a > b", "a > > b", noticed=LARGER), "is no fault"),
    (fault("a > b", "a < b"), "has both or none of `noticed` and `equivalent`"),
    (fault("a > b", "a < b", noticed=LARGER, equivalent="?"), "has both or none of `noticed` and `equivalent`"),
    (fault("a > b", "a < b", noticed="tests/test_tiny.py::test_large"), "test_large, which is not there"),
    ({**fault("a > b", "a < b", noticed=LARGER), "file": "zerosim/gone.py"}, "No such file"),
])
def test_a_fault_that_can_no_longer_be_planted_is_told(row, words, tmp_path):
    (said,) = wrong(written(tmp_path, fault("a > b", "a < b", noticed=f"{LARGER}[case]"), row))
    assert words in said


def test_a_file_s_group_is_what_notices_its_faults():
    faults = [Fault("a.py", "", "", "t::one"), Fault("a.py", "", "", "t::two"), Fault("b.py", "", "", "t::one"),
              Fault("a.py", "", "", "t::one"), Fault("c.py", "", "", equivalent="so")]
    assert grouped(faults) == {"a.py": ["t::one", "t::two"], "b.py": ["t::one"]}


def hunted(tree, *options):
    """What the runner prints about a tree, without indentation, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants.by_hand", "--tree", str(tree), *options], cwd=ROOT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    assert done.stderr == ""
    return [line.strip() for line in done.stdout.splitlines()], done.returncode


def test_the_runner_says_what_came_of_each(tmp_path):
    tree = written(tmp_path, fault("a > b", "a < b", noticed=LARGER), fault("min(a", "max(a", noticed=LIMIT))
    others = tmp_path / "others.jsonl"
    others.write_text("".join(json.dumps(row) + "\n" for row in [
        fault("if a > b:\n        return a\n", "if a > b:\n        return b\n", noticed=LARGER),
        fault("LIMIT = 3", "LIMIT = 4", id=7),
        fault("a + 1", "a + 2"),
        fault("a > b", "a >= b", equivalent="of two equal numbers either is the larger one"),
        fault("min(a, LIMIT)", "a", noticed=LARGER),
        fault("a > b", "a < b", equivalent="wrongly said"),
        {**fault("while a", "while 0"), "file": "zerosim/another.py"},
    ]))
    said, code = hunted(tree, "--list", str(others), "--only", "zerosim/t*")
    assert said == [
        "zerosim/tiny.py:3", "- if a > b:", "return a", "+ if a > b:", "return b", f"caught: {LARGER}",
        "zerosim/tiny.py:18", "- LIMIT = 3", "+ LIMIT = 4", f"caught: {LIMIT}",
        "zerosim/tiny.py:9", "- a + 1", "+ a + 2", "survivor",
        "zerosim/tiny.py:3", "- a > b", "+ a >= b", "equivalent: of two equal numbers either is the larger one",
        "zerosim/tiny.py:22", "- min(a, LIMIT)", "+ a", f"caught by another test than it should be: {LIMIT}",
        "zerosim/tiny.py:3", "- a > b", "+ a < b", f"no equivalent, but caught: {LARGER}",
        "6 faults: 2 caught, 1 survivor, 1 equivalent, 1 caught by another test than it should be, "
        "1 no equivalent, but caught",
    ]
    assert code == 1
    assert (tree / "zerosim" / "tiny.py").read_text() == TINY.lstrip()
