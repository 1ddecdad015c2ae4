"""Scenarios under real mpirun, many in one start: the same bits as in the local world."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tests.hunt.draw import Drawn
from tests.hunt.judge import Fault, coherent_traces, documented, last_line, one_run
from tests.mpi.launch import mpirun

START_SECONDS, SCENARIO_SECONDS = 120, 60
OF_THE_LAUNCHER = ("Abort(", "application called")
IN_BOTH = ("passed", "failures", "rows", "on_other_ranks", "did_not_fit", "programs", "findings")
OWN_TO_A_WORLD = ("seconds", "memory", "trace", "fragmentation")
"""Of a row: under MPI there are buffers for messages, and what is prefetched is taken at times of its own."""


def judge_under_mpi(batch: Sequence[tuple[Drawn, Path]], ranks: int) -> Iterator[tuple[Drawn, Fault | None]]:
    """What is wrong with each scenario on `ranks` ranks, after a start for all and one more after each that ends it."""
    waiting = list(batch)
    while waiting:
        for drawn, folder in waiting:
            drawn.write(folder)
            (folder / "mpi.json").unlink(missing_ok=True)
        ended, account = start([folder for _, folder in waiting], ranks)
        while waiting and (waiting[0][1] / "mpi.json").exists():
            drawn, folder = waiting.pop(0)
            yield drawn, compared(drawn, folder)
        if waiting:
            drawn, _ = waiting.pop(0)
            yield drawn, Fault(f"under MPI: exit {ended}: {last_line(account)}", account)


def judge_alone_under_mpi(drawn: Drawn, folder: Path) -> Fault | None:
    """What is wrong with the scenario in a start of its own."""
    ranks = drawn.document.get("world", {}).get("ranks", 4)
    ((_, fault),) = judge_under_mpi([(drawn, folder)], ranks)
    return fault


def start(folders: Sequence[Path], ranks: int) -> tuple[int | str, str]:
    """How mpirun ended, and what it said."""
    limit = START_SECONDS + SCENARIO_SECONDS * len(folders)
    try:
        done = mpirun(ranks, ["-m", "tests.mpi.hunt", *map(str, folders)], timeout=limit)
    except subprocess.TimeoutExpired:
        return "never", f"no end after {limit} s"
    said = [line for line in done.stderr.splitlines() if not line.startswith(OF_THE_LAUNCHER)]
    return done.returncode, "\n".join(said)


def compared(drawn: Drawn, folder: Path) -> Fault | None:
    """Whether the outcome under MPI is that of the local world."""
    there = json.loads((folder / "mpi.json").read_text())
    traces = coherent_traces(there, folder / "mpi_trace.json") if "rows" in there else ()
    for fault in chain(documented(there), traces):
        return fault
    unlimited = {key: value for key, value in drawn.document.get("world", {}).items() if key != "memory_limit_mb"}
    here = one_run(drawn.saying({**drawn.document, "world": unlimited}), folder)
    if isinstance(here, Fault):
        return Fault(f"locally: {here.kind}", here.account)
    for key in IN_BOTH:
        if shared(here.get(key)) != shared(there.get(key)):
            return Fault(f"under MPI: other {key}", f"here {shared(here.get(key))}\nthere {shared(there.get(key))}")
    return None


def shared(found: Any) -> Any:
    """What both worlds must have in common."""
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return [{key: value for key, value in each.items() if key not in OWN_TO_A_WORLD} for each in found]
    return found
