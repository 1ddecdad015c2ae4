"""Checkpoints as folders, one of which is always complete: written to a hidden folder, flushed, and renamed into place.

    FOLDER/zero3/step-00000010/     one checkpoint of the row zero3
    FOLDER/zero3/.step-00000015     a checkpoint that is being written or removed; it is never read

A rename is atomic, and the renamed files are on disk before it; so a power cut leaves the old state or the new one.

A checkpoint beyond the last `keep` is renamed as soon as the new one is on disk, so that it is no longer listed, and
removed while training continues: freeing the memory of large files takes as long as several flushes. The next
checkpoint and the end of the run wait for the removal.
"""

import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from zerosim.files import contents, is_file, is_folder

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
    if not is_folder(folder):
        return []
    found = [STEP.fullmatch(each.name) for each in contents(folder) if is_file(each / MANIFEST)]
    return sorted(int(match[1]) for match in found if match)


def begun(folder: Path, step: int) -> Path:
    """An empty folder in which the checkpoint of `step` can be written."""
    beside = folder / f".{name_of(step)}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    return beside


def published(beside: Path, *, keep: int) -> list[Path]:
    """Rename the folder of `begun` into place, and all checkpoints but the last `keep` out of theirs; returns these."""
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
    """Removes folders on another thread: freeing the pages of large files takes time.

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
        """Begin to remove these folders; `finish` must have been called for earlier ones."""
        beside = ThreadPoolExecutor(1)
        self._removed = beside.submit(remove, retired)
        beside.shutdown(wait=False)

    def finish(self) -> None:
        """Wait until the folders are removed; raises `OSError` if that fails."""
        removed, self._removed = self._removed, None
        if removed is not None:
            removed.result()


def remove(retired: Sequence[Path]) -> None:
    """Remove folders, which another process may be removing too."""
    for each in retired:
        while each.exists():
            with suppress(FileNotFoundError):
                shutil.rmtree(each)


def cleared(folder: Path) -> None:
    """Make a row's folder, and remove the incomplete files of a dead run there."""
    folder.mkdir(parents=True, exist_ok=True)
    remove(list(folder.glob(".step-*")))


def write_flushed(path: Path, content: bytes) -> None:
    """Write a new file and flush it to disk."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Flush a folder's list of files to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
