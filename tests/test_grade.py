"""Grading: right solutions hold, typical mistakes are found and told, and nothing a learner writes hangs it."""

import argparse
import dataclasses
import json
import linecache
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests import solutions
from zerosim.collectives import naive, ring, tree
from zerosim.comm import left, right
from zerosim.commands import grade as command
from zerosim.errors import ScenarioError, UsageError
from zerosim.stages import STAGES, zero1, zero2, zero3
from zerosim.stages.replica import Replica
from zerosim.teach.grading.claims import CLAIMS
from zerosim.teach.grading.confirmed import grade_separately
from zerosim.teach.grading.examination import grade
from zerosim.teach.grading.exercises import (
    EXERCISES,
    busy_line,
    exercises_in,
    still_busy,
    unwritten,
)
from zerosim.teach.proofs.hints import raised
from zerosim.worlds import local

SKELETONS = sorted((Path(__file__).parents[1] / "docs" / "exercises").glob("*.py"))

RIGHT = {
    "reduce_scatter": ring.reduce_scatter, "all_gather": ring.all_gather, "all_reduce": ring.all_reduce,
    "broadcast": tree.broadcast, "reduce": tree.reduce,
    "zero1_step": zero1.step, "zero2_step": zero2.step, "zero3_step": zero3.step,
    **{name: getattr(solutions, name) for name in [*EXERCISES][8:]},
}


def graded(function, name):
    return grade(function, name, CLAIMS[name], __file__)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_holds(name):
    found = graded(RIGHT[name], name)
    assert (found.state, found.complaint) == ("holds", None)
    assert len(found.held) >= 3
    assert found.earned == found.points == EXERCISES[name] == sum(item.points for item in found.items)


def walk(comm, chunks, first, steps, reduce=None, to=right, source=left):
    """Once around, from chunk `first` on."""
    for step in range(steps):
        comm.exchange(chunks[(first - step) % comm.size], to=to(comm),
                      into=chunks[(first - step - 1) % comm.size], source=source(comm), reduce=reduce)


def own_chunk_first(comm, chunks, reduce=np.add):
    walk(comm, chunks, comm.rank, comm.size - 1, reduce)


@pytest.mark.parametrize(("name", "mistake", "said"), [
    ("reduce_scatter", own_chunk_first, "right on 1 rank, but on 2 ranks: rank 0, chunk 0: g1 is missing"),
    ("all_gather", ring.reduce_scatter, "on 2 ranks: rank 0, chunk 0: a place that was never filled"),
    ("broadcast", naive.broadcast, "on 4 ranks from root 0 it takes 3 rounds; 2 are enough"),
])
def test_a_mistake_in_a_collective_is_told(name, mistake, said):
    found = graded(mistake, name)
    assert found.state == "does not hold yet"
    assert said in found.complaint


@pytest.mark.parametrize("size", [1, 2, 8])
def test_what_a_function_raises_on_any_number_of_ranks_is_told_with_its_line_and_command(size):
    def raises(comm, chunks):
        if comm.size == size:
            raise ZeroDivisionError("planted")
        ring.all_gather(comm, chunks)

    found = graded(raises, "all_gather")
    assert "ZeroDivisionError: planted, in line" in found.complaint
    assert "see: zs.show(raises, ranks=" in found.complaint


def test_the_first_claim_says_on_how_many_ranks():
    assert CLAIMS["all_gather"](ring.all_gather)[0].says == (
        "every contribution arrives at its place, once, on 1, 2, 4 and 8 ranks")


# Stages that go wrong: ours, with some verbs altered.


class Altered:
    """A replica some of whose verbs do something else."""

    def __init__(self, replica, **verbs):
        self.__dict__.update(verbs, replica=replica)

    def __getattr__(self, name):
        return getattr(self.replica, name)


def all_reduced(replica, batch):
    def everywhere(unit, gradient):
        return replica.all_gather(unit, replica.reduce_scatter(unit, gradient))

    return zero1.step(Altered(replica, reduce=everywhere), batch)


def takes_all_at_once(replica, batch):
    return zero2.step(Altered(replica, parts=lambda batch: [batch]), batch)


