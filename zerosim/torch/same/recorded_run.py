"""Makes what records a run in any layout, and compares the records of two runs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.torch.check.book import lines, unjudged
from zerosim.torch.check.checked_run import (
    BROKEN,
    FOUND,
    UNJUDGED,
    UNSEEN,
    launched_as,
    read_all,
    tell,
    writable,
    write_whole,
)
from zerosim.torch.check.judge import FINISHED
from zerosim.torch.check.record import Frame, Record
from zerosim.torch.same.judge import CANNOT, same

LAST = 2
"""The last step that is recorded, unless `--check-steps` says another."""


@dataclass(frozen=True)
class Recording:
    """What a recorded run does to its precision and to its initial weights."""

    double: bool = False
    noise: str = ""
    keep_weights: str = ""
    """The folder for the whole weights."""
    start_from: str = ""

    def __call__(self, keep: Callable[[Frame], None], last: int | None) -> Any:
        """What records this rank."""
        import torch  # noqa: PLC0415 - a judge needs none

        from zerosim.torch.same import starting  # noqa: PLC0415 - as above
        from zerosim.torch.same.recorder import LayoutRecorder  # noqa: PLC0415 - as above

        weights = starting.read(Path(self.start_from)) if self.start_from else None
        if self.keep_weights and launched_as()[1] > 1:
            raise UsageError("--keep-weights keeps whole weights: record a run on one rank")

        def prepare(root: Any) -> None:
            if weights is not None:
                starting.start(root, weights, launched_as()[0] or 0)
            if self.noise:
                starting.move(root, getattr(torch, self.noise))
            if self.keep_weights:
                starting.keep(root, Path(self.keep_weights))

        recorder = LayoutRecorder(keep, last, prepare, self.noise)
        if self.double:
            recorder.leaving.enter_context(starting.Double())
        return recorder


def records_of(folder: str) -> list[Record]:
    """The records of a whole run; raises `UsageError`, in one line, for anything else."""
    try:
        records = read_all(Path(folder))
    except OSError as error:
        raise UsageError(f"--same {folder}: {error.strerror or error}; name the folder of --record") from None
    size = records[0].facts.size if records else 0
    lost = [f"rank {record.facts.rank}: {record.ended or 'stopped, or still running'}" for record in records
            if record.ended != FINISHED]
    reason = ("no records of --record are there" if not records else
              f"it was not recorded to its end ({'; '.join(lost[:3])})" if lost else
              "its records are those of a check; judge them by --judge" if not records[0].facts.recorded else
              f"it has records of {len(records)} of {size} ranks" if len(records) < size else
              "no optimizer of torch.optim has updated, so there is no step to judge" if not any(
                  record.facts.updates for record in records) else "")
    if reason:
        raise UsageError(f"--same {folder}: {reason}")
    return records


def weights_of(run: list[Record]) -> set[tuple[str, tuple[int, ...]]]:
    return {(entry.name, entry.shape) for record in run for entry in record.entries if entry.kind == "weight"}


def compare(folders: list[str], file: str, strict: bool) -> int:
    """Compare the records in two folders, with a third whose weights were moved; the exit code of a check.

    It is 2 where the runs cannot be compared; raises `UsageError` if their records cannot.
    """
    if not 2 <= len(folders) <= 3:
        raise UsageError(f"--same has {len(folders)} folders; give the reference, the other run, and perhaps the "
                         "reference again with --noise")
    file = writable(file)
    reference, _, *again = runs = [records_of(folder) for folder in folders]
    for number, (folder, records) in enumerate(zip(folders, runs, strict=True)):
        first, facts = reference[0].facts, records[0].facts
        if facts.recorded != first.recorded:
            raise UsageError(f"--same: {folders[0]} has steps {first.recorded} and {folder} has {facts.recorded}; give "
                             "both runs the same --check-steps")
        if bool(facts.noise) != (number == 2):
            raise UsageError(f"--same: {folder} was recorded {'with' if facts.noise else 'without'} --noise; give the "
                             "reference, the other run, and then the reference with --noise")
    if again and weights_of(again[0]) != weights_of(reference):
        raise UsageError(f"--same: {folders[2]} has other parameters than {folders[0]}; record the reference again")
    document = same(*([record.entries for record in run] for run in runs))
    said = tell("\n".join(lines(document)))
    if file:
        write_whole(Path(file), json.dumps(document, indent=1) + "\n")
    cannot = any(verdict["why"].startswith(CANNOT) for verdict in document["verdicts"])
    return (FOUND if document["findings"] else BROKEN if not said else UNSEEN if cannot else
            UNJUDGED if strict and unjudged(document) else 0)
