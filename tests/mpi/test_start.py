"""A rank that fails before it is connected ends all ranks: they wait for it in MPI's start, where no Python runs."""

import os
import signal
import socket
import sys
from functools import cache
from types import SimpleNamespace

import pytest

from tests.mpi.launch import ROOT, commands, side_by_side
from zerosim.commands.cli import main
from zerosim.worlds import launcher, mpi_start

PLANTED = str(ROOT / "tests" / "mpi" / "planted")
RUN = [sys.executable, "-m", "zerosim", "run", str(ROOT / "scenarios" / "ddp.toml"), "--progress", "none"]
CONNECT = [sys.executable, "-c", "import zerosim; zerosim.connect(); print('connected')"]
INTERRUPT = "signal.raise_signal(signal.SIGINT)"


def fault(statement, rank, module, program=RUN, others=""):
    """Both ranks of `program`, with a fault in one of them when it imports `module`, and a statement in the other."""
    path = os.pathsep.join(filter(None, [PLANTED, str(ROOT), os.environ.get("PYTHONPATH")]))
    planted = {"PLANTED": statement, "PLANTED_RANK": rank, "PLANTED_MODULE": module, "PLANTED_OTHERS": others}
    return ["-n", "2", "env", f"PYTHONPATH={path}", *(f"{name}={value}" for name, value in planted.items()), *program]


def two(first, second):
    """A rank of each of two programs."""
    return ["-n", "1", *first, ":", "-n", "1", *second]


FAILS = {f"{module} fails on rank {rank}": fault("raise ZeroDivisionError('planted')", rank, module)
         for rank, module in ((0, "numpy"), (1, "mpi4py.MPI"), (1, "rich"))}
INTERRUPTS = {f"{module} is interrupted": fault(INTERRUPT, 1, module)
              for module in ("numpy", "zerosim.worlds.mpi", "mpi4py.MPI", "zerosim.commands.run")}
INTERRUPTS["MPI is interrupted, which hears no KeyboardInterrupt, while another rank takes its time"] = fault(
    "if os.fork() == 0: time.sleep(1); os.kill(os.getppid(), signal.SIGINT); os._exit(0)", 0, "mpi4py.MPI", CONNECT,
    "time.sleep(600)")
INTERRUPTS["the start of MPI has an end"] = two(
    [sys.executable, "-c", "from zerosim.worlds import mpi, mpi_start; mpi_start.STARTING = 0.5; mpi.connect()"],
    [sys.executable, "-c", "import time; time.sleep(600)"])
DIFFERENT = {"bogus first": two([*RUN, "--bogus"], RUN), "show second": two(RUN, [*RUN[:3], "show"])}
HIDDEN = {"another's ranks": two(RUN, ["env", "OMPI_COMM_WORLD_SIZE=2", *RUN]),
          "no launcher": two(CONNECT, ["env", "-u", "PMI_FD", *CONNECT])}
STARTS = {**FAILS, **INTERRUPTS, **DIFFERENT, **HIDDEN, "bench": ["-n", "3", *RUN[:3], "bench", "step"]}
LONG = {
    "site is interrupted": fault("", 1, "site"),  # Python itself, not yet started: the start of MPI ends after 60 s
    "bogus second": two(RUN, [*RUN, "--bogus"]), "show first": two([*RUN[:3], "show"], RUN)}


all_ended = cache(lambda: side_by_side(STARTS))


def ended(name):
    """How a start ends, one of all or a long one."""
    return (side_by_side({name: LONG[name]}) if name in LONG else all_ended())[name]


@pytest.mark.mpi
@pytest.mark.parametrize("name", FAILS)
def test_an_import_that_fails_on_one_rank(name):
    assert ended(name).returncode not in (0, 1, 2)
    assert ended(name).stderr.count(f"zerosim: {name.partition(' on ')[2]}:\n") == 1
    assert ended(name).stderr.count("ZeroDivisionError: planted") == 1


@pytest.mark.mpi
@pytest.mark.parametrize("name", [*INTERRUPTS, pytest.param("site is interrupted", marks=pytest.mark.long)])
def test_an_interrupt_of_one_rank_on_its_way_and_the_end_of_all_waiting(name):
    assert ended(name).returncode != 0
    assert "PASSED" not in ended(name).stdout


@pytest.mark.mpi
@pytest.mark.parametrize("name", [
    *DIFFERENT, *(pytest.param(name, marks=pytest.mark.long) for name in ("bogus second", "show first"))])
def test_ranks_with_different_command_lines(name):
    assert ended(name).returncode == 2
    assert ended(name).stderr.count("zerosim: rank 0 was started with '") == 1
    assert "PASSED" not in ended(name).stdout


@pytest.mark.mpi
@pytest.mark.parametrize("name", HIDDEN)
def test_a_rank_that_the_launcher_cannot_acquaint_with_the_others(name):
    assert ended(name).returncode != 0
    assert ended(name).stderr.count("zerosim: rank 1: the launcher started 2 ranks but belongs to another") == 1


@pytest.mark.mpi
def test_bench_wants_its_own_number_of_ranks():
    assert ended("bench").returncode == 2
    assert ended("bench").stderr.count("measures 2 ranks and the launcher started 3") == 1


@pytest.mark.mpi
def test_only_rank_0_speaks_for_what_one_process_does(capsys):
    lines = [["prove", "ring.all_reduce"], ["memory", "--parameters", "7", "--ranks", "2"], ["show", "--list"],
             ["memory", "--nosuch"]]
    for line, (code, out, err) in zip(lines, commands(2, *lines), strict=True):
        try:
            alone = main(line)
        except SystemExit as stop:
            alone = stop.code
        said = capsys.readouterr()
        assert (code, out) == (alone, said.out)
        assert err.count("zerosim memory: ") == said.err.count("zerosim memory: ") == ("--nosuch" in line)


@pytest.fixture
def last(monkeypatch):
    """What would have ended this process and its company, in order."""
    acts = []
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(launcher.os, "kill", lambda process, number: acts.append((process, number)))
    monkeypatch.setattr(launcher, "time", SimpleNamespace(sleep=acts.append))
    return acts


def test_the_launcher_is_told_the_exit_code_and_then_shown_a_signal(last, monkeypatch, tmp_path):
    """What is no socket is not written to."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(tmp_path / "other", "w") as other:
        for descriptor in (ours.fileno(), other.fileno(), 987654):
            monkeypatch.setenv("PMI_FD", str(descriptor))
            with pytest.raises(AssertionError):
                launcher.end_all(130)
        assert theirs.recv(100) == b"cmd=abort exitcode=130\n"
    assert (tmp_path / "other").read_text() == ""
    assert last == [launcher.LAST_WORDS, *[(os.getpid(), signal.SIGKILL)] * 3]


def test_only_a_rank_with_company_is_guarded(monkeypatch):
    for size, hook in (("1", sys.excepthook), ("2", launcher.fail_unconnected)):
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.setenv("PMI_SIZE", size)
        launcher.guard()
        assert sys.excepthook is hook


def test_a_failure_with_company_leaves_main_for_the_hook(monkeypatch):
    def refuse():
        raise KeyboardInterrupt

    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr("zerosim.commands.cli.connect", refuse)
    with pytest.raises(KeyboardInterrupt):
        main(["show", "--list"])


def test_handlers_and_timers_come_back():
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 5000)
    try:
        with mpi_start.ended_by_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= mpi_start.STARTING
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert 500 < signal.getitimer(signal.ITIMER_REAL)[0] <= 5000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, before)
