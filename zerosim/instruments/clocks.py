"""The clocks of all ranks, and a trace on one of them.

The monotonic clock of a host is the same in all of its processes; a host is identified by its boot. For another host,
rank 0 measures the offset by asking for the time 32 times, as NTP does (RFC 5905, section 8). The answer was given
between question and arrival, so the middle of the fastest exchange is right to within half of its duration. The outcome
contains that uncertainty.

Clocks drift apart by microseconds in a second. Offsets are measured after a row has been trained, so that they fit
its last step best.
"""

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from zerosim.comm import Communicator
from zerosim.instruments.trace import ClockOffset, RankStep, Trace, together
from zerosim.worlds.objects import gather_objects

QUESTIONS = 32
Now = Callable[[], int]


def brought_together(comm: Communicator, steps: list[RankStep]) -> Trace | None:
    """The trace of all ranks on rank 0, None on the others. All ranks call this."""
    found = clocks(comm)
    everyone = gather_objects(comm, steps)
    if found is None or everyone is None:
        return None
    return together(found, [step for each in everyone for step in each])


def clocks(comm: Communicator, host: str | None = None, now: Now = time.monotonic_ns) -> list[ClockOffset] | None:
    """Each rank's clock relative to rank 0's, on rank 0; None on the others. Ranks of one host share a clock."""
    hosts = gather_objects(comm, host or this_host())
    if hosts is None:
        answer(comm, now)
        return None
    found = [ClockOffset(0, hosts[0])]
    for rank in range(1, comm.size):
        ask = hosts[rank] != hosts[0]
        questions = QUESTIONS if ask else 0
        comm.send(np.array([questions]), to=rank)
        offset, uncertainty = measured(comm, rank, questions, now) if ask else (0, 0)
        found.append(ClockOffset(rank, hosts[rank], offset, uncertainty))
    return found


def measured(comm: Communicator, rank: int, questions: int, now: Now) -> tuple[int, int]:
    """The offset of the clock of `rank` from this one, and its uncertainty, in nanoseconds."""
    answers = []
    theirs = np.zeros(1, np.int64)
    for _ in range(questions):
        asked = now()
        comm.send(theirs, to=rank)
        comm.recv(into=theirs, source=rank)
        arrived = now()
        answers.append((arrived - asked, int(theirs[0]) - (asked + arrived) // 2))
    fastest, offset = min(answers)
    return offset, fastest - fastest // 2


def answer(comm: Communicator, now: Now) -> None:
    """Send rank 0 the time for each of its questions."""
    questions = np.empty(1, np.int64)
    comm.recv(into=questions, source=0)
    for _ in range(int(questions[0])):
        comm.recv(into=np.empty(1, np.int64), source=0)
        comm.send(np.array([now()]), to=0)


def this_host() -> str:
    """The name of this host and, on Linux, the identifier of its boot: hosts may share a name."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{platform.node()} {boot}".strip()
