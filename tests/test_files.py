"""Files of others: special ones are named at once, what is written is there as a whole or not at all."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.core import files
from zerosim.core.errors import ZerosimError
from zerosim.core.files import open_regular, read_at_most, replace

SMALL = "[world]\nranks = 2\n[model]\nhidden = [6]\n[train]\nsteps = 1\nmicro_batch = 2\nmicro_batches = 2\n"
SILENT = ["--progress", "none"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.05)
    Path("small.toml").write_text(SMALL)
    Path("mine.py").write_text("def all_gather(comm, chunks): raise NotImplementedError\n")


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)


SPECIAL = {
    "pipe": os.mkfifo, "folder": os.mkdir, "socket": a_socket, "zeros": lambda path: os.symlink("/dev/zero", path),
    "loop": lambda path: os.symlink(path, path), "nothing": lambda path: None,
}
READERS = {
    "scenario": ["run", "a.py"], "plan": ["plan", "a.py"], "data": ["run", "small.toml", "--set", "data.source=a.py"],
    "first weights": ["run", "small.toml", "--set", "model.weights=a.py"], "exercise": ["check", "a.py"],
    "proof": ["prove", "a.py:all_gather"], "drawing": ["show", "a.py:all_gather"],
    "outcome": ["report", "a.py", "--html", "b.html"], "resume": ["run", "small.toml", "--resume", "a.py"],
    "checkpoint": ["checkpoint", "a.py"],
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_refused_in_one_line(kind, command, capsys):
    SPECIAL[kind]("a.py")
    assert "a.py" in refused(capsys, *READERS[command], *(SILENT if READERS[command][0] == "run" else []))


def test_a_pipe_is_read_to_its_end_and_no_further_than_it_may(monkeypatch):
    monkeypatch.setattr(files, "PIPE_SECONDS", 600.0)
    os.mkfifo("pipe")

    def write():
        with open("pipe", "wb", buffering=0) as pipe:
            for piece in (b"abc", b"def"):
                pipe.write(piece)

    for most, found in ((100, b"abcdef"), (5, b"abcdef"), (4, b"abcde")):
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        assert read_at_most("pipe", most) == found
        writer.join(60)


def test_a_pipe_that_nobody_fills_is_not_waited_for():
    os.mkfifo("pipe")
    with pytest.raises(TimeoutError, match="nobody wrote all of it"):
        read_at_most("pipe", 5)


def test_an_outcome_that_is_too_large_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("zerosim.commands.report.MOST_BYTES", 100)
    Path("o.json").write_text("[" + "1," * 100 + "1]")
    assert main(["report", "o.json", "--html", "o.html"]) == 2
    assert capsys.readouterr().err == "zerosim: o.json has more than 100 bytes, too many for an outcome\n"


def test_words_where_an_outcome_has_a_number_are_refused(capsys):
    assert main(["run", "small.toml", "--json", "o.json", *SILENT]) == 0
    outcome = json.loads(Path("o.json").read_text())
    outcome["scenario"]["train"]["steps"] = "many"
    Path("o.json").write_text(json.dumps(outcome))
    capsys.readouterr()
    assert main(["report", "o.json", "--picture", "sent=s.svg"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not a complete outcome of zerosim run --json (ValueError" in line


# Outputs


REFUSED = {
    "/proc/x.json": "cannot write '/proc/x.json': no such file or directory; name a file in a folder that exists",
    "x" * 300: "file name too long; name a file",
    "no/such": "no such file or directory; name a file in a folder that exists",
    "mine.py/x": "not a directory; name a file in a folder that exists",
    ".": "is a directory",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_name_that_cannot_be_written_is_found_before_anything_runs(path, capsys):
    assert REFUSED[path] in refused(capsys, "run", "small.toml", "--json", path)


INPUTS = {
    "the scenario": ["run", "small.toml", "--json", "small.toml"],
    "its link": ["run", "small.toml", "--json", "link.toml"],
    "the data": ["run", "small.toml", "--set", "data.source=d.npz", "--weights", "d.npz"],
    "first weights": ["run", "small.toml", "--set", "model.weights=w", "--weights", "w"],
    "the plan's": ["plan", "small.toml", "--trace", "small.toml"],
    "other arguments": ["plan", "--megatron-args", "o.json", "--write", "megatron=o.json"],
    "learner's work": ["check", "mine.py", "--json", "./mine.py"],
    "the proved": ["prove", "mine.py:all_gather", "--json", "mine.py"],
    "the drawn": ["show", "mine.py:all_gather", "--svg", "mine.py"],
    "an outcome": ["report", "o.json", "o.json", "--html", "o.json"],
    "a picture": ["report", "o.svg", "--picture", "kept=o.svg"],
    "a collective": ["run", "c.toml", "--json", "mine.py"],
    "a checkpoint": ["checkpoint", "k", "--json", "k/ddp/step-00000001.safetensors"],
}


@pytest.fixture
def inputs(here):
    os.symlink("small.toml", "link.toml")
    Path("c.toml").write_text('kind = "collective"\n[[program]]\ncalls = ["mine.py:all_gather"]\n')
    import numpy as np

    np.savez("d.npz", x=np.zeros((4, 3), np.float32), y=np.array([0, 1, 0, 1]))
    assert main(["run", "small.toml", "--json", "o.json", "--weights", "w", "--checkpoint", "k", *SILENT,
                 "--set", "parallel.stages=[\"ddp\"]"]) == 0
    Path("o.svg").write_bytes(Path("o.json").read_bytes())
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_nothing_is_written_over_what_is_read(inputs, capsys):
    capsys.readouterr()
    for what, command in INPUTS.items():
        assert main(command) == 2, what
        (line,) = capsys.readouterr().err.splitlines()
        assert told(line), what
    assert {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()} == inputs


def told(line):
    return "an input of this command; name another file" in line or "is a checkpoint, which is never changed" in line


def test_standard_output_is_no_file_to_write_beside(capsys):
    with open("all", "w") as out:
        done = subprocess.run([sys.executable, "-m", "zerosim", "show", "--list", "--json", "all"], stdout=out,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "'all' is where standard output is redirected to; name another file" in done.stderr


def pieces_and(error):
    yield b"new"
    raise error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZerosimError()])
def test_what_fails_half_way_leaves_the_old_one(error):
    Path("o").write_bytes(b"old")
    with pytest.raises(type(error)):
        replace("o", pieces_and(error))
    assert Path("o").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["mine.py", "o", "small.toml"]


def test_a_disk_that_is_full_leaves_every_old_file(monkeypatch, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    for name in ("j", "w", "t", "r"):
        Path(name).write_bytes(b"old")
    run = ["run", "small.toml", *SILENT, "--set", "parallel.stages=['ddp']"]
    for command, flag, name in (
        (run, "--json", "j"), (run, "--weights", "w"), (run, "--trace", "t"), (["show", "tree.reduce"], "--html", "r"),
    ):
        assert main([*command, flag, name]) == 3
        assert capsys.readouterr().err == f"zerosim: cannot write {name}: No space left on device\n"
        assert Path(name).read_bytes() == b"old"
    assert sorted(os.listdir()) == ["j", "mine.py", "r", "small.toml", "t", "w"]


def test_a_new_one_is_whole_before_it_has_the_name(monkeypatch):
    Path("o").write_bytes(b"old")
    os.chmod("o", 0o600)
    seen = []

    def renamed(beside, place):
        seen.append((Path(beside).read_bytes(), Path(place).read_bytes()))
        os.rename(beside, place)

    monkeypatch.setattr(files.os, "replace", renamed)
    replace("o", [b"ne", b"w"])
    assert seen == [(b"new", b"old")]
    assert (Path("o").read_bytes(), os.stat("o").st_mode & 0o777) == (b"new", 0o600)


@pytest.mark.parametrize(("make", "said"), [
    (os.mkfifo, "nobody read this pipe"), (a_socket, "No such device or address"),
    (lambda path: os.symlink("/dev/full", path), "No space left on device"),
])
def test_an_output_that_is_no_file_is_written_to_or_refused(make, said, capsys):
    make("o")
    assert main(["show", "ring.all_gather", "--json", "o"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"zerosim: cannot write o: {said}")


def test_only_a_regular_file_is_opened():
    with open_regular("small.toml") as file:
        assert file.read().decode() == SMALL
    os.mkfifo("pipe")
    with pytest.raises(OSError, match="not a regular file"), open_regular("pipe"):
        pass
