"""Is a distributed PyTorch training right? Ranks record what they see; the records are judged together afterwards.

    torchrun --nproc-per-node 8 -m zerosim.torch --check train.py

A script may also check a part of itself: `with checking(optimizer) as checked: train()`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from zerosim.torch.check.book import NOT_JUDGED, Book, CheckFinding, lines
from zerosim.torch.check.judge import FINISHED, judged
from zerosim.torch.check.record import Frame, Record, RecordError

__all__ = ["Checked", "checking"]


@dataclass
class Checked:
    """What a check has found, once it is over: the document `zerosim.check/3`."""

    document: dict[str, Any] = field(default_factory=dict)
    findings: list[CheckFinding] = field(default_factory=list)
    """What a wrong program alone computes, the first step's first."""
    suspicions: list[CheckFinding] = field(default_factory=list)
    """What a right program could compute, too."""


@contextmanager
def checking(*optimizers: Any, raises: bool = False, quiet: bool = False) -> Iterator[Checked]:
    """A context in a script whose process group has been made; all ranks leave it together, with the same findings.

    Optimizers that were made before it are named. The ranks exchange their records over the script's own process group
    when they leave. With `raises` findings are an AssertionError on every rank, as in a test; suspicions are not. A
    body that raises is not judged.
    """
    import torch.distributed as dist  # noqa: PLC0415 - records are judged without PyTorch

    from zerosim.torch.check.recorder import ScriptRecorder  # noqa: PLC0415 - as above

    checked, frames = Checked(), list[Frame]()
    recorder = ScriptRecorder(frames.append)
    for optimizer in optimizers:
        recorder.step_of(optimizer)
    with recorder.listening():
        yield checked
    recorder.write(ended=recorder.failed or FINISHED)
    records: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(records, Record.of(frames))
    try:
        checked.document |= judged(records)
    except RecordError as error:
        book = Book()
        book.judge("gradient", NOT_JUDGED, str(error))
        checked.document |= book.document(0, {"updates": 0, "ranks": len(records)})
    checked.findings, checked.suspicions = (
        [CheckFinding(**finding) for finding in checked.document[kind]] for kind in ("findings", "suspicions"))
    if dist.get_rank() == 0 and not quiet:
        print("\n".join(lines(checked.document)), file=sys.stderr, flush=True)
    if raises and checked.findings:
        raise AssertionError("\n".join(map(str, checked.findings)))
