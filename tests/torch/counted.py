"""Every collective, then DDP and FSDP2 for some steps: the bytes of the ledger against those that MPI or boxes got."""

import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from zerosim.worlds.boxes import Outbox

import zerosim.torch  # noqa: F401 - registers the backend
from tests.torch.collectives import CHECKS
from zerosim.torch.watching import WATCH
from zerosim.worlds.mpi import connect
from zerosim.worlds.mpi_communicator import MpiCommunicator

LOCK = threading.Lock()
GIVEN = {"bytes": 0, "messages": 0}


class Counting:
    """A communicator of mpi4py's that counts what it is given to send."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Isend(self, memory, to, tag):  # noqa: N802 - the name is MPI's
        with LOCK:
            GIVEN["bytes"] += memory.nbytes
            GIVEN["messages"] += 1
        return self.comm.Isend(memory, to, tag)


def counting(make):
    def made(self, comm, *args, **kwargs):
        make(self, Counting(comm), *args, **kwargs)

    return made


def put_and_counted(put):
    def lend(self, outgoing, tag, copies):
        with LOCK:
            GIVEN["bytes"] += outgoing.nbytes
            GIVEN["messages"] += 1
        return put(self, outgoing, tag, copies)

    return lend


connect()
Outbox.lend = put_and_counted(Outbox.lend)
MpiCommunicator.__init__ = counting(MpiCommunicator.__init__)
WATCH.begin(connect().rank)
dist.init_process_group("zerosim")
for check in CHECKS:
    check(dist.get_rank(), dist.get_world_size())
    dist.barrier()
for way in (DistributedDataParallel, fully_shard):
    model = way(nn.Sequential(nn.Linear(13, 11), nn.ReLU(), nn.Linear(11, 7)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 13)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
assert GIVEN["bytes"] > 0
assert (GIVEN["bytes"], GIVEN["messages"]) == (WATCH.traffic.sent_bytes, WATCH.traffic.messages)
assert sum(each.sent_bytes for each in WATCH.traffic.by_collective.values()) == WATCH.traffic.sent_bytes
print("counted", GIVEN)
dist.destroy_process_group()
