"""A job is a child that ends with its parent, and leaves nobody behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from zerosim.commands.supervise import run_job
from zerosim.worlds.processes import GONE, children_of, state_of

LEAVES_A_STRAY = "sleep 600 & echo $! > {}; "


def ended(path):
    """Whether the process whose number is there ends, sooner or later."""
    deadline = time.monotonic() + 60
    while state_of(path.read_text().strip()) not in GONE and time.monotonic() < deadline:
        time.sleep(0.01)
    return time.monotonic() < deadline


@pytest.mark.parametrize(("last", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_however_a_launcher_ends_its_children_end_too(last, code, tmp_path):
    before, handlers = children_of(os.getpid()), [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    path = tmp_path / "stray"
    assert run_job(["sh", "-c", LEAVES_A_STRAY.format(path) + last], os.environ) == code
    assert ended(path)
    assert children_of(os.getpid()) <= before
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_other_children_are_left_alone(tmp_path):
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert run_job(["sh", "-c", "exit 0"], os.environ) == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_job_ends_with_whoever_runs_it(number, tmp_path):
    path = tmp_path / "stray"
    job = ["sh", "-c", LEAVES_A_STRAY.format(path) + "wait"]
    runs = f"import os; from zerosim.commands.supervise import run_job; run_job({job}, os.environ)"
    parent = subprocess.Popen([sys.executable, "-c", runs], stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not path.exists() or not path.read_text():
        assert parent.poll() is None, parent.communicate()
        time.sleep(0.01)
    launcher = children_of(parent.pid)
    parent.send_signal(number)
    parent.wait()
    for each in launcher:
        (tmp_path / "launcher").write_text(str(each))
        assert ended(tmp_path / "launcher")
    if number == signal.SIGKILL:  # its launcher was asked to end, and this one asks nobody else to
        os.kill(int(path.read_text()), signal.SIGKILL)
    assert ("KeyboardInterrupt" in parent.communicate()[1]) == (number != signal.SIGKILL)
    assert ended(path)
