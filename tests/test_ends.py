"""How a command ends: every end has its exit code and at most one line, whatever a user's code or the streams do."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from zerosim.commands.cli import main
from zerosim.core.errors import CollectiveError, UsageError
from zerosim.core.parts import loading, users_code
from zerosim.core.parts.loading import load_file
from zerosim.core.parts.users_code import ended_after
from zerosim.worlds.local import spawn

LEAVING = "import os, posix, sys\ndef my_all_gather(comm, chunks):\n    {0}\n"
COLLECTIVE = 'kind = "collective"\n[world]\nranks = 2\n[[program]]\ncalls = ["mine.py:my_all_gather"]\n'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


LEAVES = {"sys.exit(0)": "sys.exit(0)", "raise SystemExit": "sys.exit(None)"}


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize(("command", "code"), [
    (["prove", "mine.py:my_all_gather"], 1), (["show", "mine.py:my_all_gather"], 1), (["run", "c.toml"], 3)])
def test_code_that_ends_its_process_has_proved_nothing(command, code, leave, capsys):
    Path("mine.py").write_text(LEAVING.format(leave))
    Path("c.toml").write_text(COLLECTIVE)
    assert main(command) == code
    printed = capsys.readouterr()
    assert f"my_all_gather called {LEAVES[leave]} on rank" in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize(
    "leave", ["sys.exit(0)", "raise GeneratorExit"])
def test_a_file_that_ends_its_process_cannot_be_imported(leave, capsys):
    Path("mine.py").write_text(f"import os, sys\n{leave}\n")
    assert main(["prove", "mine.py:my_all_gather"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.py cannot be imported: " in line


def test_a_file_that_loops_is_told_so(monkeypatch):
    monkeypatch.setattr(loading, "IMPORT_SECONDS", 0.05)
    Path("mine.py").write_text("while True: pass\n")
    with pytest.raises(UsageError, match=r"mine\.py is still being imported after 0\.05 seconds: look for a loop"):
        load_file("mine.py")


def test_who_is_in_time_is_told_nothing_and_another_thread_is_not_watched():
    def timers():
        with ended_after(1000, "it"):
            seen.append(signal.getitimer(signal.ITIMER_REAL)[0])
        seen.append(signal.getitimer(signal.ITIMER_REAL)[0])

    seen, handler = [], signal.getsignal(signal.SIGALRM)
    timers()
    within, afterwards = seen
    assert within > 0 == afterwards
    assert signal.getsignal(signal.SIGALRM) is handler
    thread = threading.Thread(target=timers)
    thread.start()
    thread.join(60)
    assert seen[2:] == [0, 0]


# Streams


def ended(command, **streams):
    return subprocess.run([sys.executable, "-c", command], text=True, timeout=60, check=False, **streams)


STREAMS = """
import os, sys
from zerosim.commands.cli import main
commands = [["show", "--list"], ["prove", "ring.all_gather"], ["memory", "--table", "figure1"], ["run", "no"],
            ["plan", "no"], ["check", "no"], ["report", "no", "--html", "x"], ["checkpoint", "show", "no"],
            ["bench", "published"]]
codes = []
for command in commands:
    sys.stdout = None
    codes.append(main(command))
sys.exit(0 if codes == [3] * 9 else 9)
"""


def test_every_command_refuses_a_closed_standard_output_in_one_line():
    done = ended(STREAMS, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "zerosim: standard output is closed; redirect it to a file or to /dev/null\n" * 9


@pytest.mark.parametrize(("command", "code"), [(["run", "no"], 2), (["--help"], 3), (["no"], 2)])
def test_streams_without_room_do_not_say_that_a_check_failed(command, code):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "zerosim", *command], stdout=full, stderr=full, timeout=60,
                              check=False, env=os.environ | {"PYTHONUNBUFFERED": ""})
    assert done.returncode == code


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt, type("Mine", (BaseException,), {})])
def test_whatever_is_raised_is_no_failed_check(error, monkeypatch, capsys):
    def fails(arguments):
        raise error

    monkeypatch.setattr("zerosim.commands.memory.main", fails)
    assert main(["memory", "--table", "figure1"]) == (130 if error is KeyboardInterrupt else 3)


def test_without_threads_for_all_ranks_none_is_left(monkeypatch):
    begin, begun = threading.Thread.start, []

    def start(thread):
        if len(begun) == 5:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(CollectiveError, match=r"5 of 8 ranks have started, and no more threads can: .*fewer ranks"):
        spawn(lambda comm: None, 8)
    for thread in begun:
        thread.join(60)
        assert not thread.is_alive()


INTERRUPTS = """
import sys
class Interrupts:
    def find_spec(self, name, *others):
        if name == "{module}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("module", ["zerosim.worlds.launcher", "zerosim.collectives", "zerosim.commands.cli"])
def test_an_interrupt_while_the_package_is_imported_is_one_line(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.format(module=module))
    paths = os.pathsep.join([str(tmp_path), str(Path(users_code.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "zerosim", "--help"], stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONPATH": paths})
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "zerosim: interrupted\n")


def test_bench_is_replaced_by_its_launcher_and_leaves_no_orphan(monkeypatch):
    begun = []
    monkeypatch.setattr("zerosim.commands.bench.launched", lambda: None)
    monkeypatch.setattr("zerosim.worlds.mpi_start.own_launcher", lambda: "/bin/true")
    monkeypatch.setattr(sys, "argv", ["zerosim", "bench", "step"])
    monkeypatch.setattr(os, "execv", lambda *given: begun.append(given) or sys.exit(7))
    with pytest.raises(SystemExit):
        main(["bench", "step"])
    assert begun == [("/bin/true", ["/bin/true", "-n", "2", sys.executable, "-P", "-m", "zerosim", "bench", "step"])]
