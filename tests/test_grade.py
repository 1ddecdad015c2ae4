"""Grading: right solutions hold, typical mistakes are found and told, and nothing a learner writes hangs it."""

import argparse
import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from zerosim.collectives import naive, ring, tree
from zerosim.comm import left, right
from zerosim.commands import grade as command
from zerosim.errors import ScenarioError
from zerosim.grading.claims import CLAIMS
from zerosim.grading.examination import grade
from zerosim.grading.exercises import EXERCISES, exercises_in, grade_apart
from zerosim.stages import STAGES, zero1, zero2, zero3
from zerosim.stages.replica import Replica
from zerosim.worlds.launcher import state_of

SKELETONS = sorted((Path(__file__).parents[1] / "docs" / "exercises").glob("*.py"))

RIGHT = {
    "reduce_scatter": ring.reduce_scatter, "all_gather": ring.all_gather, "all_reduce": ring.all_reduce,
    "broadcast": tree.broadcast, "reduce": tree.reduce,
    "zero1_step": zero1.step, "zero2_step": zero2.step, "zero3_step": zero3.step,
}


def graded(function, name):
    return grade(function, name, CLAIMS[name], __file__)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_holds(name):
    found = graded(RIGHT[name], name)
    assert (found.state, found.complaint) == ("holds", None)
    assert len(found.held) >= 2


def walk(comm, chunks, first, steps, reduce=None, to=right, source=left, skip=()):
    """Once around, from chunk `first` on."""
    for step in range(steps):
        if comm.rank not in skip:
            comm.exchange(chunks[(first - step) % comm.size], to=to(comm),
                          into=chunks[(first - step - 1) % comm.size], source=source(comm), reduce=reduce)


def own_chunk_first(comm, chunks, reduce=np.add):
    walk(comm, chunks, comm.rank, comm.size - 1, reduce)


def last_step_forgotten(comm, chunks, reduce=np.add):
    walk(comm, chunks, comm.rank - 1, comm.size - 2, reduce)


def modulus_off_by_one(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step - 1) % (comm.size + 1)], to=right(comm),
                      into=chunks[(comm.rank - step - 2) % (comm.size + 1)], source=left(comm), reduce=reduce)


def wrong_neighbour(comm, chunks, reduce=np.add):
    walk(comm, chunks, comm.rank - 1, comm.size - 1, reduce, to=left, source=right)


def rank_0_skipped(comm, chunks, reduce=np.add):
    walk(comm, chunks, comm.rank - 1, comm.size - 1, reduce, skip=[0])


def send_before_receive(comm, chunks, reduce=np.add):
    for step in range(comm.size - 1):
        comm.send(chunks[(comm.rank - step - 1) % comm.size], to=right(comm))
        comm.recv(into=chunks[(comm.rank - step - 2) % comm.size], source=left(comm), reduce=reduce)


def reduction_forgotten(comm, chunks, reduce=np.add):
    walk(comm, chunks, comm.rank - 1, comm.size - 1)


def by_rank_0(comm, chunks, reduce=np.add):
    naive.reduce_scatter(comm, chunks, reduce)


def second_half_missing(comm, chunks, reduce=np.add):
    ring.reduce_scatter(comm, chunks, reduce)


def root_tells_all(comm, vector, root):
    naive.broadcast(comm, vector, root)


def root_is_always_0(comm, vector, root):
    tree.broadcast(comm, vector, 0)


@pytest.mark.parametrize(
    ("name", "mistake", "said"),
    [
        ("reduce_scatter", own_chunk_first, "right on 1 rank, but on 2 ranks: rank 0, chunk 0: g1 is missing"),
        ("reduce_scatter", last_step_forgotten, "on 2 ranks: rank 0, chunk 0: g1 is missing; it holds g0"),
        ("reduce_scatter", modulus_off_by_one, "IndexError: chunk 2 of 2 in line "),
        ("reduce_scatter", wrong_neighbour, "right on 2 ranks, but on 3 ranks: rank "),
        ("reduce_scatter", rank_0_skipped, "no rank can go on: rank 1 waits for a message from rank 0, which has"),
        ("reduce_scatter", send_before_receive, "on 2 ranks: with sends that wait for their receivers"),
        ("reduce_scatter", reduction_forgotten, "on 2 ranks: rank 0, chunk 0: g0 is missing; it holds g1"),
        ("reduce_scatter", by_rank_0, "not so: every chunk is added in the order that is declared"),
        ("all_reduce", second_half_missing, "on 2 ranks: rank 0, chunk 1: g1 is missing"),
        ("all_gather", ring.reduce_scatter, "on 2 ranks: rank 0, chunk 0: a place that nobody filled"),
        ("broadcast", root_tells_all, "on 4 ranks from root 0 it takes 3 rounds, where 2 are enough"),
        ("broadcast", root_is_always_0, "on 2 ranks: with root 1: rank 0, chunk 0: g1 is missing"),
    ],
)
def test_a_mistake_in_a_collective_is_told(name, mistake, said):
    found = graded(mistake, name)
    assert found.state == "does not hold yet"
    assert said in found.complaint


@pytest.mark.parametrize("size", [1, 2, 8])
def test_what_a_function_raises_on_any_number_of_ranks_is_raised_before_the_first_claim(size):
    def raises(comm, chunks):
        if comm.size == size:
            raise ZeroDivisionError
        ring.all_gather(comm, chunks)

    with pytest.raises(ZeroDivisionError):
        next(CLAIMS["all_gather"](raises))