def shard_is_a_view(replica, batch):
    loss = zero3.step(replica, batch)
    for unit, shard in replica.state.weights.items():
        full = replica.full(unit, "parameters")
        replica.own(full)[:] = shard
        replica.state.weights[unit] = replica.own(full)
    return loss


@pytest.mark.parametrize(
    ("name", "mistake", "said"),
    [
        ("zero1_step", all_reduced,
         "on 2 ranks, 1 layer, 1 step: bytes sent are not the formula's: 48 of rank 0; expected 32"),
        ("zero2_step", takes_all_at_once, "in 2 parts: after step 1, rank 0 holds "),
        ("zero2_step", zero1.step, "between steps rank 0 keeps 32 bytes of gradients, not 16"),
        ("zero3_step", shard_is_a_view, "between steps rank 0 keeps 32 bytes of parameters, not 16"),
        ("zero3_step", zero1.step, "on 2 ranks, 1 layer, 1 step"),
    ],
)
def test_a_mistake_in_a_stage_is_told(name, mistake, said):
    found = graded(mistake, name)
    assert found.state == "does not hold yet"
    assert said in found.complaint
    assert [stage.step for stage in STAGES.values()][1:] == [zero1.step, zero2.step, zero3.step]


# What this library's own text does not solve, nor a text that does a little less.


def flat(comm, chunks, per_host, reduce=np.add):
    ring.all_reduce(comm, chunks, reduce)


@pytest.mark.parametrize(
    ("name", "mistake", "said", "earned"),
    [
        ("reduce_scatter_left", ring.reduce_scatter, "on 4 ranks: rank 0, chunk 0: added as (((g1 + g2)", 5),
        ("reduce_scatter_elsewhere", ring.reduce_scatter, "on 2 ranks: rank 0, chunk 1: g1 is missing", 0),
        ("all_reduce_two_level", flat, "6 chunks to other hosts; 2 are enough", 5),
        ("zero2_each_part_step", zero2.step, "after step 1, rank", 0),
        ("zero3_kept_step", zero3.step, "bytes sent are not the formula's", 7),
        ("fsdp_step", zero3.step, "messages; ", 8),
        ("fsdp_step", solutions.zero3_kept_step, "bytes sent are not", 6),
    ],
)
def test_what_is_no_solution_of_a_variant_loses_points(name, mistake, said, earned):
    found = graded(mistake, name)
    assert found.state == "does not hold yet"
    assert said in found.complaint, found.complaint
    assert found.earned == earned < found.points, [(item.says, item.state, item.complaint) for item in found.items]


# The file and the command.


def written(folder, text):
    file = folder / "mine.py"
    file.write_text(text)
    return str(file)


def run_command(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args(arguments))


@pytest.mark.parametrize("skeleton", SKELETONS, ids=lambda path: path.name)
def test_skeletons_ask_for_exercises_and_hold_no_solution(skeleton):
    text = skeleton.read_text()
    assert text.count("raise NotImplementedError") == len(exercises_in(str(skeleton)))
    assert grade_separately(str(skeleton), exercises_in(str(skeleton))[-1]).state == "not yet written"


def test_skeletons_ask_for_every_exercise():
    assert [name for skeleton in SKELETONS for name in exercises_in(str(skeleton))] == list(EXERCISES)


def test_the_verbs_that_a_skeleton_speaks_of_are_there():
    spoken_of = re.findall(r"replica\.(\w+)", SKELETONS[2].read_text() + SKELETONS[4].read_text())
    known = {*dir(Replica), *(field.name for field in dataclasses.fields(Replica))}
    assert len(spoken_of) > 10
    assert set(spoken_of) <= known


