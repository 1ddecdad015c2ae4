"""How a command ends: exit codes 0, 1, 2, 3 and 130, what it writes where, and that a failed write loses nothing."""

import errno
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console
from safetensors.numpy import load_file

from tests.commands.small import SMALL
from zerosim.commands import run as running
from zerosim.commands.cli import COMMANDS, main
from zerosim.core import files
from zerosim.core.errors import Deadlock, ScenarioError, UsageError

QUIET = ["run", "small.toml", "--progress", "none"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)


def process(*words, **settings):
    """The command in a process of its own."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120} | settings
    return subprocess.run([sys.executable, "-m", "zerosim", *words], check=False, **settings)


def test_a_run_passes_and_writes_progress_to_standard_error_alone():
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert main(["run", "small.toml"]) == 0
    assert out.getvalue().splitlines()[-1] == "PASSED: 4 rows on 2 ranks: every bit equal to one process"
    assert "in this process" in out.getvalue()
    assert "step 2/2" in err.getvalue()
    assert "\x1b" not in out.getvalue() + err.getvalue()


@pytest.mark.parametrize("flag", ["--report", "--weights", "--json"])
def test_a_full_disk_loses_no_verdict(flag, capsys):
    assert main([*QUIET, flag, "/dev/full"]) == 3
    printed = capsys.readouterr()
    assert "PASSED: 4 rows on 2 ranks" in printed.out
    assert "cannot write /dev/full: No space left on device" in printed.err


def test_names_of_rows_are_no_markup_and_a_title_moves_no_cursor(capsys):
    assert main([*QUIET[:2], "--progress", "plain", "--set", r'title="a\u001b[31mb\u009b2J"',
                 "--set", 'variant=[{name="[/bold] [red]x[/red]"}]']) == 0
    printed = capsys.readouterr()
    assert "[/bold] [red]x[/red]" in printed.err
    assert "\x1b" not in printed.out + printed.err


def test_a_long_run_says_how_long_it_will_take(monkeypatch):
    now = iter(range(0, 100, 3))
    monkeypatch.setattr(running, "monotonic", lambda: float(next(now)))
    file = io.StringIO()
    plain = running.Plain(Console(file=file, width=80), trainings=2)
    plain.begin("DDP", 10)
    for step in range(1, 11):
        plain.step(step, 0.5)
    lines = file.getvalue().splitlines()
    assert lines[0].split() == ["DDP", "step", "1/10", "loss", "0.5000"]
    assert [line[13:23] for line in lines] == [f"step {step:2}/10" for step in (1, 3, 5, 6, 8, 10)]
    assert lines[1].endswith("loss 0.5000   15% of all, 51 s left")
    assert not lines[3].endswith("left")


def test_a_live_run_has_a_bar_for_all(monkeypatch):
    live = running.LiveProgress(Console(file=io.StringIO(), width=80), trainings=2)
    for title in ("one process", "DDP"):
        live.begin(title, 3)
        for step in (1, 2, 3):
            live.step(step, 0.5)
    live.end()
    (bar,) = live._bars.tasks
    assert (bar.total, bar.completed, bar.description) == (6, 6, "DDP")


def test_completion_knows_commands_flags_and_scenarios(capsys):
    assert main(["completion"]) == 0
    script = capsys.readouterr().out
    ask = f'{script}\nCOMP_WORDS=(zerosim $1 $2); COMP_CWORD=$#; _zerosim x "${{@: -1}}"; echo "${{COMPREPLY[@]}}"'

    def completed(*words):
        command = ["bash", "-c", ask, "x", *words]
        return subprocess.run(command, text=True, capture_output=True, check=True).stdout.split()

    assert completed("pr") == ["prove"]
    assert completed("run", "--che") == ["--checkpoint"]
    assert completed("plan", "mpt") == ["mpt_7b"]


def test_closed_streams_change_no_exit_code():
    assert process("show", "nothing", stdout=None, stderr=None, preexec_fn=lambda: os.closerange(1, 3)).returncode == 2


@pytest.mark.parametrize("colourless", [True, False])
def test_no_color_is_honoured(colourless, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1" * colourless)
    assert main(["run", "small.toml", "--progress", "live"]) == 0
    assert ("\x1b[3" not in "".join(capsys.readouterr())) == colourless


def test_the_document_alone_is_on_standard_output(capsys):
    assert main([*QUIET, "--json", "-"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["schema"], document["passed"], document["title"]) == ("zerosim.run/2", True, "small")
    assert document["world"] == {"kind": "local", "ranks": 2, "library": "threads"}
    for row in document["rows"]:
        assert (row["equal"], row["first_divergence"], len(row["losses"])) == (True, None, 2)
        assert len(row["weights_sha256"]) == len(row["optimizer_sha256"]) == 64
        assert [counts["rank"] for counts in row["traffic"]] == [0, 1]
    assert "PASSED" in printed.err


def test_weights_are_written_with_the_permissions_of_the_file_they_replace():
    Path("w").write_bytes(b"older")
    os.chmod("w", 0o640)
    assert main([*QUIET, "--weights", "w"]) == 0
    assert len(load_file("w")) == 4
    assert os.stat("w").st_mode & 0o777 == 0o640


def test_a_failed_check_exits_with_1_and_names_the_rows(capsys):
    assert main([*QUIET, "--set", "check.test_accuracy=0.99"]) == 1
    *_, line, verdict = capsys.readouterr().out.splitlines()
    assert line.startswith("Stage III: test accuracy is ")
    assert verdict == "FAILED: 4 checks did not hold, of DDP, Stage I, Stage II and Stage III"


def test_no_command_at_all_says_what_to_do_next(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert "zerosim run" in told
    assert [path for path in re.findall(r"\S+\.(?:py|json)\b", told) if not Path(path).is_file()] == []
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    assert all(command in listed for command in COMMANDS)


@pytest.mark.parametrize(("error", "code", "words"), [
    (KeyboardInterrupt(), 130, "zerosim: interrupted\n"),
    (MemoryError("9 EiB"), 3, "zerosim: not enough memory: 9 EiB; "),
    (Deadlock("no rank can go on"), 3, "zerosim: no rank can go on\n"),
    (UsageError("no such thing"), 2, "zerosim: no such thing\n"),
    (ScenarioError("too many", file="a.toml"), 2, "a.toml:1:1: too many\n"),
    (ZeroDivisionError("planted"), 3, "zerosim: \nTraceback"),
])
def test_an_error_is_one_line_with_its_exit_code_and_a_bug_of_ours_a_traceback(error, code, words, monkeypatch, capsys):
    monkeypatch.setattr("zerosim.commands.memory.main", Mock(side_effect=error))
    assert main(["memory", "--parameters", "7", "--ranks", "2"]) == code
    told = capsys.readouterr().err
    assert told.startswith(words)
    assert (told.count("\n") == 1) == ("Traceback" not in words)
    assert told.endswith("ZeroDivisionError: planted\n") == ("Traceback" in words)


def test_an_interrupted_run_gives_the_cursor_back():
    with subprocess.Popen(
        [sys.executable, "-m", "zerosim", "run", "small.toml", "--progress", "live", "--set", "train.steps=100000"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as running:
        printed = running.stderr.read(6)
        running.send_signal(signal.SIGINT)
        try:
            printed += running.communicate(timeout=120)[1]
        except subprocess.TimeoutExpired:
            running.kill()
            raise
    assert running.returncode == 130
    assert printed.rindex(b"\x1b[?25h") > printed.rindex(b"\x1b[?25l")
    assert printed.endswith(b"zerosim: interrupted\n")


@pytest.mark.parametrize(("command", "code"), [
    (["prove", "mine.py:all_gather"], 1), (["run", "c.toml"], 3)])
def test_users_code_that_calls_exit_has_proved_nothing(command, code, capsys):
    Path("mine.py").write_text("import sys\ndef all_gather(comm, chunks):\n    sys.exit(0)\n")
    Path("c.toml").write_text('kind = "collective"\n[world]\nranks = 2\n[[program]]\ncalls = ["mine.py:all_gather"]\n')
    assert main(command) == code
    printed = capsys.readouterr()
    assert "sys.exit(0)" in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err


ENDS = """
import atexit, os, threading
def all_gather(comm, chunks):
    if comm.rank == 1:
        os._exit(0)
