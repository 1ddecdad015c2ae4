"""Starts PyTorch's launcher, and a judge of records."""

import os
import subprocess
import sys

from tests.mpi.launch import SECONDS_TO_END

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI"))} | {
    "OMP_NUM_THREADS": "1"}


def torchrun(ranks, *words):
    return subprocess.run([*TORCHRUN, str(ranks), *map(str, words)], capture_output=True, text=True,
                          timeout=10 * SECONDS_TO_END, env=PLAIN, check=False)


def judged(*words):
    return subprocess.run([sys.executable, "-m", "zerosim.torch", "--judge", *map(str, words)], capture_output=True,
                          text=True, check=False, env=PLAIN)


def findings(text):
    return [line for line in text.splitlines() if line.startswith("zerosim: FOUND")]
