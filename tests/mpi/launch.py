"""`mpirun` for tests: the mpiexec beside this interpreter, and never a process left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Ended = subprocess.CompletedProcess[str]
ROOT = Path(__file__).parents[2]
SECONDS_AT_MOST = 600.0  # for any run, on a machine that others use
SECONDS_TO_END = 120.0  # after a failure; no wait of a run is given up so early
OPEN_MPI_AS_ROOT_ON_FEW_CORES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def mpirun(ranks: int, arguments: Sequence[str], *, timeout: float = SECONDS_AT_MOST) -> Ended:
    """Run `python *arguments` on `ranks` ranks, in the project's root; kill all after `timeout` s.

    >>> mpirun(4, ["-m", "tests.mpi.conform"]).returncode
    0
    """
    return mpiexec(["-n", str(ranks), sys.executable, *arguments], timeout=timeout)


def commands(ranks: int, *lines: Sequence[str]) -> list[tuple[int, str, str]]:
    """The exit code that ranks of one start have for each command line, and what all of them print."""
    done = mpirun(ranks, ["-m", "tests.mpi.commands", *map(json.dumps, lines)])
    assert done.returncode == 0, done.stderr
    ended = [list(zip(*json.loads(line), strict=True)) for line in done.stdout.splitlines()]
    assert [{*codes} for codes, _, _ in ended] == [{codes[0]} for codes, _, _ in ended]
    return [(codes[0], "".join(out), "".join(err)) for codes, out, err in ended]


def mpiexec(arguments: Sequence[str], *, timeout: float = SECONDS_AT_MOST) -> Ended:
    """Run `mpiexec *arguments` in the project's root; kill all after `timeout` s."""
    command = [str(Path(sys.executable).with_name("mpiexec")), *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | OPEN_MPI_AS_ROOT_ON_FEW_CORES, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:
        end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def side_by_side(starts: Mapping[str, Sequence[str]], *, timeout: float = SECONDS_AT_MOST) -> dict[str, Ended]:
    """How `mpiexec` with each of these arguments ends, four at a time: most of it is waiting."""
    with ThreadPoolExecutor(4) as threads:
        runs = {name: threads.submit(mpiexec, arguments, timeout=timeout) for name, arguments in starts.items()}
        return {name: run.result() for name, run in runs.items()}


def end(launcher: subprocess.Popen[str]) -> None:
    """Ask first: killed outright, Open MPI's launcher leaves its ranks running."""
    launcher.terminate()
    try:
        launcher.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()
