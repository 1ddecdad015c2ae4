"""The command line without a launcher: exit codes, one line for each mistake, JSON and weights."""

import argparse
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from tests.pages import refused
from zerosim.commands.cli import COMMANDS, main, parse
from zerosim.commands.output import console
from zerosim.commands.run import LiveProgress, request
from zerosim.core import files
from zerosim.core.errors import LESS, Deadlock, ScenarioError, UsageError
from zerosim.jobs import load_job, overrides_for
from zerosim.scenario import load as load_scenario

SMALL = """\
title = "small"
[world]
ranks = 2
[model]
hidden = [6]
[train]
steps = 2
micro_batch = 2
micro_batches = 2
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def zerosim(*arguments, **settings):
    """What the program says and its code: of a process of its own if that has `settings`, otherwise of this one."""
    words = [*map(str, arguments)]
    if settings:
        return subprocess.run([sys.executable, "-m", "zerosim", *words], check=False, timeout=120, **{
            "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())


def test_a_run_passes_and_says_so(small):
    done = zerosim("run", small)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "PASSED: 4 rows on 2 ranks: every bit equal to one process"
    assert "in this process" in done.stdout
    assert "step 2/2" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_progress_can_be_silenced_and_forced(small):
    assert zerosim("run", small, "--progress", "none").stderr == ""
    assert "\x1b" in zerosim("run", small, "--progress", "live").stderr


@pytest.mark.parametrize("manner", ["plain", "live"])
def test_names_of_rows_are_no_markup_in_progress_either(small, manner):
    small.write_text(small.read_text() + '[[variant]]\nname = "[/bold] [red]x[/red]"\n')
    done = zerosim("run", small, "--progress", manner)
    assert done.returncode == 0
    assert "[/bold] [red]x[/red]" in done.stderr


def test_progress_is_as_wide_as_the_table(small, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    small.write_text(small.read_text() + f'[[variant]]\nname = "{"a long name " * 9}"\n')
    assert main(["run", str(small), "--progress", "plain"]) == 0
    assert 70 < max(map(len, capsys.readouterr().err.splitlines())) <= 80


def test_only_the_document_is_written_to_standard_output(small, tmp_path):
    done = zerosim("run", small, "--weights", "-", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "zerosim: --weights: only --json writes to standard output; name a file\n"
    assert not (tmp_path / "-").exists()


def test_the_json_document(small):
    done = zerosim("run", small, "--json", "-", "--progress", "none")
    document = json.loads(done.stdout)
    assert document["schema"] == "zerosim.run/1"
    assert document["passed"] is True
    assert document["title"] == "small"
    assert document["scenario"]["train"]["betas"] == [0.9, 0.999]
    assert document["world"] == {"kind": "local", "ranks": 2, "library": "threads"}
    assert [stage["stage"] for stage in document["rows"]] == ["ddp", "zero1", "zero2", "zero3"]
    for stage in document["rows"]:
        assert stage["equal"] is True
        assert stage["first_divergence"] is None
        assert len(stage["losses"]) == 2
        assert len(stage["weights_sha256"]) == len(stage["optimizer_sha256"]) == 64
        assert [counts["rank"] for counts in stage["traffic"]] == [0, 1]
        assert stage["seconds"]["train"] > 0
    assert "PASSED" in done.stderr


def write_npz(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)


GOOD_X = np.zeros((6, 3))
NAN_X = np.zeros((6, 3))
NAN_X[4, 1] = np.nan

MISTAKES = {
    "not TOML": (b"hello", {}, ":1:1: this is not TOML"),
    "NaN": (b"[data]\nsource = 'data.npz'", {"x": NAN_X, "y": np.zeros(6)}, "x[4, 1] is nan"),
    "label": (b"[data]\nsource = 'data.npz'", {"x": GOOD_X, "y": np.array([0, 1, 2, 0, -1, 2])}, "y[4] is -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, mistake, capsys):
    text, arrays, words = MISTAKES[mistake]
    path = tmp_path / "bad.toml"
    path.write_bytes(text)
    if arrays:
        write_npz(tmp_path, **arrays)
    line = refused(capsys, "run", path, "--progress", "none")
    assert line.startswith(f"{path}:")
    assert words in line


@pytest.mark.parametrize(("line", "said"), {
    "rum zero3": "zerosim: COMMAND: found 'rum'; allowed are run, scenarios, ",
    "shwo": "; did you mean 'show'? (zerosim --help says more)",
    "-v run x": "zerosim: found '-v' before the command; give the command first",
    "run": "zerosim run: scenario is missing: zerosim run … scenario (zerosim run --help says more)",
    "run x --progress loud": "zerosim run: --progress: found 'loud'; allowed are auto, live, plain, none (",
    "run x --set": "zerosim run: --set: give it a value; one that begins with - is written --set=-… (",
    "run x y z": "zerosim run: found 'y z', which is not an argument of this command; leave it out (",
    "run x --jsn=y": "zerosim run: found '--jsn=y', which is not an argument of this command; did you mean '--json'? (",
    "run x --ranks 4": "which is not an argument of this command; mpirun -n N starts N ranks, and --set world.ranks=N "
                       "asks for them (",
    "run x --restarts -1": "zerosim run: --restarts: found '-1'; give a whole number from 0 to 1000 (",
    "checkpoint": "zerosim checkpoint: action, folder are missing: zerosim checkpoint … action folder (",
    "show --list x": "zerosim show: subject: not allowed with argument --list (",
}.items())
def test_what_cannot_be_read_is_told_in_a_line(line, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert stop.value.code == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert said in told


def test_no_command_at_all_says_what_to_do_next(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert re.findall(r"^zerosim (\S+)", said, re.MULTILINE) == ["run", "torch", "plan", "--help"]
    with pytest.raises(SystemExit):
        main(["--help"])
    assert set(re.findall(r"^    (\w+)", capsys.readouterr().out, re.MULTILINE)) >= set(COMMANDS)


def test_a_failed_check_exits_with_1(small, capsys):
    assert main(["run", str(small), "--set", "check.test_accuracy=0.99", "--progress", "none"]) == 1
    *_, first, second, third, fourth, verdict = capsys.readouterr().out.splitlines()
    for line, name in zip([first, second, third, fourth], ["DDP", "Stage I", "Stage II", "Stage III"], strict=True):
        assert re.fullmatch(rf"{name}: test accuracy is \d+\.\d+%, below 99%", line)
    assert verdict == "FAILED: 4 checks did not hold, of DDP, Stage I, Stage II and Stage III"


def test_no_color_is_honoured(small):
    done = zerosim("run", small, "--progress", "live", env=os.environ | {"NO_COLOR": "1"})
    assert "\x1b[3" not in done.stdout + done.stderr


def test_weights_are_written_through_to_what_is_there(small, tmp_path):
    target, link = tmp_path / "elsewhere", tmp_path / "link"
    target.write_bytes(b"older")
    os.chmod(target, 0o640)
    link.symlink_to(target)
    assert main(["run", str(small), "--progress", "none", "--weights", str(link)]) == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert len(load_file(target)) == 4


def test_weights_go_into_a_pipe(small, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_SECONDS", 600.0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert main(["run", str(small), "--progress", "none", "--weights", str(pipe)]) == 0
        assert len(load(reader.communicate(timeout=120)[0])) == 4


def test_weights_honour_the_umask(small, tmp_path):
    out = tmp_path / "w"
    before = os.umask(0o027)
    try:
        assert main(["run", str(small), "--progress", "none", "--weights", str(out)]) == 0
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o640


COMMANDS_THAT_WRITE = {
    "run": ["run", "{small}", "--progress", "none"],
    "show": ["show", "ring.all_reduce"],
    "the table": ["show", "--list"],
    "prove": ["prove", "ring.all_reduce"],
    "memory": ["memory", "--parameters", "7B", "--ranks", "4"],
    "check": ["check", "{small}"],
    "bench": ["bench", "step"],
}


@pytest.mark.parametrize("command", COMMANDS_THAT_WRITE)
@pytest.mark.parametrize("path", ["", "{folder}", "{folder}/no/such.json", "{folder}/new/"])
def test_what_cannot_be_written_is_refused_before_anything_runs(command, path, small, tmp_path, capsys):
    given = [each.format(small=small) for each in COMMANDS_THAT_WRITE[command]]
    line = refused(capsys, *given, "--json", path.format(folder=tmp_path))
    assert line.startswith("zerosim: --json: cannot write ")


@pytest.mark.parametrize("given", [
    ["run", "{small}", "--json", "{out}", "--weights", "{out}"],
    ["run", "{small}", "--json", "{out}", "--weights", "{link}"],
    ["show", "ring.all_reduce", "--json", "{out}", "--svg", "{out}"],
])
def test_one_file_cannot_hold_two_things(given, small, tmp_path, capsys):
    out, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(out)
    line = refused(capsys, *(each.format(small=small, out=out, link=link) for each in given))
    assert "name the same file" in line
    assert not out.exists()


def small_files_only():
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


def test_a_file_without_room_is_one_line(tmp_path):
    done = zerosim("memory", "--table", "figure1", "--json", tmp_path / "m.json", preexec_fn=small_files_only)
    assert done.returncode == 3
    assert done.stderr == f"zerosim: cannot write {tmp_path}/m.json: File too large\n"


def test_standard_output_without_room_is_one_line(tmp_path):
    with open(tmp_path / "out", "w") as out:
        done = zerosim("show", "--list", stdout=out, preexec_fn=small_files_only)
    assert done.returncode == 3
    assert done.stderr == "zerosim: cannot write to standard output: File too large\n"


def test_a_reader_that_has_left_is_no_reason_to_speak():
    reading, writing = os.pipe()
    os.close(reading)
    done = zerosim("show", "--list", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize(("error", "code", "said"), [
    (KeyboardInterrupt(), 130, "zerosim: interrupted"),
    (MemoryError("9 EiB"), 3, f"zerosim: not enough memory: 9 EiB; {LESS}"),
    (Deadlock("no rank can go on"), 3, "zerosim: no rank can go on"),
    (UsageError("no such thing"), 2, "zerosim: no such thing"),
    (ScenarioError("too many", file="a.toml"), 2, "a.toml:1:1: too many"),
])
def test_what_ends_a_command_is_one_line(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr("zerosim.commands.memory.main", raising(error))
    assert main(["memory", "--table", "figure1"]) == code
    assert capsys.readouterr().err == f"{said}\n"


def raising(error):
    def main(arguments):
        raise error
    return main


def test_what_nobody_foresaw_is_a_traceback_and_exit_code_3(monkeypatch, capsys):
    monkeypatch.setattr("zerosim.commands.memory.main", raising(ZeroDivisionError("planted")))
    assert main(["memory", "--table", "figure1"]) == 3
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.endswith("ZeroDivisionError: planted\n")


def test_an_interrupted_run_gives_the_cursor_back(small):
    with subprocess.Popen(
        [sys.executable, "-m", "zerosim", "run", str(small), "--progress", "live", "--set", "train.steps=100000"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as running:
        said = running.stderr.read(6)
        running.send_signal(signal.SIGINT)
        try:
            _, rest = running.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
        said = (said + rest).decode()
    assert running.returncode == 130
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")
    assert said.endswith("zerosim: interrupted\n")


def test_a_training_that_raises_gives_the_cursor_back(small, capsys, monkeypatch):
    def planted(*_, **__):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(LiveProgress, "step", planted)
    assert main(["run", str(small), "--progress", "live"]) == 3
    said = capsys.readouterr().err
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")
    assert said.index("Traceback") > said.rindex("\x1b[?25h")


@pytest.mark.parametrize(("launcher", "stdout", "stderr", "terminal"), [
    ({}, True, False, True), ({}, False, True, False),
    ({"PMI_SIZE": "2"}, True, False, False), ({"PMI_SIZE": "2"}, False, True, True),
])
def test_under_a_launcher_standard_error_says_what_the_terminal_is(monkeypatch, launcher, stdout, stderr, terminal):
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Screen(stdout))
    monkeypatch.setattr("sys.stderr", Screen(stderr))
    assert console(argparse.Namespace(progress="auto"), stderr=False).is_terminal is terminal


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("rounds", ["0", "-1", "1001", "1e3", "many"])
def test_bench_rounds_have_limits(rounds, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "step", "--rounds", rounds])
    assert stop.value.code == 2
    assert "whole number from 1 to 1000" in capsys.readouterr().err


def test_a_terminal_that_knows_only_ascii_is_enough(small):
    small.write_text(SMALL.replace("small", "Größe −1"), encoding="utf-8")
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = zerosim("run", small, "--json", "-", text=False, env=os.environ | ascii_only)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("ascii"))["title"] == "Größe −1"
    assert b"Gr??e -1" in done.stderr
    assert b"keeps      between steps: # weights  = gradients  . optimizer state" in done.stderr


def test_a_memory_limit_needs_processes(small, capsys):
    assert "run it with mpirun -n 2" in refused(capsys, "run", small, "--set", "world.memory_limit_mb=100")


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("120", 120), ("0", 80), ("", 80), ("7", 40), (None, 80)])
def test_a_pipe_is_as_wide_as_columns_says(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    found = console(argparse.Namespace(progress="none"), stderr=False, width=80)
    assert not found.is_terminal
    assert found.width == width


def test_digits_in_prose_have_no_colour(small, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["run", str(small), "--set", "caption=4 ranks, 'text', None and 0x10", "--progress", "none"]) == 0
    out = capsys.readouterr().out
    assert "4 ranks, 'text', None and 0x10\n" in out
    assert "\x1b[1;32mPASSED: 4 rows on 2 ranks: every bit equal to one process\x1b[0m" in out


def test_bench_without_a_launcher_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("zerosim.commands.bench.launched", lambda: None)
    monkeypatch.setattr("zerosim.worlds.mpi_start.own_launcher", lambda: "no-such-mpiexec")
    words = "there is no mpiexec; install an MPI library, e.g. pip install 'zerosim[mpich]'"
    assert words in refused(capsys, "bench", "step")


@pytest.mark.parametrize(("ranks", "overrides", "advised"), [
    (1, [], ["world.ranks=1"]),
    (3, [], ["world.ranks=3", "train.micro_batches=3"]),
    (4, [], ["world.ranks=4", "train.micro_batches=4"]),
    (4, ["train.micro_batches=8"], ["world.ranks=4"]),
    (3, ["parallel.order=tree"], []),
    (1, ["check.same_bits_on=[2]"], []),
])
def test_advice_is_tried_before_it_is_given(small, ranks, overrides, advised):
    flags = [flag for override in overrides for flag in ("--set", override)]
    asked = request(parse(["run", str(small), "--progress", "none", *flags]))
    job = load_job(small, overrides, asked)
    assert overrides_for(ranks, small, overrides, asked, job) == advised
    if advised:
        assert load_scenario(small, [*overrides, *advised]).world.ranks == ranks


def test_a_title_moves_no_cursor(small, capsys):
    title = r'title="a\u001b[31mb\u009b2Jc\u0008\u202ed"'
    assert main(["run", str(small), "--progress", "none", "--set", title, "--set", "train.steps=0"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "a␛[31mb\ufffd2Jc\ufffdd"


@pytest.mark.parametrize(("key", "mended"), [
    ("activation", "model.activation"), ("steps", "train.steps"), ("ranks", "world.ranks")])
def test_a_key_without_its_section_is_told_where_it_belongs(small, key, mended, capsys):
    found = refused(capsys, "run", small, "--set", f"{key}=1")
    assert found == f"--set:1:1: unknown key {key!r}; did you mean {mended!r}?"


@pytest.mark.parametrize("claim", [
    'model.frozen=[0]\nvariant=[{units="model"}]', 'check.does_not_fit=["zero1"]\nparallel.stages=["ddp"]'])
def test_what_rows_cannot_have_is_refused_before_the_heading(small, claim, capsys):
    flags = [flag for override in claim.split("\n") for flag in ("--set", override)]
    assert refused(capsys, "run", small, *flags)
