"""A script whose rank 1 fails after a collective that all ranks call, in the way that its argument names."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

way = sys.argv[1]
if way == "early" and os.environ["RANK"] == "1":
    raise ValueError("planted before there is a group")
SHORT = ("stays_away", "nobody_sends")
dist.init_process_group("gloo", timeout=timedelta(seconds=2) if way in SHORT else None)
rank = dist.get_rank()
tensor = torch.ones(1000)
dist.all_reduce(tensor)
if way == "raises" and rank == 1:
    raise ValueError("planted on rank 1")
if way == "dies" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if way == "brings_less":
    dist.all_reduce(tensor[:999] if rank == 1 else tensor)
if way == "brings_less_beside":
    dist.all_reduce(tensor[:999] if rank == 1 else tensor, async_op=True).wait()
if way == "calls_another":
    dist.broadcast(tensor, 0) if rank == 1 else dist.reduce(tensor[:10], 1)
if way == "stays_away" and rank == 1:
    time.sleep(60)
if way == "leaves" and rank == 1:
    sys.exit(7)
if way in ("stays_away", "leaves"):
    dist.all_reduce(tensor)
if way == "nobody_sends" and rank == 1:
    dist.recv(tensor)
if way == "nobody_sends":
    time.sleep(60)
if way == "waits_a_second":
    if rank == 1:
        asked = dist.irecv(tensor, 0)
        asked.wait(timedelta(seconds=1))
    time.sleep(60)
sys.exit(5 if way == "exits" else 0)