def test_the_first_claim_says_on_how_many_ranks():
    assert next(CLAIMS["all_gather"](ring.all_gather)).says == (
        "everything arrives where it belongs, once, on 1 to 8 ranks")


# Stages that go wrong: ours, with some verbs altered.


class Altered:
    """A replica some of whose verbs do something else."""

    def __init__(self, replica, **verbs):
        self.__dict__.update(verbs, replica=replica)

    def __getattr__(self, name):
        return getattr(self.replica, name)


def gather_forgotten(replica, batch):
    return zero1.step(Altered(replica, publish=lambda unit, full: None), batch)


def unreduced_gradient(replica, batch):
    return zero1.step(Altered(replica, reduce=lambda unit, gradient: gradient), batch)


def all_reduced(replica, batch):
    def everywhere(unit, gradient):
        return replica.all_gather(unit, replica.reduce_scatter(unit, gradient))

    return zero1.step(Altered(replica, reduce=everywhere), batch)


def loss_forgotten(replica, batch):
    zero1.step(replica, batch)


def shard_is_a_view(replica, batch):
    loss = zero3.step(replica, batch)
    for unit, shard in replica.state.weights.items():
        full = replica.full(unit, "parameters")
        replica.own(full)[:] = shard
        replica.state.weights[unit] = replica.own(full)
    return loss


def weights_are_held(replica, batch):
    held = []

    def gather(unit):
        held.append(replica.gather(unit))
        return held[-1]

    return zero3.step(Altered(replica, gather=gather), batch)


def rank_0_is_late(replica, batch):
    first = replica.units[0]
    return zero2.step(replica, batch) if replica.comm.rank else replica.all_gather(first, replica.state.weights[first])


@pytest.mark.parametrize(
    ("name", "mistake", "said"),
    [
        ("zero1_step", gather_forgotten, "on 2 ranks, 1 layer, 1 step: after step 1, rank 1 holds layers.0.weight["),
        ("zero1_step", unreduced_gradient, "on 2 ranks, 1 layer, 1 step: after step 1, rank "),
        ("zero1_step", loss_forgotten, "returned None: return the loss"),
        ("zero1_step", all_reduced,
         "on 2 ranks, 1 layer, 1 step: bytes sent are not the formula's: 48 of rank 0, where 32 are due"),
        ("zero2_step", zero1.step, "1 step: between steps rank 0 keeps 32 bytes of gradients, not 16"),
        ("zero3_step", shard_is_a_view, "between steps rank 0 keeps 32 bytes of parameters, not 16"),
        ("zero3_step", weights_are_held, "are enough: del what you no longer use"),
        ("zero3_step", zero1.step, "on 2 ranks, 1 layer, 1 step"),
        ("zero2_step", rank_0_is_late, "on 1 rank, 1 layer, 1 step"),
    ],
)
def test_a_mistake_in_a_stage_is_told(name, mistake, said):
    found = graded(mistake, name)
    assert found.state == "does not hold yet"
    assert said in found.complaint
    assert [stage.step for stage in STAGES.values()][1:] == [zero1.step, zero2.step, zero3.step]


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
    assert grade_apart(str(skeleton), exercises_in(str(skeleton))[-1]).state == "not yet written"


def test_skeletons_ask_for_every_exercise():
    assert [name for skeleton in SKELETONS for name in exercises_in(str(skeleton))] == list(EXERCISES)


def test_the_verbs_that_a_skeleton_speaks_of_are_there():
    spoken_of = re.findall(r"replica\.(\w+)", SKELETONS[-1].read_text())
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
    assert lines[0] == "✗ reduce_scatter does not hold yet"
    assert "✓ all_gather holds" in lines
    assert lines[-2:] == ["· all_reduce not yet written", "1 of 3 hold. Next: reduce_scatter."]
    document = json.loads((tmp_path / "grades.json").read_text())
    assert (document["schema"], document["passed"]) == ("zerosim.grade/1", False)
    assert [each["state"] for each in document["functions"]] == ["does not hold yet", "holds", "not yet written"]


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
    found = grade_apart(file, "all_gather", patience_seconds=2)
    assert (found.state, found.complaint) == (
        "does not end", "still busy after 2 seconds: look for a loop that never ends"
    )


@pytest.mark.parametrize(("words", "told"), [("", ""), (r"first\nlast\n", " last")])
def test_what_ends_its_process_is_told_and_what_it_said_last(tmp_path, words, told):
    ends = f"os.write(2, b'{words}'), os.kill(os.getpid(), 9)"
    file = written(tmp_path, f"import os\ndef all_gather(comm, chunks): {ends}\n")
    assert grade_apart(file, "all_gather").complaint == f"its process ended with code -9{told}"


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
    found = grade_apart(file, "all_gather")
    assert found.state == "does not hold yet"
    assert ("ended with code" in found.complaint) == (end != "None" or forger == "nothing left")


ORPHAN = """
import pathlib, os
def all_gather(comm, chunks):
    pathlib.Path("pid.part").write_text(str(os.getpid()))
    os.rename("pid.part", "pid")
    while True: pass
"""


def test_who_ends_the_grading_ends_the_examination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, ORPHAN)
    with subprocess.Popen([sys.executable, "-m", "zerosim", "grade", "mine.py"], stdout=subprocess.DEVNULL) as grading:
        until((tmp_path / "pid").exists)
        examined = int((tmp_path / "pid").read_text())
        grading.send_signal(signal.SIGTERM)
        assert grading.wait(60) == -signal.SIGTERM
    until(lambda: state_of(str(examined)) in "ZX")


def until(done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
