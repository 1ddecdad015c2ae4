"""Checks a script under any launcher: torchrun, srun, accelerate, deepspeed, mpirun; or one that spawns its own ranks.

Each rank appends to a file of its own at every observed update. Whoever is the last to end judges the files of all; no
rank waits for another. A child of rank 0 judges them if nobody can: after a kill, or when the launcher is gone.

What could go wrong is tried before the script starts. After that an error of the check ends only the check, and a
verdict that is lost is an exit code that is not 0.
"""

import atexit
import gc
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from unittest.mock import patch

from zerosim.core import files
from zerosim.core.errors import UsageError
from zerosim.torch.check.book import lines, unjudged
from zerosim.torch.check.judge import FINISHED, judged
from zerosim.torch.check.record import Facts, Frame, Record, RecordError, read, write
from zerosim.worlds.launcher import first_number

JUDGED = "judged"
"""The file that the process makes which judges."""
BETWEEN_LOOKS, LOOKS = 0.2, 100
"""The seconds between looks of the child that stays behind, and after how many without a living rank it judges."""
LAST = 50
"""The last step that is observed, unless `--check-steps` says another."""
FOUND, UNSEEN, SUSPICIOUS, UNJUDGED, BROKEN = 1, 2, 3, 4, 5
"""The exit codes; `UNSEEN` says that there was nothing to judge."""
GROUPS: list[Any] = []
"""The process groups that a script has destroyed: see `leave`."""
NOT_TRAINING = ("torch.utils.data", "multiprocessing", "concurrent", "torch._inductor", "joblib")
"""The packages whose child processes train nothing: loaders and pools."""


@dataclass(frozen=True)
class Asked:
    """The settings of a check: the steps from `first` to `last`, and where its records and its findings go."""

    first: int = 1
    last: int | None = LAST
    records: str = ""
    json: str = ""
    strict: bool = False
    double: bool = False
    folder: str = ""
    """Where the records of this run are, once it is prepared."""
    run: str = ""
    """What tells this run from others."""
    recorder: Callable[..., Any] | None = None
    """Makes what records a rank, to be compared with another run, from `keep` and the last step; None for a check."""
    alone: bool = False
    """Whether no launcher has started this process: ranks of which there is no record were then not observed."""


def launched_as() -> tuple[int | None, int]:
    """This process's rank and the number of ranks, if a launcher says so; else None and 1."""
    return (first_number("RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"),
            first_number("WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE") or 1)


# -- before the script starts

def prepared(asked: Asked) -> Asked:
    """The settings with absolute paths, each tried; raises `UsageError` if one cannot be used."""
    flag, (rank, size) = "--records" if asked.recorder is None else "--record", launched_as()
    local = first_number("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE") or size
    if local < size and not asked.records:
        raise UsageError(f"{size - local} of {size} ranks are on other hosts: give --records a folder that all of them "
                         "see")
    process = os.getpid() if rank is None else os.getppid() if local == size else 0
    words = [process, kernel_on(process)[19:20], size, *map(os.environ.get, (
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID",
        "SLURM_STEP_ID"))]
    run = hashlib.sha256(repr(words).encode()).hexdigest()[:16]
    try:
        folder = own_folder(asked.records, run)
        (folder / f"run-{run}").mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"the records cannot be written: {error}; give {flag} another folder") from None
    names = {file.name for file in folder.iterdir()}
    if {JUDGED, f"rank{rank or 0:05}"} & names or any(name.startswith("run-") for name in names - {f"run-{run}"}):
        raise UsageError(f"{folder} holds another run; give {flag} an empty folder")
    return replace(asked, records=asked.records and str(folder), json=writable(asked.json), folder=str(folder), run=run,
                   alone=rank is None)


def writable(named: str) -> str:
    """The absolute path of the file of --json, if there is one, which can be written; else raises `UsageError`."""
    try:
        if named:
            files.check_replaceable(named)
    except OSError as error:
        raise UsageError(f"--json {named} cannot be written: {error.strerror}; name another file") from None
    return named and os.path.abspath(named)


