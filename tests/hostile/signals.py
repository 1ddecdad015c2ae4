"""`python -m tests.hostile.signals`: signals to a process, a rank and the launcher in every phase of a run.

Each must end all processes within seconds, or change nothing; 1 if any did not.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kills import SCENARIO, ranks_of, started

PHASES = {"start": 0.4, "reference": 1.5, "training": 3.0, "checkpoint": 0.0}
"""Seconds after the start, but for a checkpoint: as soon as one is being written."""
ENDS_WITHIN_SECONDS = 20.0


def survived(folder: Path, whom: str, phase: str, number: signal.Signals) -> str:
    """What is wrong with how a run ended; empty if nothing is."""
    saved, path = folder / "saved", folder / "scenario.toml"
    shutil.rmtree(saved, ignore_errors=True)
    path.write_text(SCENARIO.format(ranks=2, steps=3000))
    run = started(path, saved, 0 if whom == "process" else 2)
    began = time.monotonic()
    while run.poll() is None and not (
            list(saved.glob("zero3/.step-*")) if phase == "checkpoint" else time.monotonic() - began > PHASES[phase]):
        time.sleep(0.005)
    ranks = ranks_of(run.pid)
    os.kill(ranks[-1] if whom == "rank" and ranks else run.pid, number)
    try:
        run.wait(timeout=ENDS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        return "it went on"
    finally:
        words = run.communicate()[1]
    deadline, left = time.monotonic() + ENDS_WITHIN_SECONDS, ranks
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
    return f"processes {left} are left" if left else "a traceback" if "Traceback" in words else ""


def main() -> int:
    """Try every combination, and say what each came to."""
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for whom in ("process", "rank", "launcher"):
            for phase in PHASES:
                for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT):
                    wrong = survived(Path(folder), whom, phase, number)
                    faults += bool(wrong)
                    print(f"{number.name} to the {whom} in {phase}: {wrong or 'ended'}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