def test_the_command_shows_grades_and_writes_them(tmp_path, capsys):
    file = written(tmp_path, """
from zerosim.collectives import ring
print("a learner's own words")
all_gather = ring.all_gather
def reduce_scatter(comm, chunks, reduce=None):
    print(comm.rank)
def all_reduce(comm, chunks):
    raise NotImplementedError
""")
    assert run_command(file, "--json", str(tmp_path / "grades.json")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "✗ reduce_scatter does not hold yet, 0 of 13 points"
    assert lines[1].startswith("    ✗ 0/2 every contribution arrives at its place, once, on 1, 2, 4 and 8 ranks")
    assert "✓ all_gather holds, 11 of 11 points" in lines
    assert any(line.startswith("    ✓ 1/1 all_gather_is_broadcast_after_gather: ") for line in lines)
    printed = lines.index("    it prints")
    assert sorted(lines[printed + 1 : printed + 3]) == ["      │ 0", "      │ 1"]
    assert lines[-2:] == [
        "· all_reduce not yet written: line 8 still raises NotImplementedError",
        "1 of 3 hold, 11 of 39 points. Next: reduce_scatter."]
    document = json.loads((tmp_path / "grades.json").read_text())
    assert (document["schema"], document["passed"]) == ("zerosim.grade/1", False)
    assert [each["state"] for each in document["functions"]] == ["does not hold yet", "holds", "not yet written"]
    assert [each["earned"] for each in document["functions"]] == [0, 11, 0]
    assert {item["state"] for item in document["functions"][0]["items"][1:]} == {"not asked"}


def test_what_is_written_and_holds_passes(tmp_path):
    file = written(tmp_path, """
from zerosim.collectives import tree
broadcast = tree.broadcast
def reduce(comm, vector, root): raise NotImplementedError
""")
    assert run_command(file) == 0


def test_nothing_written_does_not_pass(tmp_path):
    assert run_command(written(tmp_path, "def all_gather(comm, chunks): raise NotImplementedError")) == 1


def test_what_never_ends_is_ended(tmp_path):
    file = written(tmp_path, "def all_gather(comm, chunks):\n    while True: pass\n")
    found = grade_separately(file, "all_gather", patience_seconds=2)
    assert found.state == "does not end"
    assert found.complaint.startswith("still busy after 2 seconds")


BUSY = """\
Timeout (0:01:00)!
Thread 0x1 (most recent call first):
  File "{local}", line 246 in _wait
  File "{file}", line 9 in all_gather
Thread 0x2 (most recent call first):
  File "numpy.py", line 1 in add
  File "{file}", line 4 in added
  File "{file}", line 2 in all_gather
"""


def test_what_never_ends_is_told_with_its_line(tmp_path):
    file = written(tmp_path, "def all_gather(comm, chunks):\n    while comm:\n        1\n        added()\n")
    told = BUSY.format(local=local.__file__, file=file)
    assert busy_line(told, file) == 4
    assert still_busy(60, file, told) == (
        "still busy after 60 seconds, in line 4: the loop of line 2, while comm, does not end: only break or return "
        "can end it, and neither is reached")
    assert still_busy(60, file, "") == "still busy after 60 seconds: look for a loop that never ends"
    asleep = written(tmp_path, "def all_gather(comm, chunks):\n    time.sleep(9)\n")
    linecache.checkcache(asleep)
    told = BUSY.format(local=local.__file__, file=asleep).replace("line 4", "line 2")
    assert still_busy(60, asleep, told) == "still busy after 60 seconds, in line 2: time.sleep(9) has not returned"


def test_an_exception_without_words_is_told_by_its_name():
    assert raised(MemoryError(), "mine.py") == "MemoryError"
    assert raised(AssertionError(), "mine.py") == "AssertionError: an assertion does not hold"


@pytest.mark.parametrize(("words", "told"), [("", ""), (r"first\nlast\n", " last")])
def test_what_ends_its_process_is_told_and_what_it_said_last(tmp_path, words, told):
    ends = f"os.write(2, b'{words}'), os.kill(os.getpid(), 9)"
    file = written(tmp_path, f"import os\ndef all_gather(comm, chunks): {ends}\n")
    assert grade_separately(file, "all_gather").complaint == f"its process was ended by SIGKILL{told}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "mine.py:1:1: has no function to grade; name it one of reduce_scatter"),
        ("from functools import reduce", "has no function to grade"),
        ("\n  def f(", "mine.py:2:"),
        ("\0", "mine.py:1:1: "),
    ],
)
def test_files_without_exercises_are_refused(tmp_path, text, said):
    with pytest.raises(ScenarioError) as refused:
        run_command(written(tmp_path, text))
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_files_that_cannot_be_imported_or_are_not_there_are_refused(tmp_path):
    file = written(tmp_path, "import nowhere\ndef all_gather(comm, chunks): pass\n")
    with pytest.raises(ScenarioError, match=r"mine.py:1:1: cannot be imported: ModuleNotFoundError"):
        run_command(file)
    with pytest.raises(ScenarioError, match="cannot be read"):
        run_command(str(tmp_path / "nowhere.py"))


