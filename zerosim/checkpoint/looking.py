"""The checkpoints in a folder, and the check of their files against their digests."""

from collections.abc import Iterator
from pathlib import Path

from zerosim.checkpoint import folders
from zerosim.checkpoint.manifest import Manifest
from zerosim.checkpoint.shards import ShardReader
from zerosim.errors import CheckpointError
from zerosim.files import contents, is_file, is_folder


def checkpoints_in(folder: Path) -> list[Path]:
    """All checkpoints in the folder of a run or of a row, by row and step; or `folder` itself if it is one."""
    if not is_folder(folder):
        raise CheckpointError(f"{folder}: no such folder; name the folder of a run, a row or a checkpoint")
    if is_file(folder / folders.MANIFEST):
        return [folder]
    rows = [folder, *filter(is_folder, contents(folder))]
    found = [row / folders.name_of(step) for row in rows for step in folders.steps_in(row)]
    if not found:
        raise CheckpointError(f"{folder} has no checkpoint in it; name the folder of a run, a row or a checkpoint")
    return found


def only(folder: Path) -> Path:
    """The last checkpoint of the only row in `folder`."""
    found = checkpoints_in(folder)
    if len({each.parent for each in found}) > 1:
        rows = ", ".join(dict.fromkeys(str(each.parent) for each in found))
        raise CheckpointError(f"{folder} has checkpoints of several rows; name the folder of one: {rows}")
    return found[-1]


def damages(folder: Path, manifest: Manifest) -> Iterator[CheckpointError]:
    """One error for each damaged file: every byte is checked against a digest."""
    for shard in manifest.shards:
        try:
            ShardReader(folder, shard.file).verify()
        except CheckpointError as error:
            yield error
