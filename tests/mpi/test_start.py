"""A rank that fails before it is connected ends all ranks: they wait for it in MPI's start, where no Python runs."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.mpi.launch import ROOT, mpiexec
from zerosim.commands.cli import main
from zerosim.worlds import launcher, mpi_start

SECONDS = 600
"""No run here takes that long, on however busy a machine; the start of MPI waits three times as long."""

PLANT = """\
import os, signal, sys, time
mine = (os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")) == os.environ.get("PLANTED_RANK")
class Planted:
    def find_spec(self, name, *_):
        if name == os.environ.get("PLANTED_MODULE"):
            {what}
if mine:
    sys.meta_path.insert(0, Planted())
"""
RUN = [sys.executable, "-m", "zerosim", "run", str(ROOT / "scenarios" / "ddp.toml"), "--progress", "none"]
CONNECT = [sys.executable, "-c", "import zerosim; zerosim.connect(); print('connected')"]


def planted(folder, what, *, rank, module, program=RUN):
    """Both ranks of `program`, with a fault in one of them when it imports `module`."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(PLANT.format(what=what))
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    fault = {"PYTHONPATH": path, "PLANTED_RANK": str(rank), "PLANTED_MODULE": module}
    return mpiexec(["-n", "2", *program], timeout=SECONDS, environment=fault)


def all_at_once(launch, cases):
    """Each case with what `launch(*case)` gives, side by side: most of it is waiting."""
    with ThreadPoolExecutor(len(cases)) as threads:
        return list(zip(cases, threads.map(launch, *zip(*cases, strict=True)), strict=True))


@pytest.mark.mpi
def test_an_import_that_fails_on_one_rank(tmp_path):
    def launch(rank, module):
        what = "raise ZeroDivisionError('planted')"
        return planted(tmp_path / f"{rank}-{module}", what, rank=rank, module=module)

    cases = [(0, "numpy"), (1, "mpi4py.MPI"), (1, "rich")]
    for (rank, module), ended in all_at_once(launch, cases):
        assert ended.returncode not in (0, 1, 2), module
        assert ended.stderr.count(f"zerosim: rank {rank}:\n") == 1, module
        assert ended.stderr.count("ZeroDivisionError: planted") == 1, module


@pytest.mark.mpi
@pytest.mark.parametrize("modules", [
    ["numpy", "zerosim.worlds.mpi", "mpi4py.MPI", "zerosim.commands.run"],
    pytest.param(["site"], marks=pytest.mark.long),  # Python itself, not yet started: the start of MPI ends after 60 s
])
def test_an_interrupt_of_one_rank_on_its_way(modules, tmp_path):
    def launch(module):
        what = "signal.raise_signal(signal.SIGINT)"
        if module == "site":
            what += "\nif mine: raise KeyboardInterrupt"
        return planted(tmp_path / module, what, rank=1, module=module)

    cases = [(module,) for module in modules]
    for case, ended in all_at_once(launch, cases):
        assert ended.returncode != 0, case
        assert "PASSED" not in ended.stdout, case


@pytest.mark.mpi
def test_an_interrupt_of_a_rank_in_the_start_of_mpi(tmp_path):
    """Another rank takes its time, so that this one waits where it hears no KeyboardInterrupt."""
    interrupter = "if os.fork() == 0: time.sleep(1); os.kill(os.getppid(), signal.SIGINT); os._exit(0)"
    what = f"{interrupter}\nif not mine: time.sleep(600)"
    done = planted(tmp_path, what, rank=0, module="mpi4py.MPI", program=CONNECT)
    assert done.returncode != 0


@pytest.mark.mpi
@pytest.mark.parametrize(("other", "first"), [
    ([*RUN, "--bogus"], True), ([*RUN[:3], "show"], False),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (([*RUN, "--bogus"], False), ([*RUN[:3], "show"], True)))
])
def test_ranks_with_different_command_lines(other, first):
    commands = [other, RUN] if first else [RUN, other]
    ended = mpiexec(["-n", "1", *commands[0], ":", "-n", "1", *commands[1]], timeout=SECONDS)
    assert ended.returncode == 2
    assert ended.stderr.count("zerosim: rank 0 was started with '") == 1
    assert "PASSED" not in ended.stdout


@pytest.mark.mpi
def test_a_rank_that_the_launcher_cannot_acquaint_with_the_others():
    def launch(hidden, program):
        return mpiexec(["-n", "1", *program, ":", "-n", "1", "env", *hidden, *program], timeout=SECONDS)

    for case, ended in all_at_once(launch, [(["OMPI_COMM_WORLD_SIZE=2"], RUN), (["-u", "PMI_FD"], CONNECT)]):
        assert ended.returncode != 0, case
        assert ended.stderr.count("zerosim: rank 1: the launcher started 2 ranks but belongs to another") == 1, case


@pytest.mark.mpi
def test_the_start_of_mpi_has_an_end():
    waits = "from zerosim.worlds import mpi, mpi_start; mpi_start.STARTING = 0.5; mpi.connect()"
    sleeps = "import time; time.sleep(600)"
    ended = mpiexec(["-n", "1", sys.executable, "-c", waits, ":", "-n", "1", sys.executable, "-c", sleeps],
                    timeout=SECONDS)
    assert ended.returncode != 0


@pytest.mark.mpi
@pytest.mark.parametrize(("given", "code"), [
    (["prove", "ring.all_reduce"], 0),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (["memory", "--parameters", "7", "--ranks", "2"], 0), (["show", "--list"], 0), (["memory", "--nosuch"], 2))),
])
def test_only_rank_0_speaks_for_what_one_process_does(given, code):
    command = [sys.executable, "-m", "zerosim", *given]
    known = dict(os.environ)  # without the COLUMNS of the terminal that readline, which pytest loads, tells C alone
    alone = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, check=False, timeout=60)
    ended = mpiexec(["-n", "2", *command], timeout=SECONDS)
    assert ended.returncode == alone.returncode == code
    assert ended.stdout == alone.stdout
    assert ended.stderr.count("zerosim memory: ") == alone.stderr.count("zerosim memory: ") == (code == 2)


@pytest.mark.mpi
def test_bench_wants_its_own_number_of_ranks():
    ended = mpiexec(["-n", "3", sys.executable, "-m", "zerosim", "bench", "step"], timeout=SECONDS)
    assert ended.returncode == 2
    assert ended.stderr.count("measures 2 ranks and the launcher started 3") == 1


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
