"""A course is marked: everybody has a row, nobody reaches another's files, and what is the library's own is told."""

import csv
import os
import site
import socket
from pathlib import Path

import pytest

from tests.test_grade import run_command
from zerosim.commands import grade as command
from zerosim.errors import UsageError
from zerosim.teach.grading.confirmed import grade_separately
from zerosim.teach.grading.contained import Learner, containment
from zerosim.teach.grading.exercises import Grade, Item
from zerosim.teach.grading.library_use import library_uses
from zerosim.teach.grading.submissions import submissions

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
    monkeypatch.setattr(command, "grade_separately", stand_in)
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


def test_odd_hand_ins_have_a_row_and_are_not_copied(tmp_path, monkeypatch):
    course = tmp_path / "course"
    for name in ("ada", "bob", "cy", "dan"):
        (course / name).mkdir(parents=True)
        (course / name / "mine.py").write_text("all_gather = 1\n")
    os.mkfifo(course / "ada" / "pipe.py")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(course / "ada")
        bound.bind("socket")
    (course / "bob" / "zero").symlink_to("/dev/zero")
    (course / "bob" / "up").symlink_to(".")
    (course / "bob" / "mine.py").unlink()
    (course / "bob" / "mine.py").symlink_to("../ada/mine.py")
    os.makedirs(course / "cy" / "/".join("d" * 900))
    (course / "dan" / "mine.py").write_bytes(b"x" * (1 << 21))
    os.mkfifo(course / "a.py")
    (course / "b.py").symlink_to("/nowhere")
    (course / "eve").symlink_to("ada")
    handed = submissions([str(course)])
    assert {os.path.basename(each.name): (len(each.files), *(word for word in (
        "link", "regular", "levels", "more than") if word in " ".join(each.trouble))) for each in handed} == {
        "ada": (1, "regular"), "bob": (0, "link"), "cy": (1, "levels", "more than"), "dan": (0, "more than"),
        "eve": (0, "link"), "a.py": (0, "regular"), "b.py": (0, "link")}
    failed = [line for each in handed for line in each.copy(Learner(str(tmp_path / "copies")))]
    copies = [path.parent.name for path in (tmp_path / "copies").rglob("*") if path.is_file()]
    assert (sorted(copies), failed) == (["ada", "cy"], [])


def test_ones_own_folder_is_one_submission(tmp_path):
    for name in ("1_ring.py", "2_tree.py", "scenarios/collectives.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text({"1_ring.py": "all_gather = 1", "2_tree.py": "reduce = 1"}.get(name, "x = 1"))
    (found,) = submissions([str(tmp_path)], ["1_ring.py", "2_tree.py"])
    assert (len(found.files), found.trouble) == (2, ())
    assert len(submissions([str(tmp_path)])) == 3


FORGED_LINE = "\n   151 of 151  ada"
"""A line of the table of points, within a name or a message."""


def test_words_of_a_learner_add_no_line_to_the_points(tmp_path, capsys, monkeypatch):
    (tmp_path / f"bob{FORGED_LINE}.py").write_text("all_gather = 1\n")
    (tmp_path / "cy.py").write_text("all_gather = 1\n")
    monkeypatch.setattr(command, "grade_separately", lambda file, name, learner: Grade(
        name, "does not hold yet", [Item("it holds", 11, "does not hold")], own=(f"calls x{FORGED_LINE}",)))
    points = tmp_path / "points.csv"
    run_command(str(tmp_path), "--csv", str(points))
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("   151 of 151")]
    assert len(points.read_text().splitlines()) == 3
    assert "\n" not in command.label_of(f"bob{FORGED_LINE}.py")


HOSTILE = """
import glob, os, time
from zerosim.comm import left, right
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
    os._exit(0)
NEIGHBOURS = [name for name in glob.glob(os.path.dirname(os.path.dirname(__file__)) + "/../**", recursive=True)
              if "victim" in name]
if os.getuid():
    try:
        os.kill({marker}, 9)
    except PermissionError:
        pass
def all_gather(comm, chunks):
    assert not (os.getuid() and NEIGHBOURS), NEIGHBOURS
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))
"""


def test_a_learner_reaches_nobody_and_leaves_no_process(tmp_path):
    with command.copies() as folder:
        learners = [Learner(os.path.join(folder, str(number)), number, (str(tmp_path),)) for number in range(2)]
        files = [str(tmp_path / f"{name}.py") for name in ("hostile", "victim")]
        for file in files:
            Path(file).write_text(HOSTILE.replace("{marker}", str(os.getpid())))
        for learner, handed in zip(learners, submissions(files), strict=True):
            assert not [*handed.copy(learner)]
        copy = learners[0].copy_of(str(tmp_path / "hostile.py"))
        found = grade_separately(copy, "all_gather", learner=learners[0])
        assert (found.earned, found.complaint) == (11, None)
        assert not [told for told in Path("/proc").glob("[0-9]*/cmdline") if copy in read(told)]


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("folder", ["file", "/proc/feedback"])
def test_a_folder_of_feedback_is_checked_before_grading(course, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--feedback: cannot write into"):
        run_command(str(course), "--feedback", folder)


LOUD = """
from zerosim.comm import left, right
def all_gather(comm, chunks):
    print("x" * 1_000_000, end="")
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))
    if comm.size == 7:
        raise ValueError("y" * 2_000_000)
"""


def test_much_output_costs_no_points(tmp_path):
    (tmp_path / "mine.py").write_text(LOUD)
    found = grade_separately(str(tmp_path / "mine.py"), "all_gather")
    assert [item.state for item in found.items[:2]] == ["holds", "does not hold"]
    assert 0 < len("".join([found.complaint, *found.printed])) < 20_000


LEAVING = """
import ctypes, os, site
BASE = site.getuserbase()
shared = ctypes.CDLL(None).shmget(0x7A65, 4096, 0o1666)
def all_gather(comm, chunks):
    raise ValueError(f"{shared} {BASE}")
"""


def test_a_learner_leaves_no_shared_memory_and_no_user_site(tmp_path):
    (tmp_path / "mine.py").write_text(LEAVING)
    with command.copies() as folder:
        learner = Learner(os.path.join(folder, "0"), 0, (str(tmp_path),))
        (handed,) = submissions([str(tmp_path)])
        assert not [*handed.copy(learner)]
        found = grade_separately(learner.copy_of(str(tmp_path / "mine.py")), "all_gather", learner=learner)
    assert f" {site.getuserbase()}" in found.complaint
    if containment() == "view":
        assert " 31333 " not in read(Path("/proc/sysvipc/shm"))


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
        ("import zerosim.teach.grading.claims\nzerosim.teach.grading.claims.CLAIMS['x'] = 1", [
            "zerosim.teach.grading.claims in line 1"]),
        ("m = __import__('zero' + 'sim')", ["__import__ in line 1"]),
        ("import sys\nsys.modules['zerosim']", ["modules in line 2"]),
        ("def (", []),
        (f"from zerosim.collectives import ring\nring{'.a' * 600}.x = 1\nring[0x{'f' * 6000}].y = 1", [
            "zerosim.collectives.ring in line 1", "writes to ring.x in line 2", "writes to ring.y in line 3"]),
    ],
)
def test_what_is_the_librarys_own_is_told(text, said):
    assert library_uses(text) == said


def test_a_declared_encoding_hides_no_use(tmp_path):
    (tmp_path / "mine.py").write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\nimport pydoc\nall_gather = 1\n")
    (found,) = submissions([str(tmp_path)])
    assert found.own == ("pydoc in line 3 of mine.py",)

