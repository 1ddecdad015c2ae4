"""Mends: a change of a learner's program with which everything holds is found, and none is invented."""

import ast
import warnings
from pathlib import Path

import pytest

from zerosim.grading.claims import CLAIMS
from zerosim.grading.edits import edits
from zerosim.grading.examination import grade
from zerosim.grading.mends import ALL, NOTHING, SOME, mend
from zerosim.parts.loading import load_file

RING = """
import numpy as np
from zerosim.comm import left, right


def reduce_scatter(comm, chunks, reduce=np.add):
    for step in range({rounds}):
        comm.exchange(chunks[({first}) % comm.size], to={to}, into=chunks[(comm.rank - step - 2) % comm.size],
                      source=left(comm){how})
"""
RIGHT = {"rounds": "comm.size - 1", "first": "comm.rank - step - 1", "to": "right(comm)", "how": ", reduce=reduce"}


@pytest.fixture
def patient(monkeypatch):
    """Time enough on a busy machine, for programs that end by themselves."""
    for limit in ("mends.STARTED_SECONDS", "mends.STUCK_SECONDS", "mends.JUDGED_SECONDS", "examination.KNOWN_SECONDS",
                  "examination.UNKNOWN_SECONDS"):
        monkeypatch.setattr(f"zerosim.grading.{limit}", 20.0)


def told(tmp_path, text, name="reduce_scatter"):
    file = tmp_path / "mine.py"
    file.write_text(text)
    found = grade(getattr(load_file(str(file)), name), name, CLAIMS[name], str(file))
    return found.complaint


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": "comm.size"}, "fix: in line 7, `comm.size - 1` in place of `comm.size`"),
        ({"first": "comm.rank - step"}, "(comm.rank - step - 1) % comm.size"),
        ({"how": ""}, "fix: in line 8, with `reduce=reduce` in comm.exchange"),
        ({"to": "left(comm)"}, "to=right(comm)` in place of `to=left(comm)`"),
    ],
)
def test_a_planted_mistake_is_mended_in_its_line(tmp_path, patient, wrong, said):
    found = told(tmp_path, RING.format(**RIGHT | wrong))
    assert said in found, found
    assert "tried: then every check holds" in found


def test_what_no_edit_mends_has_no_mend(tmp_path):
    found = told(tmp_path, "def reduce_scatter(comm, chunks, reduce=None):\n    print(comm.rank)\n")
    assert "mend:" not in found
    assert "see: zerosim show" in found


SHARED = """
import numpy as np
from zerosim.comm import left, right
{made}

def all_gather(comm, chunks{default}):
    for _ in range(comm.size - 1):
        outgoing = (comm.rank - len(seen)) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[outgoing - 1], source=left(comm))
        seen.append(outgoing)
"""


@pytest.mark.parametrize(("made", "default", "named"), [
    ("seen = []", "", "`seen` of line 4"), ("", ", seen=[]", "the default of `seen` in line 6")])
def test_state_that_calls_share_is_named(tmp_path, made, default, named):
    found = told(tmp_path, SHARED.format(made=made, default=default), "all_gather")
    assert f"why: {named} is shared by all ranks and all calls" in found, found


def test_a_program_that_never_ends_is_passed_over(tmp_path):
    source = "def f(x):\n    while x < 3:\n        x += 1\n    return x\n"
    found = mend(source, "f", [], lambda f: f(5) == 6, lambda f: ALL, 8)
    assert found is not None
    assert found[0].startswith("in line 2, ") or found[0].startswith("in line 3, ")
    assert mend(source, "f", [], lambda f: f(5) == "never", lambda f: ALL, 4) is None


def test_what_mends_everything_goes_before_what_mends_something():
    source = "def f(x):\n    return x - 1\n"
    verdicts = {2: SOME, 3: ALL}
    found = mend(source, "f", [], lambda f: True, lambda f: verdicts.get(f(2), NOTHING), 8)
    assert found == ("in line 2, `x + 1` in place of `x - 1`", True)


def test_every_edit_is_a_program_and_each_is_another():
    source = RING.format(**RIGHT)
    tree = ast.parse(source)
    made = [ast.unparse(edit.applied(tree)) for edit in edits(tree, "reduce_scatter")]
    assert len(made) > 100
    assert ast.unparse(tree) not in made
    assert len(set(made)) > 0.9 * len(made)
    assert ast.unparse(tree) == ast.unparse(ast.parse(source))


@pytest.mark.parametrize("folder", ["right", "mistakes"])
def test_programs_of_every_kind_can_be_edited(folder):
    made = 0
    for file in sorted((Path(__file__).parent / folder).glob("*.py")):
        tree = ast.parse(file.read_text())
        for number, edit in enumerate(edits(tree, "")):
            made += 1
            if number % 50 == 0:
                with warnings.catch_warnings(action="ignore"):
                    compile(edit.applied(tree), str(file), "exec")
    assert made > 5000


def test_braces_and_strings_in_a_loop_are_edited():
    tree = ast.parse("def f(a):\n    for x in a:\n        found = {y: f'{y}' for y in x}\n        a[x, 0:1] = found\n")
    for edit in edits(tree, "f"):
        with warnings.catch_warnings(action="ignore"):
            compile(edit.applied(tree), "f.py", "exec")
