"""Makes what records a run in any layout, and compares the records of two runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.torch.check.book import unjudged
from zerosim.torch.check.checked_run import BROKEN, FOUND, UNJUDGED, UNSEEN, Asked, read_all, said, writable
from zerosim.torch.check.judge import FINISHED
from zerosim.torch.check.record import Frame, Record
from zerosim.torch.same.judge import CANNOT, same

LAST = 2
"""The last step that is recorded, unless `--check-steps` says another."""


def recorder(double: bool, noise: str, keep: Callable[[Frame], None], last: int | None) -> Any:
    """What records this rank, in 64 bits or with moved initial weights if it is asked to."""
    from zerosim.torch.same.recorder import LayoutRecorder  # noqa: PLC0415 - a judge needs no PyTorch
    from zerosim.torch.same.starting import doubled  # noqa: PLC0415 - as above

    recorder = LayoutRecorder(keep, last, noise)
    if double:
        recorder.leaving.enter_context(doubled())
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


def compare(folders: list[str], file: str, strict: bool) -> int:
    """Compare the records in two folders, with a third whose weights were moved; the exit code of a check.

    It is 2 where the runs cannot be compared; raises `UsageError` if their records cannot.
    """
    if not 2 <= len(folders) <= 3:
        raise UsageError(f"--same has {len(folders)} folders; give the reference, the other run, and perhaps the "
                         "reference again with --noise")
    asked = Asked(json=writable(file))
    reference, _, *again = runs = [records_of(folder) for folder in folders]
    for number, (folder, records) in enumerate(zip(folders, runs, strict=True)):
        first, facts = reference[0].facts, records[0].facts
        if facts.recorded != first.recorded:
            raise UsageError(f"--same: {folders[0]} has steps {first.recorded} and {folder} has {facts.recorded}; give "
                             "both runs the same --check-steps")
        if bool(facts.noise) != (number == 2):
            raise UsageError(f"--same: {folder} was recorded {'with' if facts.noise else 'without'} --noise; give the "
                             "reference, the other run, and then the reference with --noise")
    weights = [{(entry.name, entry.shape) for record in run for entry in record.entries if entry.kind == "weight"}
               for run in (reference, *again)]
    if weights[-1] != weights[0]:
        raise UsageError(f"--same: {folders[2]} has other parameters than {folders[0]}; record the reference again")
    document = same(*([record.entries for record in run] for run in runs))
    written = said(document, runs[1], asked)
    cannot = any(verdict["why"].startswith(CANNOT) for verdict in document["verdicts"])
    return (FOUND if document["findings"] else BROKEN if not written else UNSEEN if cannot else
            UNJUDGED if strict and unjudged(document) else 0)
