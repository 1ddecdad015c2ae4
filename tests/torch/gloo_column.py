"""Gloo's collectives beside MPI's own on the same arrays, and both in a table of `zerosim bench collectives`."""

import numpy as np

from zerosim.commands.bench import libraries
from zerosim.commands.benches.collectives import GLOO, OWN, time_collectives
from zerosim.worlds.mpi import connect

comm = connect()
found = libraries(comm)
assert list(found) == [OWN, GLOO]
assert found[OWN].keys() == found[GLOO].keys()
count = 4 * comm.size
for collective in found[OWN]:
    results = []
    for library in found.values():
        given = np.random.default_rng(comm.rank).random(count, np.float32)
        x, out = {
            "all_gather": (given[:4], given.copy()), "reduce_scatter": (given, given[:4].copy()),
            "broadcast": (given, given),
        }.get(collective, (given, given.copy()))
        library[collective](x, out)
        results.append(out.tobytes())
    assert results[0] == results[1], collective
timed = time_collectives(comm, found, 1, (256,))
if comm.rank == 0:
    assert {each.names["collective"] for each in timed if each.names["algorithm"] == GLOO} == found[GLOO].keys()
    print("equal to MPI's, and timed")
