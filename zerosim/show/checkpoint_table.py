"""Checkpoints in the terminal: one line for each, or the contents of a single one."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from zerosim.checkpoint.manifest import Manifest
from zerosim.checkpoint.shards import Stored
from zerosim.show.grid import Column, show_grid, show_words
from zerosim.stages import STAGES
from zerosim.words import common_unit, in_unit, joined

MOST_SHOWN = 1000
"""The most units listed in the terminal."""


def show_checkpoints(console: Console, found: Mapping[str, Manifest]) -> None:
    """Show the folder of each checkpoint, its row and step, and its size."""
    manifests = list(found.values())
    unit = common_unit(max(map(total_bytes, manifests)))
    show_grid(console, list(found), [
        Column("row", [each.row for each in manifests]),
        Column("step", [str(each.step) for each in manifests]),
        Column("updates", [str(each.updates) for each in manifests]),
        Column("saved by", [title(each) for each in manifests]),
        Column("ranks", [str(each.ranks) for each in manifests]),
        Column(unit.name, [in_unit(total_bytes(each), unit) for each in manifests]),
    ])


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
