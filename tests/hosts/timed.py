"""Under mpiexec on several hosts: how long collectives and steps take, one line of JSON from rank 0.

    python -m tests.hosts.timed RANKS_PER_HOST MEGABYTES
"""

import json
import statistics
import sys
import time

import numpy as np

import zerosim as zs
from zerosim.collectives import ring
from zerosim.collectives.two_level import on_hosts
from zerosim.core.sharding import split
from zerosim.worlds.objects import gather_objects


def measured(comm, collective, elements, repeats):
    """Seconds of each repetition on this rank, all having begun together."""
    found = []
    for _ in range(repeats):
        vector = np.ones(elements, np.float32)
        zs.barrier(comm)
        started = time.perf_counter()
        collective(comm, split(vector, comm.size))
        found.append(time.perf_counter() - started)
    return found


def main():
    per_host, megabytes = int(sys.argv[1]), float(sys.argv[2])
    comm = zs.connect(300)
    elements = int(megabytes * 1e6 / 4) // comm.size * comm.size
    ways = {"ring": ring.all_reduce, "two_level": on_hosts(per_host).all_reduce}
    found = {}
    for name, collective in ways.items():
        measured(comm, collective, elements, 1)
        each = gather_objects(comm, measured(comm, collective, elements, 3))
        if each is not None:
            found[name] = statistics.median(max(times) for times in zip(*each, strict=True))
    if comm.rank == 0:
        print(json.dumps({"elements": elements, "seconds": found}), flush=True)


if __name__ == "__main__":
    main()
