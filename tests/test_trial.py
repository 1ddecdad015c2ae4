"""What practice does to a run: full disks, folders that vanish, hang-ups, threads, event loops, forks, -OO."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

import zerosim as zs
from tests.mpi.launch import mpirun
from zerosim.commands.cli import main
from zerosim.training.state_file import steps_in

SMALL = {"world.ranks": 2, "train.micro_batches": 4, "train.steps": 3, "check.test_accuracy": 0}
FLAGS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
COMMAND = ["run", "zero3", *FLAGS, "--progress", "none"]


@pytest.fixture
def full_disk(tmp_path):
    """A folder that has room for two checkpoints and not for three."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(tmp_path)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_is_one_line_and_leaves_whole_checkpoints(full_disk, capsys):
    assert main([*COMMAND, "--set", "train.steps=6", "--checkpoint", str(full_disk / "kept")]) == 3
    said = capsys.readouterr().err
    assert "no space left on device; the previous checkpoint is complete\n" in said
    assert said.count("\n") == 1
    assert steps_in(full_disk / "kept" / "zero2")
    assert list(full_disk.glob("kept/*/.step-*")) == []


@pytest.mark.parametrize("flag", ["--json", "--trace", "--weights"])
def test_an_outcome_that_has_no_room_is_one_line_and_leaves_no_file(flag, full_disk, capsys):
    (full_disk / "fill").write_bytes(bytes(96 * 1024))
    assert main([*COMMAND, flag, str(full_disk / "out")]) == 3
    assert capsys.readouterr().err == f"zerosim: cannot write {full_disk / 'out'}: No space left on device\n"
    assert os.listdir(full_disk) == ["fill"]


@pytest.mark.mpi
def test_a_rank_that_quits_ends_all_and_leaves_nothing():
    before = set(os.listdir("/dev/shm"))
    program = (
        "import os, signal, sys, numpy as np, zerosim as zs\n"
        "comm = zs.connect()\n"
        "print(*(line.split('/dev/shm/')[1] for line in open('/proc/self/maps') if '/dev/shm/' in line), flush=True)\n"
        "if comm.rank == 1: os.kill(os.getpid(), signal.SIGQUIT)\n"
        "zs.all_reduce(comm, np.zeros(3))\n"
    )
    done = mpirun(2, ["-c", program], timeout=60)
    assert done.returncode != 0
    mapped = {words[0] for words in map(str.split, done.stdout.splitlines()) if words}
    assert not mapped & (set(os.listdir("/dev/shm")) - before)


def test_zs_run_in_threads_in_an_event_loop_and_after_a_fork():
    found = []
    threads = [threading.Thread(target=lambda: found.append(zs.run("zero3", set=SMALL).passed)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [True] * 3

    async def both():
        here = zs.run("zero3", set=SMALL)
        return [here, *await asyncio.gather(*(asyncio.to_thread(zs.run, "zero3", SMALL) for _ in range(2)))]

    assert all(each.passed for each in asyncio.run(both()))
    code = f"import os, zerosim as zs\nchild = os.fork()\nok = zs.run('zero3', set={SMALL!r}).passed\n" \
           "os._exit(not ok) if child == 0 else None\nprint(ok, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120,
                          check=False)
    assert (done.stdout, done.stderr) == ("True 0\n", "")


@pytest.mark.parametrize("command", [
    [*COMMAND, "--json", "out.json"], ["run", "planted_bug"], ["prove", "mine.py:my_all_gather"], ["show", "zero3"],
    ["plan", "mpt_7b", "--set", "model.layers=2"],
], ids=lambda command: command[1])
@pytest.mark.long
def test_without_assertions_and_docstrings_all_is_said_as_with_them(command, tmp_path):
    (tmp_path / "mine.py").write_text("def my_all_gather(comm, chunks):\n    comm.send(chunks[0], to=comm.rank)\n")

    def ended(*flags):
        done = subprocess.run([sys.executable, *flags, "-m", "zerosim", *command], cwd=tmp_path, capture_output=True,
                              text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    assert ended("-OO", "-W", "error") == ended()


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["--version"], ["scenarios"]])
def test_help_that_cannot_be_written_is_an_error(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "zerosim", *command], stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        3, "zerosim: cannot write to standard output: No space left on device\n")
