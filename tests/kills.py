"""Runs that are killed at random moments, half of them while they write a checkpoint, and go on until they are done.

Under MPI it is a rank that is killed, or the launcher.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mpi.launch import OPEN_MPI_AS_ROOT_ON_FEW_CORES, ROOT, end

SCENARIO = """\
[world]
ranks = {ranks}
[model]
hidden = [96]
[train]
steps = {steps}
micro_batch = 2
micro_batches = {ranks}
precision = "bf16"
[parallel]
stages = ["zero3"]
"""
MOST_STEPS = 10_000
LOOK_EVERY_SECONDS = 0.002
LONGEST_SECONDS = 60.0
LONGEST_END_SECONDS = 120.0
LONGEST_REST_SECONDS = 600.0


@dataclass
class Kills:
    """How many runs were killed, whether the last one has the bits of a run that nobody killed, and what it said."""

    count: int = 0
    same_bits: bool = False
    words: str = ""


def kill_and_resume(folder: Path, *, count: int, steps: int, seed: int, mpi: int = 0) -> Kills:
    """Kill a run in `folder` so often, `mpi` processes or one, and let the last one end.

    A run that is through before its moment comes was too short: all begins anew with twice the steps.
    """
    chance, found, saved = random.Random(seed), Kills(), folder / "saved"
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.format(ranks=mpi or 3, steps=steps))
    while found.count < count:
        run = started(path, saved, mpi, "--set", "check.reference=false")
        sort = chance.choice(("at any time", "while writing"))
        ended = wait_for_the_moment(run, saved, chance, sort)
        processes = ranks_once_there(run) if mpi else [run.pid]
        was_to_end = ended or not processes
        if not was_to_end:
            kill(chance.choice([*processes, run.pid]) if mpi else run.pid)
        try:
            words = run.communicate(timeout=LONGEST_END_SECONDS)[1]
        except subprocess.TimeoutExpired:
            end(run)
            raise
        if was_to_end or not run.returncode:
            if run.returncode or steps > MOST_STEPS:
                raise AssertionError(f"it was to be killed and ended with {run.returncode}: {words}")
            shutil.rmtree(folder)
            folder.mkdir()
            return kill_and_resume(folder, count=count, steps=2 * steps, seed=seed, mpi=mpi)
        found.count += 1
    last = started(path, saved, mpi, "--every", str(steps), "--json", str(folder / "resumed.json"))
    try:
        _, found.words = last.communicate(timeout=LONGEST_REST_SECONDS)
    except subprocess.TimeoutExpired:
        end(last)
        raise
    whole = subprocess.run(
        [sys.executable, "-m", "zerosim", "run", str(path), "--json", str(folder / "whole.json")],
        check=False, cwd=ROOT, capture_output=True, text=True)
    if last.returncode == whole.returncode == 0:
        ours, theirs = (json.loads((folder / name).read_text())["stages"] for name in ("resumed.json", "whole.json"))
        keys = ("equal", "losses", "weights_sha256", "optimizer_sha256", "updates")
        found.same_bits = [[row[key] for key in keys] for row in ours] == [[row[key] for key in keys] for row in theirs]
    return found


def started(path: Path, saved: Path, mpi: int, *flags: str) -> "subprocess.Popen[str]":
    """A run that goes on from what is saved, if there is a folder for it."""
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(mpi)] if mpi else []
    resume = ["--resume", str(saved)] if saved.is_dir() else []
    return subprocess.Popen(
        [*launcher, sys.executable, "-m", "zerosim", "run", str(path), "--checkpoint", str(saved), "--every", "1",
         "--progress", "none", *resume, *flags],
        cwd=ROOT, env=os.environ | OPEN_MPI_AS_ROOT_ON_FEW_CORES, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def wait_for_the_moment(run: "subprocess.Popen[str]", saved: Path, chance: random.Random, sort: str) -> bool:
    """Until it is time to kill; whether the run has ended before."""
    deadline = time.monotonic() + (chance.uniform(0.2, 2.0) if sort == "at any time" else LONGEST_SECONDS)
    wanted = chance.randint(1, 6)
    seen: set[str] = set()
    while time.monotonic() < deadline and len(seen) < wanted:
        if run.poll() is not None:
            return True
        if sort == "while writing":
            seen |= set(being_written(saved))
        time.sleep(LOOK_EVERY_SECONDS)
    return False


def being_written(saved: Path) -> list[str]:
    """The checkpoints that are not there yet."""
    return [each.name for each in saved.glob("zero3/.step-*") if each.is_file()]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def ranks_once_there(run: "subprocess.Popen[str]") -> list[int]:
    """The processes of the ranks; none if the run is through."""
    while run.poll() is None:
        if ranks := ranks_of(run.pid):
            return ranks
        time.sleep(LOOK_EVERY_SECONDS)
    return []


def ranks_of(launcher: int) -> list[int]:
    """The processes that `launcher` has started and that run zerosim; not what these start in turn."""
    parents = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(each.parent.name)] = int(each.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    inside, found = {launcher}, []
    while grown := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= grown
    for pid in inside - {launcher}:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if [word for word in words if word != b"-P"][1:3] == [b"-m", b"zerosim"]:
            found.append(pid)
    return sorted(pid for pid in found if parents[pid] not in found)
