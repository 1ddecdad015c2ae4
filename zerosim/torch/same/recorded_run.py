"""Records a script under any launcher, and compares two records."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.core.errors import UsageError
from zerosim.torch.check.book import lines, unjudged
from zerosim.torch.check.checked_run import FOUND, UNJUDGED, launched_as, write_whole
from zerosim.torch.same.judge import same
from zerosim.torch.same.record import Entry, read, write

LAST = 2
"""The last step that is recorded, unless `--check-steps` says another."""


@dataclass(frozen=True)
class Recording:
    """The settings of a record: its folder, its last step if not all are recorded, and what is done to the weights."""

    folder: Path
    last: int | None = LAST
    double: bool = False
    noise: str = ""
    keep_weights: bool = False
    start_from: str = ""


def record(asked: Recording, script: Callable[[], int]) -> int:
    """Run a script as one of the launcher's processes, and record it; the script's exit code."""
    import torch  # noqa: PLC0415 - a judge needs none

    from zerosim.torch.same import starting  # noqa: PLC0415 - as above
    from zerosim.torch.same.recorder import LayoutRecorder  # noqa: PLC0415 - as above

    launched, size = launched_as()
    rank = launched or 0
    if asked.keep_weights and size > 1:
        raise UsageError(f"--keep-weights keeps whole weights, of a run on one rank; this one is on {size}")
    weights = starting.read(Path(asked.start_from)) if asked.start_from else None

    def prepare(root: Any) -> None:
        if weights is not None:
            starting.start(root, weights, rank)
        if asked.noise:
            starting.move(root, getattr(torch, asked.noise))
        if asked.keep_weights:
            starting.keep(root, asked.folder)

    asked.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as within:
        file = within.enter_context((asked.folder / f"rank{rank:05}.same").open("wb"))
        write([Entry("ranks", 0, "", shape=(size,))], file)
        within.push(lambda raised, *_: write([Entry("end", 0, "")], file) if raised is None else None)
        if asked.double:
            within.enter_context(starting.Double())
        within.enter_context(LayoutRecorder(lambda entries: write(entries, file), asked.last, prepare).listening())
        return script()


def moved(reference: list[list[Entry]], again: list[list[Entry]]) -> bool:
    """Whether two records are of the same model, whose initial weights differ by roundings."""
    weights = [[entry for entry in run[0] if entry.kind == "weight"] for run in (reference, again)]
    far = [float(np.abs(a.rows - b.rows).max(initial=0)) / max(float(np.abs(a.rows).max(initial=0)), 1e-300)
           if (a.name, a.shape) == (b.name, b.shape) and a.rows.shape == b.rows.shape else np.inf
           for a, b in zip(*weights, strict=False)]
    return len(weights[0]) == len(weights[1]) and 0 < max(far, default=0) < 0.1


def compare(folders: list[str], file: str, strict: bool) -> int:
    """Compare the records in two folders, with a third whose weights were moved; the exit code of a check."""
    if not 2 <= len(folders) <= 3:
        raise UsageError(f"--same has {len(folders)} folders; give the reference, the other run, and perhaps the "
                         "reference again with --noise")
    runs = []
    for folder in folders:
        ranks = read(Path(folder))
        size = ranks[0][0].shape[0] if ranks and ranks[0] else 0
        if not size or len(ranks) < size:
            raise UsageError(f"--same {folder}: it has records of {len(ranks)} of {size} ranks; record a run with "
                             f"--record {folder}")
        if not any(entry.kind == "updated" for entries in ranks for entry in entries):
            raise UsageError(f"--same {folder}: no optimizer of torch.optim has updated, so there is no step to judge")
        runs.append([entries[1:] for entries in ranks[:size]])
    if len(runs) > 2 and not moved(runs[0], runs[2]):
        raise UsageError(f"--same: {folders[2]} is not {folders[0]} with weights moved by a rounding; record the "
                         "reference again, with --noise")
    document = same(runs[0], runs[1], runs[2] if len(runs) > 2 else None)
    print("\n".join(lines(document)), file=sys.stderr, flush=True)
    if file:
        write_whole(Path(file), json.dumps(document, indent=1) + "\n")
    return FOUND if document["findings"] else UNJUDGED if strict and unjudged(document) else 0
