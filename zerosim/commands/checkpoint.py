"""`zerosim checkpoint`: the contents of a checkpoint, its verification, and its weights as one file.

In the terminal a checkpoint is one line, or the contents of a single one.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from zerosim.checkpoint import folders
from zerosim.checkpoint.manifest import Manifest, read_manifest
from zerosim.checkpoint.reshard import write_full
from zerosim.checkpoint.shards import ShardReader, Stored
from zerosim.commands.output import check_writable, complain, standard_output, write_json
from zerosim.errors import CheckpointError, UsageError
from zerosim.files import contents, is_file, is_folder
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.stages import STAGES
from zerosim.words import common_unit, in_unit, joined

MOST_SHOWN = 1000
"""The most units listed in the terminal."""
ACTIONS = {
    "show": "list the contents of the folder of a run, a row or a checkpoint",
    "verify": "check every byte against its digest",
    "full": "write the weights as one safetensors file, --weights FILE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim checkpoint`."""
    words = "; ".join(f"{name}: {words}" for name, words in ACTIONS.items())
    parser.add_argument("action", choices=ACTIONS, help=words)
    parser.add_argument("folder", help="the folder of a run, a row or a checkpoint")
    parser.add_argument("--weights", metavar="FILE", help="where full writes")
    parser.add_argument("--json", metavar="FILE", help="write the output of show as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Run the action; 0, or 1 if a file differs from its digests."""
    check_writable(arguments)
    if (arguments.weights is not None) != (arguments.action == "full"):
        raise UsageError("--weights FILE is required for full, and only for full")
    if arguments.json is not None and arguments.action != "show":
        raise UsageError(f"--json is for show; remove it from {arguments.action}")
    folder = Path(arguments.folder)
    match arguments.action:
        case "show":
            return show(arguments, folder)
        case "verify":
            return verify(arguments, folder)
    source = only(folder)
    write_full(source, read_manifest(source), Path(arguments.weights))
    return 0


def show(arguments: argparse.Namespace, folder: Path) -> int:
    """Show the folder of each checkpoint, its row and step, and its size; a single one with its contents."""
    found = {each: read_manifest(each) for each in checkpoints_in(folder)}
    console, manifests = standard_output(arguments), list(found.values())
    unit = common_unit(max(map(total_bytes, manifests)))
    show_grid(console, [str(each.relative_to(folder) if each != folder else folder) for each in found], [
        Column("row", [each.row for each in manifests]),
        Column("step", [str(each.step) for each in manifests]),
        Column("updates", [str(each.updates) for each in manifests]),
        Column("saved by", [title(each) for each in manifests]),
        Column("ranks", [str(each.ranks) for each in manifests]),
        Column(unit.name, [in_unit(total_bytes(each), unit) for each in manifests]),
    ])
    if len(found) == 1:
        show_arrays(console, *manifests)
    if arguments.json:
        document: dict[str, Any] = {"schema": "zerosim.checkpoints/1", "folder": str(folder), "checkpoints": [
            {"folder": str(each), **checkpoint_document(manifest)} for each, manifest in found.items()]}
        write_json(arguments.json, document)
    return 0


def verify(arguments: argparse.Namespace, folder: Path) -> int:
    """Print a line for each intact checkpoint, and on standard error one for each damaged file."""
    code, console = 0, standard_output(arguments)
    for each in checkpoints_in(folder):
        try:
            manifest: Manifest = read_manifest(each)
            found = list(damages(each, manifest))
        except CheckpointError as error:
            found = [error]
        for damage in found:
            complain(damage)
            code = 1
        if not found:
            console.print(f"{each}: every byte matches its digest, after step {manifest.step}, on "
                          f"{manifest.ranks} ranks", markup=False, soft_wrap=True)
    return code


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


def show_arrays(console: Console, manifest: Manifest) -> None:
    """Show the saved states of each unit, its layout, and the legs of the training."""
    units, pieces = manifest.units[:MOST_SHOWN], pieces_by_unit(manifest)
    show_grid(console, [unit.name for unit in units], [
        Column("layers", [joined(list(map(str, unit.layers))) for unit in units]),
        Column("elements", [f"{unit.count:,}" for unit in units]),
        Column("kept", [", ".join(kept(pieces[number])) for number in range(len(units))]),
        Column("a rank has", [f"{most(pieces[number]):,}" for number in range(len(units))]),
    ])
    if len(units) < len(manifest.units):
        show_words(console, f"and {len(manifest.units) - len(units):,} more units; --json FILE lists all")
    if manifest.loss_scale != 1.0:
        show_words(console, f"Loss scale {manifest.loss_scale:g}, {manifest.good_steps} steps since it changed")
    show_words(console, f"{manifest.samples:,} samples taken of the stream")
    for leg in manifest.legs:
        stage = STAGES[str(leg.parallel["stages"][0])].title if leg.parallel["stages"][0] in STAGES else "?"
        show_words(console, f"up to step {leg.until}: {stage}, ranks {leg.ranks}, order {leg.parallel.get('order')}")


def checkpoint_document(manifest: Manifest) -> dict[str, Any]:
    """The figures of checkpoints in JSON's own types."""
    pieces = pieces_by_unit(manifest)
    return {
        "row": manifest.row, "step": manifest.step, "updates": manifest.updates, "stage": manifest.stage,
        "ranks": manifest.ranks, "bytes": total_bytes(manifest), "loss_scale": manifest.loss_scale,
        "good_steps": manifest.good_steps, "samples": manifest.samples, "scenario": manifest.scenario,
        "units": [
            {"name": unit.name, "layers": list(unit.layers), "elements": unit.count, "frozen": unit.frozen,
             "kept": kept(pieces[number])}
            for number, unit in enumerate(manifest.units)
        ],
    }


def title(manifest: Manifest) -> str:
    return STAGES[manifest.stage].title if manifest.stage in STAGES else manifest.stage


def total_bytes(manifest: Manifest) -> int:
    return sum(shard.file.file_bytes for shard in manifest.shards)


Pieces = list[tuple[str, Stored]]
"""The state of each saved array of a unit, and its record."""


def pieces_by_unit(manifest: Manifest) -> defaultdict[int, Pieces]:
    """The saved arrays of each unit, by its number."""
    found = defaultdict[int, Pieces](list)
    for shard in manifest.shards:
        for name, piece in shard.pieces.items():
            found[piece.unit].append((piece.what, shard.file.arrays[name]))
    return found


def kept(pieces: Pieces) -> dict[str, str]:
    """The states of a unit, and their dtypes; weights first."""
    found = {what: stored.dtype for what, stored in pieces}
    return dict(sorted(found.items(), key=lambda each: each[0] != "weights"))


def most(pieces: Pieces) -> int:
    return max((stored.length for _, stored in pieces), default=0)
