"""Processes as Linux lists them: their states and their children."""

import faulthandler
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

FROZEN, GONE = "Tt", "ZX"
LINES = "zerosim-line"
"""The name of the file in memory to which a process writes its traceback when SIGUSR2 asks for it."""
ANSWER = 0.3
"""The seconds that a process has to write it."""
LIBRARIES = ("site-packages", f"{os.sep}lib{os.sep}python", "<frozen", f"{Path(__file__).parents[1]}{os.sep}")
"""Parts of the names of files that are not a user's."""
EVERY, LOOKS = 1.0, 4
"""The seconds between two looks at the processes, at most, and the least number of looks before one counts as stopped.
"""


def state_of(process: str) -> str:
    """The letter of a process's state in Linux: R runs, S sleeps, T is stopped, Z has ended; X if it does not exist."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def time_of(process: int) -> str:
    """The processor time that a process's main thread has taken, in the system's ticks: its own and the system's."""
    try:
        fields = Path(f"/proc/{process}/task/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return " ".join(fields[11:13])


def are_listed() -> bool:
    """Whether this system lists its processes in /proc."""
    return Path("/proc/self/stat").exists()


class Lookout:
    """Finds a rank whose process is stopped, for a rank that never waits for it.

    A process counts as stopped for some seconds if each look during that time finds it so. A busy process, however
    slow, is never in that state, and one that continues after its whole job was stopped is not at the next look.
    """

    def __init__(self) -> None:
        self.due = 0.0
        """The time of the next look, by the monotonic clock."""
        self._times: Counter[int] = Counter()

    def look(self, processes: Mapping[int, int], seconds: float) -> int | None:
        """The first of these ranks that has been stopped for `seconds`; None if there is none."""
        pause = min(EVERY, seconds / LOOKS)
        self.due = time.monotonic() + pause
        stopped = [rank for rank, process in processes.items() if state_of(str(process)) in FROZEN]
        self._times = Counter({rank: self._times[rank] + 1 for rank in stopped})
        return next((rank for rank, times in self._times.items() if (times - 1) * pause >= seconds), None)


def children_of(process: int) -> set[int]:
    """The children of a process, including those that have ended; empty if the system does not list them."""
    try:
        listed = Path(f"/proc/{process}/task").glob("*/children")
        return {int(child) for each in listed for child in each.read_text().split()}
    except OSError:
        return set()


def offer_line() -> None:
    """Let other processes ask for the line of this one's main thread by SIGUSR2, unless the signal has a handler.

    `faulthandler` answers in C, so a program that is in C++ answers too.
    """
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        file = os.memfd_create(LINES)
        faulthandler.register(signal.SIGUSR2, file, all_threads=False)


def line_of(process: int) -> str:
    """The file and the line at which another process is; empty if it does not say.

    A line of a user's code goes before lines of libraries.
    """
    try:
        files = Path(f"/proc/{process}/fd").iterdir()
        file = next((each for each in files if LINES in os.readlink(each)), None)
        if file is None:
            return ""
        before = len(file.read_bytes())
        os.kill(process, signal.SIGUSR2)
        time.sleep(ANSWER)
        said = file.read_bytes()[before:].decode(errors="replace")
    except OSError:
        return ""
    lines = re.findall(r'File "(.*)", line (\d+)', said)
    users = [each for each in lines if not any(part in each[0] for part in LIBRARIES)]
    return f"{Path((users or lines)[0][0]).name}:{(users or lines)[0][1]}" if lines else ""
