"""What does not end is told with its line and its loop, and is ended; no test here waits for a time to pass."""

import os
import threading
import time

import numpy as np
import pytest

import zerosim as zs
from zerosim.commands.cli import main
from zerosim.core.errors import Runaway
from zerosim.core.parts.loading import load_file
from zerosim.core.terms import MOST_CONTRIBUTIONS, Sum, Term, leaves
from zerosim.proofs import proof
from zerosim.proofs.ended import endless_loop
from zerosim.show import recorded
from zerosim.worlds import local
from zerosim.worlds.call_stack import CodePlace
from zerosim.worlds.local import StillRunning, spawn

GATHER = """\
from zerosim.core.comm import left, right


def my_all_gather(comm, chunks):
    step = 0
    while step < comm.size - 1:
        outgoing, incoming = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        {body}
"""
STEP = """\
from zerosim.extend import stage
@stage(sharded=("optimizer",))
def zero1_step(replica, batch):
    number = 0
    while number < 1:
        number *= 2
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def soon(monkeypatch):
    """Whatever does not end is looked at soon; what it is told does not depend on when."""
    monkeypatch.setattr(local, "TURN_SECONDS", 0.2)


@pytest.mark.parametrize("command", ["prove", "show"])
def test_a_loop_without_messages_is_told_with_its_line(command, soon, capsys):
    write("mine.py", GATHER.format(body="step -= 1"))
    assert main([command, "mine.py:my_all_gather", "--ranks", "2"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "still ran after 0.2 s of computing without a message, in line" in printed
    assert "the loop of line 6, while step < comm.size - 1, does not end: step is -" in printed


def test_more_ranks_are_not_tried_where_it_would_wait_again(soon, capsys):
    write("mine.py", GATHER.format(body="pass"))
    assert main(["prove", "mine.py:my_all_gather", "--ranks", "1..4"]) == 1
    assert "not tried on 3, 4 ranks: it does not end" in capsys.readouterr().out


def test_the_loop_of_a_stage_is_told_in_its_grade(soon):
    write("mine.py", STEP)
    said = str(zs.check(load_file("mine.py").zero1_step))
    assert "still ran after" in said
    assert "why: the loop of line 5, while number < 1, does not end: number is 0" in said


def test_the_loop_of_a_stage_is_told_when_it_is_shown(soon, capsys):
    write("mine.py", STEP)
    assert main(["show", "mine.py:zero1_step", "--ranks", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the loop of line 5, while number < 1, does not end: number is 0" in line


def test_every_time_that_a_users_code_may_take_is_limited():
    limited = (proof, recorded)
    assert min(local.TURN_SECONDS, *(module.LIMIT_SECONDS for module in limited)) > 0


def test_a_rank_that_loops_is_ended_and_leaves_no_thread(soon):
    threads = []

    def program(comm):
        threads.append(threading.current_thread())
        while comm.rank == 1:
            pass

    with pytest.raises(StillRunning) as told:
        spawn(program, 3, limit_seconds=60)
    assert told.value.places[-1].file == os.path.abspath(__file__)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_who_communicates_may_compute_for_longer_than_one_turn(monkeypatch):
    """Computing is counted from the last message on, by whichever rank."""
    monkeypatch.setattr(local, "TURN_SECONDS", 0.3)

    def program(comm):
        arrived, began = np.ones(1), time.process_time()
        while np.any(arrived):
            comm.exchange(np.array([time.process_time() - began < 0.6]) * 1.0, to=0, into=arrived, source=0)

    spawn(program, 1, limit_seconds=60)


def test_sums_that_double_in_every_round_are_ended_soon():
    symbol = Term(0)
    while symbol.count < MOST_CONTRIBUTIONS if isinstance(symbol, Sum) else True:
        symbol = symbol + symbol
    with pytest.raises(Runaway, match="the same ones again and again"):
        symbol + Term(0)
    assert sum(1 for _ in leaves(symbol)) == symbol.count == MOST_CONTRIBUTIONS
    assert symbol == Sum(symbol.left, symbol.right)


@pytest.mark.parametrize(("text", "said"), [
    ("while x < y:\n  z()\n", "the loop of line 1, while x < y, does not end: x is 1, y is 2"),
    ("while True:\n  z()\n", "the loop of line 1, while True, does not end"), ("x = 1\n", None)])
def test_what_a_loop_asks(text, said):
    write("loops.py", text)
    error = StillRunning("busy", [CodePlace("loops.py", 2, {"x": 1, "y": 2}), CodePlace("numpy.py", 1, {})])
    assert endless_loop(error, "loops.py") == said
    assert endless_loop(error, "gone.py") is None


def write(name, text):
    with open(name, "w") as file:
        file.write(text)