def own_folder(named: str, run: str) -> Path:
    """The folder of the records: the named one, or a private one of this run; another attempt has one of its own."""
    attempt = first_number("TORCHELASTIC_RESTART_COUNT") or 0
    if named:
        folder = Path(named).absolute() / (f"restart{attempt}" if attempt else "")
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link; name a folder")
        folder.mkdir(mode=0o700, exist_ok=True)
    else:
        base = Path(tempfile.gettempdir(), f"zerosim-check-{os.getuid()}")
        base.mkdir(mode=0o700, exist_ok=True)
        about = base.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise UsageError(f"{base} is not a folder that only you can use; remove it, or give --records another")
        folder = base / run
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def kernel_on(process: int) -> list[str]:
    """What Linux says of a process: its state is the first word, and when it has started the 20th; [] if nothing."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return []


# -- one rank

class Pen:
    """Writes a rank's file, which begins with its first frame; `broken` says why it cannot."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.launched, self.process = asked, launched_as(), os.getpid()
        self.file: BinaryIO | None = None
        self.facts = Facts()
        self.broken = ""

    def keep(self, frame: Frame) -> None:
        if os.getpid() != self.process:
            return  # a fork
        facts = frame.facts
        if not facts.grouped:
            facts.rank, facts.size = self.launched[0] or 0, self.launched[1]
        facts.process, facts.run = self.process, self.asked.run
        try:
            if self.file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                path = Path(self.asked.folder, f"rank{facts.rank:05}")
                self.file = os.fdopen(os.open(path, flags, 0o600), "wb")
            write(frame, self.file)
        except OSError as error:
            self.broken = str(error)
            raise

    def end(self, frame: Frame) -> None:
        """Write the last frame; an error is said, and goes no further."""
        try:
            if not self.broken:
                self.keep(frame)
                if self.file is not None and not os.fstat(self.file.fileno()).st_nlink:
                    self.broken = "it was removed while the script ran"
        except OSError as error:
            self.broken = str(error)
        finally:
            with suppress(OSError):
                if self.file is not None:
                    self.file.close()
        if self.broken:
            tell(f"zerosim: the record of rank {frame.facts.rank} could not be written: {self.broken}")


def observe(asked: Asked, pen: Pen, body: Callable[[], Any], alone: Callable[[], bool] = lambda: False) -> int:
    """What `body` returns as an exit code; a rank that has seen nothing writes nothing if it was not `alone`."""
    import torch.distributed  # noqa: PLC0415 - a judge needs no PyTorch
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - as above

    from zerosim.torch.check.recorder import ScriptRecorder  # noqa: PLC0415 - as above

    recorder, ended = (asked.recorder(pen.keep, asked.last) if asked.recorder is not None else
                       ScriptRecorder(pen.keep, asked.first, asked.last)), "killed"
    pen.facts = recorder.facts
    try:
        with recorder.listening():
            for owner in (torch.distributed, distributed_c10d):
                recorder.watch(owner, "destroy_process_group", lambda *_: GROUPS.extend(distributed_c10d._world.pg_map))
            code = body()
        code = code if isinstance(code, int) else 0
        ended = recorder.failed or (FINISHED if code == 0 else f"exit code {code}")
    except BaseException as error:
        ended = type(error).__name__
        raise
    finally:
        gc.disable()  # a collection may destroy a process group: see `leave`
        if pen.file is not None or recorder.facts.grouped or alone():
            pen.end(Frame(recorder.facts, ended=ended))
    return code


def leave(code: int) -> NoReturn:
    """End this process as Python would, and before it destroys process groups.

    A backward lends its Python context to the work that it starts, and the thread of gloo that ends the work needs the
    interpreter's lock to give it back, as it does for a tensor that it is the last to know. Python holds that lock
    while it destroys a group, and waits for the group's threads: for ever, if one of them waits for the lock. A group
    that DDP alone still holds is destroyed with it, so those that a script destroys are kept to this end.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or None
            stream.flush()
    os._exit(code)


def observe_child(asked: Asked, target: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run the function of a child process under observation; its record is judged by the parent."""
    observe(asked, Pen(asked), partial(target, *args, **kwargs))


def run(asked: Asked, script: Callable[[], int]) -> int:
    """Run a script as one of the launcher's processes, under observation; the exit code of this rank.

    That is the script's own, if it is not 0. The last rank to end has 1 if there are findings, 5 if the check itself
    has failed, and 2 if nothing was observed; with `strict` 3 for suspicions, and 4 if gradients were not judged.
    """
    import torch  # noqa: PLC0415 - a judge needs none

    judges = asked.recorder is None
    if asked.double and judges:
        torch.set_default_dtype(torch.float64)
    (rank, _), pen, children = launched_as(), Pen(asked), list[Any]()
    start, leave = BaseProcess.start, os._exit

    def start_observed(process: Any) -> None:
        target = getattr(process, "_target", None)
        if target is not None and (not str(getattr(target, "__module__", "")).startswith(NOT_TRAINING)):
            process._target = partial(observe_child, asked, target)
            children.append(process)
        start(process)

    def leave_judged(code: int) -> None:
        if os.getpid() == pen.process:
            pen.end(Frame(pen.facts, ended=FINISHED if code == 0 else f"exit code {code}"))
            code = code or (conclude(asked) if judges else 0)
        leave(code)

    if not rank:
        span = f"zerosim: steps {asked.first} " + ("on" if asked.last is None else f"to {asked.last}")
        tell(f"{span} are checked; --check-steps A..B checks others" if judges else
             f"{span} are recorded in {asked.records}; compare runs by zerosim torch --same REFERENCE RUN")
    if not rank and judges:
        with suppress(OSError):  # a child judges once no rank is left to do so
            subprocess.Popen([sys.executable, "-m", "zerosim.torch", "--judge", asked.folder, "--after",
                              str(os.getppid()), "--json", asked.json, "--records", asked.records,
                              *(["--strict"] if asked.strict else [])],
                             stdin=subprocess.DEVNULL, start_new_session=True)
    verdict = BROKEN
    try:
        with patch.object(BaseProcess, "start", start_observed), patch.object(os, "_exit", leave_judged):
            code = observe(asked, pen, script, lambda: not children)
    finally:
        verdict = conclude(asked) if judges else BROKEN if pen.facts.failed else 0
    return code or (BROKEN if pen.broken else verdict)


