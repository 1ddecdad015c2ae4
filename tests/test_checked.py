"""Messages with checksums, and communicators in which faults may strike: worlds as any other, until one does."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conformance import CHECKS
from zerosim.errors import CollectiveError, MessageError
from zerosim.instruments.faults import Faults
from zerosim.instruments.location import Locator
from zerosim.instruments.observed import Observed
from zerosim.scenario.fault import Fault
from zerosim.worlds.board import CHANNELS, Board, BoundedWait
from zerosim.worlds.checked import TRAILER, Checked
from zerosim.worlds.here import Location
from zerosim.worlds.local import spawn
from zerosim.worlds.processes import FROZEN, state_of, time_of


def faulty(comm, *faults):
    return Faults(faults, None, None).around(comm)


def never_struck(comm):
    return faulty(comm, Fault("flip", step=9, collective="all_gather"))


@pytest.mark.parametrize("wrap", [Checked, never_struck, lambda comm: Checked(never_struck(comm))])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_wraps_a_world_conforms(check, wrap):
    for ranks in (1, 2, 4):
        spawn(lambda comm: check(wrap(comm)), ranks)


def carried(change):
    """What arrives of three messages of rank 0 that were changed on their way; or the error."""
    def program(comm):
        if comm.rank == 0:
            kept = []

            class Kept:
                rank, size = 0, 2

                def send(self, outgoing, *, to):
                    kept.append(outgoing.copy())

            checked = Checked(Kept())
            for number in range(3):
                checked.send(np.full(3, number, np.float32), to=1)
            for message in change(kept):
                comm.send(message, to=1)
            return None
        checked, arrived = Checked(comm), []
        for _ in range(3):
            into = np.zeros(3, np.float32)
            checked.recv(into=into, source=0)
            arrived.append(into[0])
        return arrived

    return spawn(program, 2)[1]


def with_bit(message, bit):
    changed = message.copy()
    changed[bit // 8] ^= 1 << bit % 8
    return changed


def test_every_flipped_bit_of_a_message_is_found():
    assert carried(lambda sent: sent) == [0, 1, 2]
    for bit in range(8 * (12 + TRAILER.size)):
        with pytest.raises(MessageError, match=r"rank 1: message 2 from rank 0 came with checksum"):
            carried(lambda sent, bit=bit: [sent[0], with_bit(sent[1], bit), sent[2]])


@pytest.mark.parametrize(("change", "words"), [
    (lambda sent: sent[1:] + sent[:1], "rank 1: message 1 from rank 0 was lost: message 2 arrived instead"),
    (lambda sent: [sent[0], sent[2], sent[2]], "rank 1: message 2 from rank 0 was lost: message 3 arrived instead"),
    (lambda sent: [sent[0], sent[0], sent[1]], "rank 1: message 2 from rank 0 was expected; message 1 arrived again"),
])
def test_what_is_lost_or_doubled_is_named_by_its_number(change, words):
    with pytest.raises(MessageError, match=words):
        carried(change)


def test_another_length_is_the_next_message_or_the_callers_mistake():
    def program(comm, lengths):
        checked = Checked(comm)
        for length in lengths:
            checked.send(np.ones(length), to=0)
        checked.recv(into=np.ones(2), source=0)
        checked.recv(into=np.ones(2), source=0)

    with pytest.raises(CollectiveError, match="rank 0 sent 40 × uint8 to rank 0, which receives it into 32 × uint8"):
        spawn(lambda comm: program(comm, [2, 3]), 1)

    def without_the_second(comm):
        locator = Locator("a row")
        locator.begin(1)
        lossy = faulty(comm, Fault("drop", collective="all_gather", message=2))
        observed = Observed(Checked(lossy), locator)
        send = observed.named("all_gather", observed.send)
        for length in (2, 2, 3):
            send("layers.0", np.ones(length), to=0)
        for _ in range(2):
            observed.recv(into=np.ones(2), source=0)

    lost = "rank 0 in step 1 of a row: message 2 from rank 0 was lost: message 3 arrived"
    with pytest.raises(MessageError, match=lost):
        spawn(without_the_second, 1)


# The board.


@pytest.fixture
def board(tmp_path):
    with open(tmp_path / "board", "w+b") as file:
        yield Board(file.fileno(), ranks=4)


def words_of(board, **keywords):
    return [" ".join(filter(None, done)) for done in board.what_all_do(**keywords)]


def test_the_board_says_of_each_rank_what_it_does(board):
    for rank in range(3):
        board.arrive(rank)
    line, last, second = board.line(0, 0), board.line(0, CHANNELS - 1), board.line(1, 0)
    line.goes_to(Location("all_gather", "layers.0", 2, "Stage III"))
    line.waits(1)
    last.goes_to(Location("reduce_scatter", "x" * 300, 2))
    last.waits(2)
    second.waits(3)
    second.goes_on()
    board.finish(2)
    first, second, *others = words_of(board)
    assert first == "rank 0 waits for a message from rank 1 in the all_gather of layers.0, step 2 of Stage III"
    assert second.startswith("rank 0 waits for a message from rank 2 in the reduce_scatter of xxx")
    assert others == ["rank 1 computes", "rank 2 has finished", "rank 3 is on another host"]
    assert words_of(board, dead=[1])[0] == "rank 1 has died"
    assert set(board.processes) == {0, 1}
    assert not board.is_ending
    board.end()
    assert board.is_ending


def test_who_is_stopped_or_gone_is_seen_by_others(tmp_path, board):
    arrives = (
        "import sys; from zerosim.worlds.board import Board; file = open(sys.argv[1], 'r+b'); "
        "Board(file.fileno(), 4).arrive(0); print('here', flush=True); input()")
    other = subprocess.Popen(
        [sys.executable, "-c", arrives, str(tmp_path / "board")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"here\n"
        assert words_of(board)[0] == "rank 0 computes"
        os.kill(other.pid, signal.SIGSTOP)
        while state_of(str(other.pid)) not in FROZEN:
            time.sleep(0.01)
        assert words_of(board)[0] == "rank 0 is stopped"
    finally:
        other.kill()
        other.communicate()
    assert words_of(board)[0] == "rank 0 has died"


def waited(monkeypatch, board, times):
    """The seconds after which a long wait of a rank ends, whose main thread has taken `times` at each look."""
    now = [0.0]
    monkeypatch.setattr("zerosim.worlds.board.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("zerosim.worlds.board.time_of", lambda process: next(times))
    wait = BoundedWait(board, 300.0)
    while not wait.is_over():
        now[0] += 1.0
    return now[0]


def test_a_deadlock_is_not_that_while_another_thread_than_the_waiting_one_computes(tmp_path, monkeypatch):
    with open(tmp_path / "board", "w+b") as file:
        board = Board(file.fileno(), ranks=1)
    board.arrive(0)
    line = board.line(0, CHANNELS - 1)
    thread = threading.Thread(target=line.waits, args=(0,))
    thread.start()
    thread.join()
    assert waited(monkeypatch, board, map(str, count())) > 300
    assert 60 < waited(monkeypatch, board, repeat("3")) < 65
    line.waits(0)
    assert 60 < waited(monkeypatch, board, map(str, count())) < 65


def test_the_time_of_a_main_thread_grows_while_it_computes():
    before, deadline = time_of(os.getpid()), time.monotonic() + 60
    while time_of(os.getpid()) == before:
        assert time.monotonic() < deadline
    assert [int(each) for each in before.split()] <= [int(each) for each in time_of(os.getpid()).split()]


RANKS = """
import os, sys
from zerosim.worlds.board import Board, Location
file, rank, watched = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
board = Board(file, 2)
if watched:
    from zerosim.worlds.launcher import watch_board
    watch_board(board, None)
