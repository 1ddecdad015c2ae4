"""What the check costs: steps with it and without it by turns, a transformer of 3 million parameters under DDP on gloo.

    torchrun --nproc-per-node 2 -m zerosim.torch.bench ROUNDS check

prints the seconds of a step with and without it, of the slower rank, round by round, as JSON.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from zerosim.core.errors import UsageError

WIDTH, LAYERS, TOKENS, SEQUENCES = 256, 4, 128, 8
STEPS = 3
"""The measured steps of a turn, after one that is not."""
RANKS = 2


def seconds_of_steps(rounds: int, what: str = "check") -> dict[str, list[float]]:
    """The seconds of a step, round by round, with "check" or "record", and without; starts the ranks itself."""
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
                           "-m", "zerosim.torch.bench", str(rounds), what], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise UsageError("the ranks did not end well; is PyTorch installed (pip install torch)?")
    seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main(rounds: int, what: str) -> None:
    """Train by turns; rank 0 prints the times."""
    import torch  # noqa: PLC0415 - who starts the ranks needs none
    import torch.distributed as dist  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    from zerosim.torch.check.record import write  # noqa: PLC0415
    from zerosim.torch.check.recorder import ScriptRecorder  # noqa: PLC0415
    from zerosim.torch.same.recorder import LayoutRecorder  # noqa: PLC0415

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
    model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    torch.manual_seed(dist.get_rank())

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
    if dist.get_rank() == 0:
        print(json.dumps({name: seconds[1:] for name, seconds in times.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