threading.Thread(target=threading.Barrier({parties}).wait).start()
atexit.register(os._exit, {code})
def gather(comm, chunks, root):
    pass
"""


@pytest.mark.parametrize(("name", "parties", "status", "code", "words"), [
    ("all_gather", 1, 0, 3, "a part has called os._exit(0), so there is no verdict"),
    ("gather", 1, 0, 1, "a part has called os._exit(0)"), ("gather", 1, 5, 5, ""),
    ("gather", 2, 0, 3, "Thread-1 (wait) has not ended 0.5 s after the command"),
])
def test_a_part_cannot_end_a_command_without_its_verdict(name, parties, status, code, words):
    Path("mine.py").write_text(ENDS.format(parties=parties, code=status))
    program = ("import sys; from zerosim.commands import cli, ends; ends.END_SECONDS = 0.5; "
               "sys.exit(ends.ended(cli.main))")
    done = subprocess.run([sys.executable, "-c", program, "prove", f"mine.py:{name}"], check=False, text=True,
                          capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, f"zerosim: {words}\n" if words else "")


def test_sigterm_is_one_line_and_a_folder_of_checkpoints_is_locked_while_its_run_lives(capsys):
    saving = ["--checkpoint", "kept", "--every", "10000", "--set", "parallel.stages=['ddp']"]
    with subprocess.Popen([sys.executable, "-m", "zerosim", *QUIET, *saving, "--set", "train.steps=100000"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        while not Path("kept/ddp").is_dir() and running.poll() is None:
            time.sleep(0.05)
        time.sleep(0.2)
        assert main([*QUIET, *saving]) == 2
        assert "another run saves in kept/ddp; wait until it ends, or save elsewhere" in capsys.readouterr().err
        running.terminate()
        assert running.communicate(timeout=60)[1] == "zerosim: ended by SIGTERM\n"
    assert running.returncode == 128 + signal.SIGTERM
    assert main([*QUIET, *saving]) == 0


# Writing


def test_a_write_that_fails_half_way_leaves_the_old_file(monkeypatch, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    for flag in ("--json", "--weights", "--trace"):
        Path("out").write_bytes(b"old")
        assert main([*QUIET, "--set", "parallel.stages=['ddp']", flag, "out"]) == 3
        assert capsys.readouterr().err == "zerosim: cannot write out: No space left on device\n"
        assert Path("out").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["out", "small.toml"]


def test_standard_output_without_room_is_one_line():
    with open("out", "w") as out:
        done = process("show", "--list", stdout=out,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
    assert (done.returncode, done.stderr) == (3, "zerosim: cannot write to standard output: File too large\n")


def test_a_reader_that_has_left_is_no_reason_to_speak():
    reading, writing = os.pipe()
    os.close(reading)
    done = process("show", "--list", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, "")
