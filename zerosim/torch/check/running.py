"""Checks a script under any launcher: torchrun, srun, accelerate, deepspeed, mpirun.

Each rank appends to a file of its own at every observed update. Whoever is the last to end judges the files of all; no
rank waits for another. A child of rank 0 judges them if nobody can: after a kill, or when the launcher is gone.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from zerosim.torch.check.book import lines, unjudged
from zerosim.torch.check.judge import FINISHED, judge
from zerosim.torch.check.record import Frame, Record, read, write

JUDGED = "judged"
"""The file that the process makes which judges."""
BETWEEN_LOOKS = 0.2
FOUND, UNJUDGED = 1, 4


@dataclass(frozen=True)
class Asked:
    """The settings of a check: the steps from `first` to `last`, and where its records and its findings go."""

    first: int = 1
    last: int | None = None
    records: str = ""
    json: str = ""
    strict: bool = False
    double: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the records; without a name, one that is known to all children of this launcher alone."""
        if self.records:
            return Path(self.records)
        launcher, started = os.getppid(), ""
        with suppress(OSError, IndexError):
            started = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[19]
        return Path(tempfile.gettempdir(), f"zerosim-check-{os.getuid()}-{launcher}-{started}")


def launched_with(*names: str) -> int | None:
    """The number in the first of these environment variables that the launcher has set."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)


def run(asked: Asked, script: Callable[[], int]) -> int:
    """Run a script as one of the launcher's processes, under observation; the exit code of this rank.

    That is the script's own, if it is not 0. The last rank to end has 1 if there are findings; with `strict` 4 if
    gradients were not judged.
    """
    import torch  # noqa: PLC0415 - a judge needs none

    from zerosim.torch.check.recorder import Recorder  # noqa: PLC0415 - as above

    if asked.double:
        torch.set_default_dtype(torch.float64)
    folder, files = asked.folder, list[BinaryIO]()
    folder.mkdir(parents=True, exist_ok=True)

    rank = launched_with("RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK") or 0

    def keep(frame: Frame) -> None:
        if not files:
            if frame.facts.size == 1:
                frame.facts.rank = rank
                frame.facts.size = launched_with("WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE") or 1
            frame.facts.process = os.getpid()
            files.append((folder / f"rank{frame.facts.rank:05}").open("wb"))
        write(frame, files[0])

    recorder, ended = Recorder(keep, asked.first, asked.last), "killed"
    if not rank:  # a child judges once no rank is left to do so
        with suppress(OSError):
            subprocess.Popen([sys.executable, "-m", "zerosim.torch", "--judge", str(folder), "--after",
                              str(os.getppid()), "--json", asked.json, "--records", asked.records],
                             stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        with recorder.listening():
            code = script()
        ended = recorder.failed or (FINISHED if code == 0 else f"exit code {code}")
    except BaseException as error:
        ended = type(error).__name__
        raise
    finally:
        keep(Frame(recorder.facts, ended=ended))
        files[0].close()
        verdict = conclude(folder, asked)
    return code or verdict


def conclude(folder: Path, asked: Asked) -> int:
    """Judge the files if all ranks have ended and nobody has yet; the exit code of that."""
    with suppress(OSError):  # another rank may judge, and remove them, just now
        records = read_all(folder)
        size = max((record.facts.size for record in records), default=0)
        missing = size - len(records)
        if missing and not asked.records and len(records) == launched_with("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"):
            print(f"zerosim: {missing} of {size} ranks are on other hosts: give --records a folder that all hosts see",
                  file=sys.stderr, flush=True)
        elif not missing and all(record.ended for record in records):
            return claimed(folder, asked, records)
    return 0


def claimed(folder: Path, asked: Asked, records: list[Record]) -> int:
    """Judge the files, if no other process does."""
    try:
        (folder / JUDGED).touch(exist_ok=False)
    except OSError:
        return 0
    code = say(records, asked)
    if not asked.records:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def read_all(folder: Path) -> list[Record]:
    """The records in a folder, by rank; those of an earlier run of more ranks have other launchers."""
    return [read(file) for file in sorted(folder.glob("rank*"))]


def say(records: list[Record], asked: Asked) -> int:
    """Judge the records and say what was found; the exit code."""
    size = max((record.facts.size for record in records), default=0)
    if not records or len(records) < size:
        print(f"zerosim: there are records of {len(records)} of {size} ranks; nothing can be judged", file=sys.stderr)
        return UNJUDGED if asked.strict else 0
    document = judge(records)
    ends = [f"rank {record.facts.rank}: {record.ended or 'killed, or still running'}" for record in records
            if record.ended != FINISHED]
    if ends:
        print(f"zerosim: the script has not ended on all ranks ({'; '.join(ends)}); what was written before is judged",
              file=sys.stderr)
    print("\n".join(lines(document)), file=sys.stderr, flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps(document, indent=1) + "\n")
    return FOUND if document["findings"] else UNJUDGED if asked.strict and unjudged(document) else 0


# -- a child that stays behind

def stay(folder: Path, launcher: int, asked: Asked) -> int:
    """Wait until all ranks are gone, or the launcher is; then judge, unless a rank has."""
    rank_0 = os.getppid()
    processes = {rank_0}
    while lives(launcher) and any(map(lives, processes)):
        time.sleep(BETWEEN_LOOKS)
        if os.getppid() != rank_0:  # rank 0 has ended: the others are known by now
            with suppress(OSError):
                processes = {record.facts.process for record in read_all(folder)} - {0, rank_0}
    if not folder.is_dir() or (folder / JUDGED).exists():
        return 0
    records = read_all(folder)
    return claimed(folder, asked, records) if any(record.steps for record in records) else 0


def lives(process: int) -> bool:
    """Whether a process of this host exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        try:
            os.kill(process, 0)
        except OSError:
            return False
        return not Path("/proc/self").exists()
