"""Laws under mpirun: honest functions hold, broken ones end alike on all ranks, and the next law finds no leftovers."""

import time
from functools import partial

import numpy as np

import zerosim as zs
from zerosim.collectives import ring
from zerosim.core import orders
from zerosim.core.comm import left, right
from zerosim.core.errors import UsageError
from zerosim.proofs import law
from zerosim.testing import LawBroken, laws
from zerosim.worlds.objects import gather_objects


def honest_all_reduce(comm, x):
    return zs.all_reduce(comm, x)


def raising_all_reduce(comm, x):
    if comm.rank == 1:
        raise KeyError("planted")
    return zs.all_reduce(comm, x)


def waiting_all_reduce(comm, x):
    total = zs.all_reduce(comm, x)
    if comm.rank == 0:
        comm.recv(into=total, source=1)
    return total


def littering_all_reduce(comm, x):
    comm.send(x, to=right(comm))
    return zs.all_reduce(comm, x)


def swapped_all_reduce(comm, chunks, reduce=np.add):
    ring.reduce_scatter(comm, chunks, reduce)
    for _ in range(comm.size - 1):
        comm.exchange(chunks[comm.rank], to=right(comm), into=chunks[left(comm)], source=left(comm))


world = zs.connect(timeout_seconds=300)
examined = (honest_all_reduce, swapped_all_reduce, raising_all_reduce, waiting_all_reduce, littering_all_reduce)
for check in (*(partial(laws.check, function, examples=2, order=orders.ring) for function in examined),
              partial(laws.works_when_sends_wait, honest_all_reduce)):
    law.PATIENCE_SECONDS = 0.5 if check.args[0] in (raising_all_reduce, waiting_all_reduce) else 300
    comm = world.channel()
    started = time.monotonic()
    try:
        said = f"held: {len(check(comm=comm))}"
    except (LawBroken, UsageError) as broken:
        said = str(broken)
    assert time.monotonic() - started < comm.timeout_seconds / 2
    law.PATIENCE_SECONDS = 300
    laws.all_reduce_is_broadcast_after_reduce(honest_all_reduce, comm=comm, examples=2)
    everyone = gather_objects(comm, said)
    if comm.rank == 0:
        assert len(set(everyone)) == 1, everyone
        print(said)
