"""`zerosim checkpoint`: the checkpoints of a run, each of which is checked against its digest."""

import argparse
import os
from pathlib import Path

from zerosim.commands.output import complain, standard_output, write_json
from zerosim.core.errors import CheckpointError
from zerosim.core.files import contents
from zerosim.core.words import common_unit, in_unit
from zerosim.show.grid import Column, show_grid
from zerosim.training.state_file import Saved, path_of, read, steps_in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim checkpoint`."""
    parser.add_argument("folder", help="the folder of a run or of a row, or a checkpoint")
    parser.add_argument("--json", metavar="FILE", help="write the output as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Show each checkpoint, and its arrays if there is one; 0, or 1 if a file differs from its digest."""
    checkpoints, damaged = list[Saved](), False
    for path in checkpoints_in(Path(arguments.folder)):
        try:
            checkpoints.append(read(path))
        except CheckpointError as error:
            damaged = True
            complain(error)
    if checkpoints:
        console = standard_output(arguments)
        sizes = [checkpoint.path.stat().st_size for checkpoint in checkpoints]
        unit = common_unit(max(sizes))
        show_grid(console, [str(checkpoint.path) for checkpoint in checkpoints], [
            *(Column(key, [str(checkpoint.about[key]) for checkpoint in checkpoints])
              for key in ("row", "step", "updates", "stage", "ranks")),
            Column(unit.name, [in_unit(size, unit) for size in sizes])])
        if len(checkpoints) == 1:
            names, dtypes, shapes = zip(*checkpoints[0].headings, strict=True)
            show_grid(console, names, [
                Column("shape", [" × ".join(map(str, shape)) for shape in shapes]),
                Column("dtype", [dtype.name for dtype in dtypes])])
    if arguments.json:
        write_json(arguments.json, {"schema": "zerosim.checkpoints/1", "checkpoints": [
            {"path": str(checkpoint.path), **checkpoint.about} for checkpoint in checkpoints]})
    return int(damaged)


def checkpoints_in(place: Path) -> list[Path]:
    """All checkpoints in the folder of a run or of a row, by row and step; or `place` itself if it is one."""
    if os.path.isfile(place):
        return [place]
    rows = [place, *filter(os.path.isdir, contents(place))] if os.path.isdir(place) else []
    checkpoints = [path_of(row, step) for row in rows for step in steps_in(row)]
    if not checkpoints:
        raise CheckpointError(f"{place} has no checkpoint in it; name the folder of a run or a row, or a checkpoint")
    return checkpoints
