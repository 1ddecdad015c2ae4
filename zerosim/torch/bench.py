"""What the check costs: steps with it and without it by turns, a transformer of 3 million parameters under DDP on gloo.
"""

import json
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from zerosim.core.errors import UsageError

WIDTH, LAYERS, TOKENS, SEQUENCES = 256, 4, 128, 8
STEPS = 3
"""The measured steps of a turn, after one that is not."""
RANKS = 2


def seconds_of_steps(rounds: int, what: str = "check") -> dict[str, list[float]]:
    """The seconds of a step, round by round, with "check" or "record", and without; starts the ranks itself."""
    try:
        import torch.multiprocessing  # noqa: PLC0415 - most commands need none
    except ModuleNotFoundError as error:
        raise UsageError("PyTorch is not installed; pip install torch installs it") from error
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (rounds, what, folder), RANKS)
        seconds: dict[str, list[float]] = json.loads(Path(folder, "seconds").read_text())
    return seconds


def train(rank: int, rounds: int, what: str, folder: str) -> None:
    """Train by turns as one of the ranks; rank 0 writes the times."""
    import torch  # noqa: PLC0415 - as above
    import torch.distributed as dist  # noqa: PLC0415 - as above
    from torch import nn  # noqa: PLC0415 - as above

    from zerosim.torch.check.record import write  # noqa: PLC0415 - as above
    from zerosim.torch.check.recorder import ScriptRecorder  # noqa: PLC0415 - as above
    from zerosim.torch.same.recorder import LayoutRecorder  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
    model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    torch.manual_seed(rank)

    def turn(within: AbstractContextManager[Any]) -> float:
        with within:
            for number in range(1 + STEPS):
                if number == 1:
                    dist.barrier()
                    started = time.perf_counter()
                model(torch.randn(SEQUENCES, TOKENS, WIDTH)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        seconds = torch.tensor((time.perf_counter() - started) / STEPS)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds)

    times: dict[str, list[float]] = {"with_seconds": [], "without_seconds": []}
    with tempfile.TemporaryFile() as records:
        for _ in range(1 + rounds):
            recorder: Any = LayoutRecorder if what == "record" else ScriptRecorder
            times["with_seconds"].append(turn(recorder(partial(write, file=records)).listening()))
            times["without_seconds"].append(turn(nullcontext()))
    if rank == 0:
        Path(folder, "seconds").write_text(json.dumps({name: seconds[1:] for name, seconds in times.items()}))
    dist.destroy_process_group()
