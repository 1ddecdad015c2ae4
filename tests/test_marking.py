"""A course is marked: everybody has a row, nobody reaches another's files, and what is the library's own is told."""

import csv

import pytest

from tests.test_grade import run_command
from zerosim.commands import grade as command
from zerosim.grading.apart import grade_apart
from zerosim.grading.borrowed import borrowed
from zerosim.grading.contained import Learner
from zerosim.grading.exercises import Grade, Item
from zerosim.grading.submissions import submissions

HANDED = {
    "ada/1_ring.py": "from zerosim.collectives import ring\nall_gather = ring.all_gather\n",
    "ada/.venv/lib/x.py": "def reduce(comm, vector, root): pass\n",
    "ada/2_tree.py": "broadcast = 1\n",
    "bob/mine.py": "def allgather(comm, chunks): pass\n",
    "cy/mine.py": "async def all_gather(comm, chunks): pass\n",
    "dan/notes.txt": "no time",
    "eve/mine.py": "class Mine:\n    def all_gather(self, comm, chunks): pass\n",
    "fay.py": "all_gather = 1\n",
}


@pytest.fixture
def course(tmp_path):
    for name, text in HANDED.items():
        file = tmp_path / "course" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "course"


def stand_in(file, name, learner):
    assert "/course/" in file
    return Grade(name, "does not hold yet", [Item("it holds", 11, "does not hold", complaint=f"see: {file}")], "wrong")


def test_everybody_has_a_row_out_of_the_same_points(course, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "grade_apart", stand_in)
    points, feedback = tmp_path / "points.csv", tmp_path / "feedback"
    assert run_command(str(course), "-j", "3", "--csv", str(points), "--feedback", str(feedback)) == 1
    rows = {row["file"].rpartition("/")[2]: row for row in csv.DictReader(points.read_text().splitlines())}
    assert list(rows) == ["ada", "bob", "cy", "dan", "eve", "fay.py"]
    assert {row["of"] for row in rows.values()} == {"22"}
    assert "did you mean 'all_gather'?" in rows["bob"]["trouble"]
    assert "async def; write a plain def" in rows["cy"]["trouble"]
    assert "no Python file" in rows["dan"]["trouble"]
    assert "move it to the top level" in rows["eve"]["trouble"]
    assert rows["ada"]["uses zerosim's own"] == "zerosim.collectives.ring in line 1 of 1_ring.py"
    assert {file.stem for file in feedback.iterdir()} == {"ada", "bob", "cy", "dan", "eve", "course_fay"}
    assert f"see: {course / 'ada' / '1_ring.py'}" in (feedback / "ada.txt").read_text()


def test_all_are_copied_before_one_runs_and_nothing_of_an_environment(course, tmp_path):
    handed = list(submissions([str(course)]))
    goal = tmp_path / "copies"
    assert not [trouble for each in handed for trouble in each.copy(Learner(str(goal)))]
    (course / "fay.py").write_text("changed")
    copies = {str(path).partition("/course/")[2]: path.read_text() for path in goal.rglob("*") if path.is_file()}
    assert copies == {name: HANDED[name] for name in ("ada/1_ring.py", "ada/2_tree.py", "fay.py")}


MEMORY = """
import numpy as np


def all_gather(comm, chunks):
    held = [np.empty(1 << 28) for _ in range(40)]
"""


def test_too_much_memory_has_words_of_its_own(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MEMORY)
    assert run_command(str(tmp_path / "mine.py")) == 1
    assert "it needs more than the 4 GB that a function may use here" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from zerosim.comm import left, right\nfrom zerosim.sharding import split", []),
        ("import zerosim as zs\nzs.all_reduce", ["zerosim in line 1"]),
        ("import zerosim.stages.zero2 as z\nz.step = 1", [
            "zerosim.stages.zero2 in line 1", "writes to z.step in line 2"]),
        ("import zerosim.grading.claims\nzerosim.grading.claims.CLAIMS['x'] = 1", ["zerosim.grading.claims in line 1"]),
        ("m = __import__('zero' + 'sim')", ["__import__ in line 1"]),
        ("import sys\nsys.modules['zerosim']", ["modules in line 2"]),
        ("def (", []),
    ],
)
def test_what_is_the_librarys_own_is_told(text, said):
    assert borrowed(text) == said


PATCHES = (
    "import zerosim.grading.claims\nzerosim.grading.claims.CLAIMS['all_gather'] = lambda function: []",
    "import zerosim.grading.proved\nzerosim.grading.proved.unproved = lambda *given, **named: None",
    "import zerosim.proofs.proof\nzerosim.proofs.proof.run.__code__ = (lambda *given: None).__code__",
    "from zerosim.grading.exercises import Item\nItem.earned = property(lambda item: item.points)",
    "import numpy\nnumpy.array_equal = lambda one, other: True",
)


@pytest.mark.parametrize("patch", PATCHES)
def test_who_changes_what_judges_has_no_points(tmp_path, patch):
    file = tmp_path / "mine.py"
    file.write_text(f"{patch}\nfrom zerosim.collectives.ring import all_gather\n"
                    "def all_gather(comm, chunks, inner=all_gather):\n    inner(comm, chunks)\n")
    found = grade_apart(str(file), "all_gather")
    assert found.earned == 0
    assert found.state == "does not hold yet"