else:
    board.arrive(rank)
    board.line(rank, 0).goes_to(Location("all_gather", step=3))
    print("here", flush=True)
    input()
    os.closerange(3, 50)
    input()
"""


def files_of(process):
    """The inodes of those it has open; it may close some while they are looked at."""
    found = set()
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(each.stat().st_ino)
    return found


def test_who_begins_to_die_is_noticed_before_it_has_died(tmp_path):
    """A launcher learns of a death by a file that closes and may have ended the others before that process is gone."""
    with open(tmp_path / "board", "w+b") as file:
        def started(rank, watched=""):
            return subprocess.Popen(
                [sys.executable, "-c", RANKS, str(file.fileno()), str(rank), watched], pass_fds=[file.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        board = Board(file.fileno(), 2)
        everyone = [started(0), started(1)]
        try:
            assert [each.stdout.readline() for each in everyone] == [b"here\n"] * 2
            board.line(0, 0).goes_to(Location("all_gather", step=3))
            board.line(0, 0).waits(1)
            everyone.append(started(0, "watched"))
            life, deadline = board.opened_life(1), time.monotonic() + 60
            while os.fstat(life).st_ino not in files_of(everyone[2]):
                assert everyone[2].poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            os.close(life)
            everyone[1].stdin.write(b"\n")
            everyone[1].stdin.flush()
            said = everyone[2].communicate(timeout=60)[1]
            assert b"in the all_gather, step 3: rank 1 has died; rank 0 waits for a message from rank 1" in said
            assert everyone[1].poll() is None
        finally:
            for each in everyone:
                each.kill()
                each.communicate()