# -- the verdict

def settled(folder: Path) -> bool:
    """Whether another process judges the records of a folder, or has, and removed them."""
    return not folder.is_dir() or (folder / JUDGED).exists()


def conclude(asked: Asked) -> int:
    """Judge the files if all ranks have ended and nobody has yet; the exit code of that."""
    folder = Path(asked.folder)
    try:
        records = [] if settled(folder) else read_all(folder)
        size = max((record.facts.size for record in records), default=1)
        ended = len(records) == size and all(record.ended for record in records)
        return claimed(asked) if ended or asked.alone else 0
    except (OSError, RecordError) as error:
        if settled(folder):
            return 0
        tell(f"zerosim: {error}; the records are kept in {folder}")
        return BROKEN


def claimed(asked: Asked) -> int:
    """Judge the files, if no other process does."""
    folder = Path(asked.folder)
    try:
        (folder / JUDGED).touch(exist_ok=False)
    except (FileExistsError, FileNotFoundError):
        return 0
    code = say(folder, asked)
    if code == BROKEN:
        tell(f"zerosim: the records are kept; judge them by zerosim torch --judge {folder}")
    elif not asked.records:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def read_all(folder: Path) -> list[Record]:
    """The records in a folder, by rank; raises `RecordError` if one is damaged, or if they are not of one run."""
    named = [file for file in sorted(folder.iterdir()) if re.fullmatch(r"rank\d{5}", file.name)]
    records = [read(file) for file in named]
    for file, record in zip(named, records, strict=True):
        if file.name != f"rank{record.facts.rank:05}":
            raise RecordError(f"{file} is the record of rank {record.facts.rank}; remove what is no record of this run")
        if (record.facts.run, record.facts.size) != (records[0].facts.run, records[0].facts.size):
            raise RecordError(f"{folder} has records of two runs; keep those of one")
    return records


def say(folder: Path, asked: Asked) -> int:
    """Judge the records of a folder, and write and say what was found; the exit code."""
    try:
        records = read_all(folder)
        document = judged(records) if records else {}
    except (OSError, RecordError) as error:
        tell(f"zerosim: {error}")
        return BROKEN
    if not document:
        tell("zerosim: nothing was observed: no process that this command has started, or that one of them has "
             "started by multiprocessing, made a process group or an update")
        return UNSEEN
    failed = not said(document, records, asked) or any(record.facts.failed for record in records)
    return (FOUND if document["findings"] else BROKEN if failed else UNSEEN if not document["steps"] else
            UNJUDGED if asked.strict and unjudged(document) else
            SUSPICIOUS if asked.strict and document["suspicions"] else 0)


def said(document: dict[str, Any], records: list[Record], asked: Asked) -> bool:
    """Write a document, then print it; whether both were possible."""
    ends = [f"rank {record.facts.rank}: {record.ended or 'killed, unwritten, or still running'}"
            for record in records if record.ended not in (FINISHED, record.facts.failed or FINISHED)]
    text, unwritten = lines(document), False
    if ends:
        text = [f"zerosim: the script has not ended well on all ranks ({'; '.join(ends)}); what was written before is "
                "judged", *text]
    try:
        if asked.json:
            files.replace(asked.json, [f"{json.dumps(document, indent=1)}\n".encode()])
    except OSError as error:
        unwritten = True
        text.append(f"zerosim: --json {asked.json} could not be written: {error.strerror}")
    banner = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if banner and document["findings"]:  # torchrun prints last, and says this text there
        first, *more = (line for line in text if line.startswith("zerosim: FOUND"))
        with suppress(OSError), open(banner, "x", encoding="utf-8") as file:
            json.dump({"message": f"{first}; {len(more)} more above" if more else first}, file)
    return tell("\n".join(text)) and not unwritten


def tell(text: str) -> bool:
    """Print lines on stderr; whether somebody may read them."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # Python may have had none to begin with
        return False
    return True


# -- a child that stays behind

def stay(asked: Asked, launcher: int) -> int:
    """Wait until all ranks are gone, or the launcher is; then judge, unless a rank has."""
    folder, rank_0, looks = Path(asked.folder), os.getppid(), 0
    while lives(launcher) and looks < LOOKS:
        time.sleep(BETWEEN_LOOKS)
        if settled(folder):
            return 0
        looks += 1
        with suppress(OSError, RecordError):
            if os.getppid() == rank_0 or any(lives(record.facts.process) for record in read_all(folder)):
                looks = 0
    with suppress(OSError, RecordError):
        if not any(record.steps for record in read_all(folder)):
            return 0
    return claimed(asked)


def lives(process: int) -> bool:
    """Whether a process of this host exists and is no zombie."""
    if Path("/proc/self").exists():
        return (kernel_on(process) or "Z")[0] not in "ZX"
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
