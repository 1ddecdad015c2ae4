"""Is a distributed PyTorch training right? Ranks record what they see; the records are judged together afterwards.

    torchrun --nproc-per-node 8 -m zerosim.torch.check train.py

A script may also check a part of itself: `with checking(optimizer): train()`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def checking(*optimizers: Any, quiet: bool = False) -> Iterator[dict[str, Any]]:
    """A context in a script whose process group has been made; at its end the yielded document has what was found.

    Optimizers that were made before it are named.
    """
    import torch.distributed as dist  # noqa: PLC0415 - records are judged without PyTorch

    from zerosim.torch.check.judge import judge, lines  # noqa: PLC0415
    from zerosim.torch.check.recorder import Recorder  # noqa: PLC0415 - as above

    document: dict[str, Any] = {}
    recorder = Recorder()
    for each in optimizers:
        recorder.step_of(each)
    with recorder.listening() as record:
        yield document
    record.rank, record.size = dist.get_rank(), dist.get_world_size()
    records: list[Any] = [None] * record.size
    dist.all_gather_object(records, record)
    document |= judge(records)
    if record.rank == 0 and not quiet:
        print("\n".join(lines(document)), file=sys.stderr, flush=True)