FORGED = 'b\'{"function": "all_gather", "state": "holds", "held": [], "complaint": null}\''
FORGERS = {
    "standard output": f"os.write(1, {FORGED})", "every descriptor": f"[write(each, {FORGED}) for each in range(64)]",
    "stray bytes": "[write(each, b'x') for each in range(64)]", "nothing left": "os.closerange(3, 256)",
}


@pytest.mark.parametrize(("forger", "end"), [
    ("standard output", "os.kill(os.getpid(), 9)"), ("every descriptor", "os.kill(os.getpid(), 9)"),
    ("stray bytes", "None"), ("nothing left", "None"),
])
def test_nobody_is_believed_who_speaks_for_the_examiner(tmp_path, forger, end):
    file = written(tmp_path, f"""\
import os
def write(descriptor, words):
    try:
        os.write(descriptor, words)
    except OSError:
        pass
def all_gather(comm, chunks):
    {FORGERS[forger]}
    {end}
""")
    found = grade_separately(file, "all_gather")
    assert found.state == "does not hold yet"
    assert ("its process " in found.complaint) == (end != "None" or forger == "nothing left")


ORPHAN = """
import os
def all_gather(comm, chunks):
    if not os.fork():
        os.setsid()
    while True: pass
"""


def test_who_ends_the_grading_ends_the_examination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, ORPHAN)
    with subprocess.Popen([sys.executable, "-m", "zerosim", "grade", "mine.py"], stdout=subprocess.DEVNULL) as grading:
        until(lambda: len(running(str(tmp_path / "mine.py"))) >= 2)
        grading.send_signal(signal.SIGTERM)
        assert grading.wait(60) == -signal.SIGTERM
    until(lambda: not running(str(tmp_path / "mine.py")))


def running(words):
    """The processes of the examination of a file, without their guard."""
    found = []
    for told in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = told.read_text()
            found += [told.parent.name] * (words in line and "grading.examination\0" in line)
    return found


def until(done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_folder_without_exercises_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no file in this folder has an exercise"):
        run_command(str(tmp_path))


def test_without_hypothesis_proofs_are_asked_and_laws_say_how(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    for name in [name for name in sys.modules if name.startswith("zerosim.testing")]:
        monkeypatch.delitem(sys.modules, name)
    found = graded(ring.all_reduce, "all_reduce")
    assert (found.state, found.complaint, found.earned) == ("holds so far", None, 9)
    assert found.items[-1].complaint == f"needs Hypothesis: {sys.executable} -m pip install 'hypothesis>=6.100'"
    assert sum(item.points for item in found.items) == found.points
    assert graded(zero1.step, "zero1_step").state == "holds"


def test_of_much_that_is_printed_the_first_lines_are_shown():
    def talks(comm, chunks):
        for number in range(20):
            print("line", number)

    printed = graded(talks, "all_gather").printed
    assert printed[:2] == ["line 0", "line 1"]
    assert len(printed) == 13
    assert printed[-1].startswith("… and ")
    assert printed[-1].endswith(" lines more")


def test_what_is_not_written_is_told_without_being_run(tmp_path):
    file = written(tmp_path, '''
def all_gather(comm, chunks):
    """Words."""
    raise NotImplementedError("yet")
def reduce(comm, vector, root, reduce=None):
    print("begun")
    raise NotImplementedError
''')
    assert (unwritten(file, "all_gather"), unwritten(file, "reduce"), unwritten(file, "gone")) == (4, None, None)
    assert grade_separately(file, "reduce").state == "not yet written"


@pytest.mark.parametrize(("result", "said"), [
    ((1, 2, 3), "split_pair must return four arrays: y, ∂L/∂x, ∂L/∂up, ∂L/∂down"),
    (4 * (np.zeros((3, 5)),), "∂L/∂x has shape (3, 5); it must have (3, 4)")])
def test_results_of_split_pair_that_are_not_its_arrays_are_named(result, said):
    def split_pair(all_reduce, x, up, down, upstream):
        return result

    assert said in grade(split_pair, "split_pair", CLAIMS["split_pair"], __file__).complaint
