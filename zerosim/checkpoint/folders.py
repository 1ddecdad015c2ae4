"""Checkpoints as folders, of which there is always a whole one: written beside, flushed, and renamed into place.

    FOLDER/zero3/step-00000010/     one checkpoint of the row zero3
    FOLDER/zero3/.step-00000015     one that is being written, or removed: nobody reads it

A rename is atomic, and what it publishes is on disk before it; so a power cut leaves the old state or the new one.

A checkpoint that is one too many is renamed as soon as the new one is on disk, so that nobody lists it, and removed
while training goes on: freeing the memory of large files takes as long as several flushes. The next checkpoint and
the end of the run wait for that.
"""

import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

MANIFEST = "manifest.json"
STEP = re.compile(r"step-(\d{8,18})")


def name_of(step: int) -> str:
    """
    >>> name_of(10)
    'step-00000010'
    """
    return f"step-{step:08d}"


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a row's folder, ascending."""
    if not folder.is_dir():
        return []
    found = [STEP.fullmatch(each.name) for each in folder.iterdir() if (each / MANIFEST).is_file()]
    return sorted(int(match[1]) for match in found if match)


def begun(folder: Path, step: int) -> Path:
    """An empty folder in which the checkpoint of `step` can be written."""
    beside = folder / f".{name_of(step)}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    return beside


def published(beside: Path, *, keep: int) -> list[Path]:
    """Rename what `begun` gave into place, and all checkpoints but the last `keep` out of theirs; returns these."""
    flush(beside)
    place = beside.with_name(beside.name.removeprefix("."))
    os.rename(beside, place)
    flush(place.parent)
    retired = []
    for step in steps_in(place.parent)[:-keep]:
        retired.append(begun(place.parent, step))
        os.rename(place.parent / name_of(step), retired[-1])
    return retired


class Removal:
    """Removes folders while something else is done: to let go of the pages of large files takes a while.

    >>> import tempfile
    >>> old, removal = Path(tempfile.mkdtemp()), Removal()
    >>> removal.begin([old])
    >>> removal.finish()
    >>> old.exists()
    False
    """

    def __init__(self) -> None:
        self._removed: Future[None] | None = None

    def begin(self, retired: Sequence[Path]) -> None:
        """Remove these, once `finish` has been called for those before."""
        beside = ThreadPoolExecutor(1)
        self._removed = beside.submit(remove, retired)
        beside.shutdown(wait=False)

    def finish(self) -> None:
        """Wait until there is nothing left to remove; raises `OSError` where that cannot be."""
        removed, self._removed = self._removed, None
        if removed is not None:
            removed.result()


def remove(retired: Sequence[Path]) -> None:
    """Remove folders, which somebody else may be removing."""
    for each in retired:
        while each.exists():
            with suppress(FileNotFoundError):
                shutil.rmtree(each)


def cleared(folder: Path) -> None:
    """Make a row's folder, and remove what a run that died was writing or removing there."""
    folder.mkdir(parents=True, exist_ok=True)
    remove(list(folder.glob(".step-*")))


def write_flushed(path: Path, content: bytes) -> None:
    """Write a new file, and have the disk hold it."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Have the disk hold what a folder lists."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
